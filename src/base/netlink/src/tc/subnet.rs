//! Filters of a link's root qdisc that choose a class by the subnet of one of a packet's addresses. `struct tc_u32_sel`
//! and `struct tc_u32_key` of linux/pkt_cls.h.
//!
//! ```text
//! tc filter add dev LINK parent 1: prio 16 protocol ip u32 match ip dst 10.0.0.0/8 flowid 1:1
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use super::filter::{self, Key, U32};
use super::htb::Class;
use super::{Handle, header_with, info_of, kind_and_options, write_kind};
use crate::request::Mode;
use crate::uapi::pkt_cls::{
    TC_U32_KEY, TC_U32_KEY_MASK, TC_U32_KEY_OFF, TC_U32_KEY_VAL, TC_U32_SEL, TC_U32_SEL_NKEYS,
    TCA_U32_CLASSID, TCA_U32_SEL,
};
use crate::uapi::rtnetlink::RTM_NEWTFILTER;
use crate::wire::{Message, Parsed, u8_at, u32_be, u32_ne};
use crate::{Netlink, Request, Result};

const ETH_P_IP: u16 = libc::ETH_P_IP as u16;
const ETH_P_IPV6: u16 = libc::ETH_P_IPV6 as u16;
/// The priorities of the filters. The kernel allows only one protocol in a priority.
const IPV4_PRIORITY: u16 = 16;
const IPV6_PRIORITY: u16 = 15;

/// The offsets of the addresses in `struct iphdr` (linux/ip.h).
const IPV4_SOURCE: u32 = 12;
const IPV4_DESTINATION: u32 = 16;
/// The offsets of the addresses in `struct ipv6hdr` (linux/ipv6.h).
const IPV6_SOURCE: u32 = 8;
const IPV6_DESTINATION: u32 = 24;

/// The address of a packet that a filter compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The source address, `src`.
    Source,
    /// The destination address, `dst`.
    Destination,
}

impl End {
    /// Returns the offset of the address from the beginning of the IP header of the subnet's family.
    fn offset(self, subnet: IpNetwork) -> u32 {
        match (self, subnet) {
            (End::Source, IpNetwork::V4(_)) => IPV4_SOURCE,
            (End::Destination, IpNetwork::V4(_)) => IPV4_DESTINATION,
            (End::Source, IpNetwork::V6(_)) => IPV6_SOURCE,
            (End::Destination, IpNetwork::V6(_)) => IPV6_DESTINATION,
        }
    }
}

/// A filter: packets with one address in a subnet go to a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubnetFilter {
    /// The subnet, without host bits.
    pub subnet: IpNetwork,
    /// The address that is compared.
    pub end: End,
    /// The class that packets go to.
    pub class: Class,
}

impl SubnetFilter {
    /// Returns a filter that sends packets with `end` in `subnet` to `class`. Host bits of `subnet` are cleared.
    pub fn new(subnet: IpNetwork, end: End, class: Class) -> Self {
        let subnet = IpNetwork::new(subnet.network(), subnet.prefix()).unwrap_or(subnet);
        SubnetFilter { subnet, end, class }
    }

    /// Returns the words of the address that must be compared, with their masks. The filter of a subnet of prefix
    /// length 0 has a key that matches all packets.
    fn keys(&self) -> Vec<Key> {
        let offset = self.end.offset(self.subnet);
        let words = words(self.subnet.ip()).into_iter().zip(words(self.subnet.mask()));
        let mut keys: Vec<_> = words
            .zip((offset..).step_by(4))
            .filter(|((_, mask), _)| *mask != 0)
            .map(|((value, mask), offset)| Key { mask, value, offset })
            .collect();
        if keys.is_empty() {
            // An empty mask matches all packets.
            keys.push(Key::default());
        }
        keys
    }
}

/// Splits an address into words of 32 bits, the first in front.
fn words(ip: IpAddr) -> Vec<u32> {
    match ip {
        IpAddr::V4(ip) => vec![ip.to_bits()],
        IpAddr::V6(ip) => (0..4).rev().map(|word| (ip.to_bits() >> (32 * word)) as u32).collect(),
    }
}

/// `tc filter add dev LINK parent 1: … u32 match ip src|dst SUBNET flowid CLASS`. The link must have the root qdisc
/// [`htb`](super::htb). `name` is the link's name, for messages.
pub fn add(index: u32, name: &str, filter: &SubnetFilter) -> Request {
    let (protocol, priority) = match filter.subnet {
        IpNetwork::V4(_) => (ETH_P_IP, IPV4_PRIORITY),
        IpNetwork::V6(_) => (ETH_P_IPV6, IPV6_PRIORITY),
    };
    let header = header_with(index, Handle::UNSPEC, Handle::AT_ROOT, filter::info(priority, protocol));
    let what = format!("sort packets of {} on {name}", filter.subnet);
    Request::written(what, Mode::Create, RTM_NEWTFILTER, &header, |w| {
        write_kind(w, U32, |w| {
            w.u32_ne(TCA_U32_CLASSID, filter.class.handle().0);
            w.bytes(TCA_U32_SEL, &filter::selector(&filter.keys()));
        });
    })
}

impl Netlink {
    /// `tc filter show dev LINK parent 1:`. Returns the filters that choose one of the two classes by subnet, in the
    /// kernel's order. The list is empty if there is no link or no such qdisc.
    ///
    /// # Errors
    /// Fails if the kernel refuses to list the filters, other than for a missing qdisc.
    pub fn subnet_filters(&mut self, index: u32) -> Result<Vec<SubnetFilter>> {
        self.filters(index, Handle::AT_ROOT, read)
    }
}

/// Reads a filter that sends packets with one address in a subnet to one of the two classes. `None` for any other
/// filter.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<SubnetFilter>> {
    let Some(info) = info_of(message) else { return Ok(None) };
    let (kind, options) = kind_and_options(message)?;
    let Some(options) = options.filter(|_| kind == U32) else { return Ok(None) };
    let class = options.find(TCA_U32_CLASSID)?.and_then(|value| u32_ne(value, 0));
    let class = class.and_then(|handle| Class::named(Handle(handle)));
    let selector = options.find(TCA_U32_SEL)?;
    let (Some(class), Some(selector)) = (class, selector) else { return Ok(None) };
    let count = usize::from(u8_at(selector, TC_U32_SEL_NKEYS).unwrap_or(0));
    let keys = selector.get(TC_U32_SEL..).unwrap_or_default().chunks_exact(TC_U32_KEY).take(count);
    Ok(network(u16::from_be(info as u16), keys).map(|(subnet, end)| SubnetFilter { subnet, end, class }))
}

/// Returns the subnet that the keys of a filter compare, and the address that they compare. `None` if the keys are not
/// those of one subnet.
fn network<'a>(protocol: u16, keys: impl Iterator<Item = &'a [u8]>) -> Option<(IpNetwork, End)> {
    let (source, destination, length) = match protocol {
        ETH_P_IP => (IPV4_SOURCE, IPV4_DESTINATION, 1),
        ETH_P_IPV6 => (IPV6_SOURCE, IPV6_DESTINATION, 4),
        _ => return None,
    };
    let (mut ip, mut mask, mut end) = (0_u128, 0_u128, None);
    for key in keys {
        let part = u32_be(key, TC_U32_KEY_MASK)?;
        if part == 0 {
            continue;
        }
        let offset = u32_ne(key, TC_U32_KEY_OFF)?;
        let (this, begin) =
            if offset >= destination { (End::Destination, destination) } else { (End::Source, source) };
        let word = offset.checked_sub(begin)? / 4;
        if word >= length || end.is_some_and(|end| end != this) {
            return None;
        }
        end = Some(this);
        let shift = 32 * (length - 1 - word);
        mask |= u128::from(part) << shift;
        ip |= u128::from(u32_be(key, TC_U32_KEY_VAL)?) << shift;
    }
    let (ip, mask) = if protocol == ETH_P_IP {
        (IpAddr::from(Ipv4Addr::from_bits(ip as u32)), IpAddr::from(Ipv4Addr::from_bits(mask as u32)))
    } else {
        (IpAddr::from(Ipv6Addr::from_bits(ip)), IpAddr::from(Ipv6Addr::from_bits(mask)))
    };
    let prefix = ipnetwork::ip_mask_to_prefix(mask).ok()?;
    // A filter that matches everything compares no address. It is reported as one for destinations.
    Some((IpNetwork::new(ip, prefix).ok()?, end.unwrap_or(End::Destination)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_no_network() {
        let key = |mask: u32, offset: u32| {
            let mut key = mask.to_be_bytes().to_vec();
            key.extend([0; 4]);
            key.extend(offset.to_ne_bytes());
            key.extend([0; 4]);
            key
        };
        for (protocol, keys) in [
            (ETH_P_IP, vec![key(0xff00_ff00, 12)]),
            (ETH_P_IP, vec![key(0xff00_0000, 12), key(0xff00_0000, 16)]),
            (ETH_P_IP, vec![key(0xff00_0000, 20)]),
            (ETH_P_IP, vec![key(0xff00_0000, 4)]),
            (ETH_P_IPV6, vec![key(u32::MAX, 12)]),
            (ETH_P_IPV6, vec![key(u32::MAX, 40)]),
            (ETH_P_IP, vec![vec![1; 8]]),
        ] {
            assert_eq!(network(protocol, keys.iter().map(Vec::as_slice)), None, "{keys:?}");
        }
    }
}
