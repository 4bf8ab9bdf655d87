//! The host's ends of veth pairs. Their aliases name their owners ([`cnimble_cni::Owner`]).

use cnimble_cni::owner::tag;
use cnimble_netlink::link::Link;

use super::{Judge, Orphan};

pub const KIND: &str = "veth";

/// Whether a link is the host's end of a pair that leads into a namespace.
pub fn leads_to_a_pod(link: &Link) -> bool {
    link.kind == KIND && link.far.is_some()
}

/// Finds a pair with an end that never reached a pod. The kernel removes others with the pod's namespace.
pub(super) fn orphan(judge: &impl Judge, link: &Link) -> Option<Orphan> {
    tag(&link.alias).filter(|_| judge.both_ends_here(link))?;
    let doubt = judge.lives(&link.alias).then(|| "its pod lives".to_owned());
    Some(Orphan { why: "its other end is on the host, too, and not in a pod", doubt })
}
