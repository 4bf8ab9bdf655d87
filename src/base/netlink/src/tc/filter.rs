//! Filters of a qdisc: `tc filter show`. Also the parts that the u32 filters of this crate have in common.

use nix::errno::Errno;

use super::{Handle, header, is_of, kind_and_options};
use crate::uapi::pkt_cls::{
    TC_MIRRED_EACTION, TC_MIRRED_IFINDEX, TC_U32_TERMINAL, TCA_ACT_OPTIONS, TCA_EGRESS_REDIR,
    TCA_INGRESS_REDIR, TCA_MIRRED_PARMS, TCA_U32_ACT, TCA_U32_SEL,
};
use crate::uapi::rtnetlink::{RTM_GETTFILTER, RTM_NEWTFILTER};
use crate::wire::{self, Attributes, Message, Parsed, u32_ne};
use crate::{Netlink, Result};

/// The kind of filter that each kernel with traffic limits has. Some minimal kernels lack the shorter `matchall`.
pub(super) const U32: &str = "u32";

/// The attribute type of a filter's first action. Actions are numbered from 1 in their order.
pub(super) const FIRST_ACTION: u16 = 1;

/// Returns `tcm_info` of a filter: its priority, and the protocol of its packets (ETH_P_…, in host byte order).
pub(super) fn info(priority: u16, protocol: u16) -> u32 {
    u32::from(priority) << 16 | u32::from(protocol.to_be())
}

/// A word of a packet that u32 compares: `struct tc_u32_key`. The default key has an empty mask and matches all
/// packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Key {
    pub(super) mask: u32,
    pub(super) value: u32,
    /// The offset from the beginning of the IP header.
    pub(super) offset: u32,
}

/// Returns a `struct tc_u32_sel` with its keys. A packet must match all keys. No later filter sees a packet that
/// matches.
pub(super) fn selector(keys: &[Key]) -> Vec<u8> {
    let count = u8::try_from(keys.len()).unwrap_or(u8::MAX);
    let mut bytes = vec![TC_U32_TERMINAL, 0, count, 0];
    // Offsets and hashing are not used.
    bytes.extend([0; 12]);
    for key in keys {
        bytes.extend(key.mask.to_be_bytes());
        bytes.extend(key.value.to_be_bytes());
        bytes.extend(key.offset.to_ne_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

impl Netlink {
    /// Lists the filters of the qdisc `parent` of a link, in the kernel's order. `read` returns `None` for what is to
    /// be left out. The list is empty if the link or the qdisc is missing.
    pub(super) fn filters<T>(
        &mut self,
        index: u32,
        parent: Handle,
        read: impl Fn(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<Vec<T>> {
        let header = header(index, Handle::UNSPEC, parent);
        let message = wire::list(RTM_GETTFILTER, &header);
        let found = self.dump_raw("list filters", &message, |message| {
            if is_of(message, index) { read(message) } else { Ok(None) }
        });
        match found {
            Err(err) if err.is_missing() || err.is(Errno::EINVAL) => Ok(Vec::new()),
            found => found,
        }
    }
}

/// What a filter does with packets.
pub(crate) enum Effect {
    /// Nothing. The kernel also lists the hash tables of u32, which have no selector.
    Nothing,
    /// A u32 filter's first action passes its packets to this link. It is 0 if the link has been deleted.
    Redirect(u32),
    /// Anything else, such as an eBPF program or another kind of filter.
    Other,
}

/// Reads the effect of the filter in an RTM_NEWTFILTER.
pub(crate) fn effect(message: &Message<'_>) -> Parsed<Effect> {
    if let Some(target) = redirection(message)? {
        return Ok(Effect::Redirect(target));
    }
    let (kind, options) = kind_and_options(message)?;
    let selects = options.unwrap_or_default().find(TCA_U32_SEL)?.is_some();
    Ok(if kind == U32 && !selects { Effect::Nothing } else { Effect::Other })
}

/// Returns the target link of a u32 filter whose first action redirects by `mirred`. `None` is for a filter of another
/// kind, whose attributes have other meanings, and for one without such an action. A mirroring action passes on a copy
/// and redirects nothing. The link's index is in the parameters of the action: options, actions, the first one's options,
/// parameters.
pub(super) fn redirection(message: &Message<'_>) -> Parsed<Option<u32>> {
    if message.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let (kind, options) = kind_and_options(message)?;
    if kind != U32 {
        return Ok(None);
    }
    let mut inner = options.unwrap_or_default();
    for kind in [TCA_U32_ACT, FIRST_ACTION, TCA_ACT_OPTIONS] {
        inner = Attributes::new(inner.find(kind)?.unwrap_or_default());
    }
    let Some(parameters) = inner.find(TCA_MIRRED_PARMS)? else { return Ok(None) };
    let redirects = u32_ne(parameters, TC_MIRRED_EACTION)
        .is_some_and(|action| [TCA_EGRESS_REDIR, TCA_INGRESS_REDIR].contains(&action));
    Ok(if redirects { u32_ne(parameters, TC_MIRRED_IFINDEX) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::rtnetlink::{TCA_KIND, TCA_OPTIONS, TCMSG};

    fn message(body: &[u8]) -> Message<'_> {
        Message { kind: RTM_NEWTFILTER, flags: 0, seq: 0, port: 0, body }
    }

    /// Returns an attribute (`struct nlattr`), padded to four bytes.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Returns the body of an RTM_NEWTFILTER.
    fn filter(kind: &str, options: &[u8]) -> Vec<u8> {
        let name = [kind.as_bytes(), &[0]].concat();
        [vec![0; TCMSG], attribute(TCA_KIND, &name), attribute(TCA_OPTIONS, options)].concat()
    }

    fn programs(body: &[u8]) -> Option<String> {
        super::super::programs::read(&message(body)).unwrap()
    }

    #[test]
    fn attributes_of_another_kind_are_no_actions() {
        // The name of an eBPF program, and the mask of a source MAC, have the number of u32's actions.
        let bpf = filter("bpf", &attribute(TCA_U32_ACT, b"cil_from_netdev\0"));
        assert_eq!(programs(&bpf).as_deref(), Some("bpf cil_from_netdev"));
        let flower = filter("flower", &attribute(TCA_U32_ACT, &[0xff; 6]));
        assert_eq!(programs(&flower).as_deref(), Some("flower"));
    }

    #[test]
    fn a_mirroring_action_redirects_nothing() {
        const TCA_EGRESS_MIRROR: u32 = 2;
        for (action, expected) in [(TCA_EGRESS_REDIR, Some(7)), (TCA_EGRESS_MIRROR, None)] {
            let parameters = super::super::struct_of(&[0, 0, 0, 0, 0, action, 7]);
            let options = attribute(TCA_ACT_OPTIONS, &attribute(TCA_MIRRED_PARMS, &parameters));
            let body = filter(U32, &attribute(TCA_U32_ACT, &attribute(FIRST_ACTION, &options)));

            assert_eq!(redirection(&message(&body)).unwrap(), expected);
        }
    }
}
