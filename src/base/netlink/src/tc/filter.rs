//! Filters of a qdisc: `tc filter show`. Also the parts that the u32 filters of this crate have in common.

use nix::errno::Errno;

use super::{Handle, header, is_of, kind_and_options};
use crate::uapi::pkt_cls::{
    TC_MIRRED_IFINDEX, TC_U32_TERMINAL, TCA_ACT_OPTIONS, TCA_MIRRED_PARMS, TCA_U32_ACT, TCA_U32_SEL,
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

/// Returns the target link of a u32 filter whose first action is `mirred`. `None` is for a filter without such an
/// action. The link's index is in the parameters of the action: options, actions, the first one's options, parameters.
/// The kind of the filter isn't looked at, and in other kinds the number of TCA_U32_ACT is another attribute's.
pub(super) fn redirection(message: &Message<'_>) -> Parsed<Option<u32>> {
    if message.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let mut inner = super::options_of(message)?.unwrap_or_default();
    for kind in [TCA_U32_ACT, FIRST_ACTION, TCA_ACT_OPTIONS] {
        inner = Attributes::new(inner.find(kind)?.unwrap_or_default());
    }
    Ok(inner.find(TCA_MIRRED_PARMS)?.and_then(|parameters| u32_ne(parameters, TC_MIRRED_IFINDEX)))
}
