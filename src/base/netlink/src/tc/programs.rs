//! The filters of a link that may drop packets before or after the rules see them: `tc filter show dev LINK ingress`, and
//! `egress`.

use super::filter::{Effect, effect};
use super::{Handle, kind_and_options};
use crate::uapi::pkt_cls::TCA_BPF_NAME;
use crate::uapi::pkt_sched::{TC_H_MIN_EGRESS, TC_H_MIN_INGRESS};
use crate::uapi::rtnetlink::RTM_NEWTFILTER;
use crate::wire::{Message, Parsed, text};
use crate::{Netlink, Result};

/// The major number of the handle of the qdiscs ingress and clsact.
const MAJOR: u16 = 0xffff;

impl Netlink {
    /// Returns the kinds of the filters in both directions, sorted and each once. An eBPF program is `bpf` with its
    /// name. A u32 filter whose first action redirects to another link is left out, because limits of traffic have one.
    /// The list is empty if there is no link.
    pub fn tc_programs(&mut self, index: u32) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for minor in [TC_H_MIN_INGRESS, TC_H_MIN_EGRESS] {
            found.extend(self.filters(index, Handle::new(MAJOR, minor), read)?);
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// Returns the kind of the filter in an RTM_NEWTFILTER. `None` is for one that [`Netlink::tc_programs`] leaves out.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<String>> {
    if message.kind != RTM_NEWTFILTER || !matches!(effect(message)?, Effect::Other) {
        return Ok(None);
    }
    let (kind, options) = kind_and_options(message)?;
    // The kernel lists a filter's head without options.
    let Some(options) = options else { return Ok(None) };
    let name = options.find(TCA_BPF_NAME)?.map(text).filter(|_| kind == "bpf");
    Ok(Some(name.map_or(kind, |name| format!("bpf {name}"))))
}
