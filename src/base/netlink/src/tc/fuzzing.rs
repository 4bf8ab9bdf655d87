//! The readers of tc, for [`crate::fuzzing`].

use super::{filter, htb, qdisc, subnet};
use crate::wire::Message;

/// Every reader on one message.
pub(crate) fn read(message: &Message<'_>) {
    let _ = qdisc::read(message);
    let _ = htb::read(message);
    let _ = filter::effect(message);
    let _ = subnet::read(message);
}
