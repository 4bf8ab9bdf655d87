//! The filters of a link that may drop packets before or after the rules see them: `tc filter show dev LINK ingress`, and
//! `egress`.

use super::filter::{Effect, effect};
use super::{Handle, kind_and_options};
use crate::uapi::pkt_cls::TCA_BPF_NAME;
use crate::uapi::pkt_sched::{TC_H_MIN_EGRESS, TC_H_MIN_INGRESS};
use crate::uapi::rtnetlink::RTM_NEWTFILTER;
use crate::wire::{Message, Parsed, text};
use crate::{Netlink, Result};

/// The qdiscs ingress and clsact have this number.
const MAJOR: u16 = 0xffff;

impl Netlink {
    /// The kinds of filters in both directions, an eBPF program with its name. A plain redirection to another link is
    /// left out, because limits of traffic have one.
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
