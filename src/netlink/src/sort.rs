//! Filters of a link's root qdisc that sort packets into classes by the network of one of their
//! addresses:
//!
//! ```text
//! tc filter add dev LINK parent 1: prio 16 protocol ip u32 match ip dst 10.0.0.0/8 flowid 1:1
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};

use super::filter::{U32_SEL, nested};
use super::htb::Class;
use super::qdisc::{ROOT_HANDLE, TCA_OPTIONS, TCMSG, of_link};
use super::request::Mode;
use super::wire::{Attributes, Malformed, Message, u8_at, u32_at};
use super::{Netlink, Request, Result};

const U32_CLASSID: u16 = 1;
/// Length of `struct tc_u32_sel` without keys, and of a `struct tc_u32_key`.
const SELECTOR: usize = 16;
const KEY: usize = 16;
/// ETH_P_IP and ETH_P_IPV6, each with a priority of its own, as one has only one protocol.
const IPV4: (u16, u16) = (0x0800, 16);
const IPV6: (u16, u16) = (0x86dd, 15);

/// Which address of a packet counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl End {
    /// Where the address stands, counted from the beginning of the IP header.
    fn offset(self, subnet: IpNetwork) -> i32 {
        match (self, subnet) {
            (End::Source, IpNetwork::V4(_)) => 12,
            (End::Destination, IpNetwork::V4(_)) => 16,
            (End::Source, IpNetwork::V6(_)) => 8,
            (End::Destination, IpNetwork::V6(_)) => 24,
        }
    }
}

/// A filter that sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sorted {
    /// The network, without host bits.
    pub subnet: IpNetwork,
    /// The address that is looked at.
    pub end: End,
    /// The class that packets go to.
    pub class: Class,
}

impl Sorted {
    /// Packets whose `end` is in `subnet` go to `class`.
    pub fn new(subnet: IpNetwork, end: End, class: Class) -> Self {
        let subnet = IpNetwork::new(subnet.network(), subnet.prefix()).unwrap_or(subnet);
        Sorted { subnet, end, class }
    }

    /// The words of address and mask that must be compared.
    fn keys(&self) -> Vec<TcU32Key> {
        let offset = self.end.offset(self.subnet);
        let words = words(self.subnet.ip()).into_iter().zip(words(self.subnet.mask()));
        let mut keys: Vec<_> = words
            .zip((offset..).step_by(4))
            .filter(|((_, mask), _)| *mask != 0)
            .map(|((val, mask), off)| {
                let mut key = TcU32Key::default();
                (key.mask, key.val, key.off) = (mask, val, off);
                key
            })
            .collect();
        if keys.is_empty() {
            // One with an empty mask, which all packets match.
            keys.push(TcU32Key::default());
        }
        keys
    }
}

fn words(ip: IpAddr) -> Vec<u32> {
    match ip {
        IpAddr::V4(ip) => vec![ip.to_bits()],
        IpAddr::V6(ip) => (0..4).rev().map(|word| (ip.to_bits() >> (32 * word)) as u32).collect(),
    }
}

/// The filter, for the link's root qdisc. `name` is for messages.
pub fn add(index: u32, name: &str, sorted: &Sorted) -> Request {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.keys = sorted.keys();
    selector.nkeys = u8::try_from(selector.keys.len()).unwrap_or(u8::MAX);
    let options = [TcFilterU32Option::ClassId(sorted.class.handle()), TcFilterU32Option::Selector(selector)];
    let (protocol, priority) = if sorted.subnet.is_ipv4() { IPV4 } else { IPV6 };
    let mut message = of_link(index, TcHandle::UNSPEC, ROOT_HANDLE);
    message.header.info = (u32::from(priority) << 16) | u32::from(protocol.to_be());
    message.attributes = vec![
        TcAttribute::Kind(TcFilterU32::KIND.into()),
        TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()),
    ];
    let what = format!("sort packets of {} on {name}", sorted.subnet);
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewTrafficFilter(message))
}

impl Netlink {
    /// The filters of the link's root qdisc that sort by network into one of the two classes, in
    /// the kernel's order. Others are left out.
    ///
    /// # Errors
    /// The kernel's; that there is no such qdisc is an empty list.
    pub fn sorted(&mut self, index: u32) -> Result<Vec<Sorted>> {
        self.filters(index, ROOT_HANDLE, read)
    }
}

/// A filter that compares one address, whole words of it, with a network.
pub(super) fn read(message: &Message<'_>) -> std::result::Result<Option<Sorted>, Malformed> {
    let Some(info) = u32_at(message.body, 16) else { return Ok(None) };
    let Some(options) = nested(Attributes::behind(message.body, TCMSG), TCA_OPTIONS)? else {
        return Ok(None);
    };
    let class = nested(Attributes::new(options), U32_CLASSID)?.and_then(|value| u32_at(value, 0));
    let selector = nested(Attributes::new(options), U32_SEL)?;
    let (Some(class), Some(selector)) = (class.and_then(Class::named), selector) else { return Ok(None) };
    let v4 = match u16::from_be(info as u16) {
        protocol if protocol == IPV4.0 => true,
        protocol if protocol == IPV6.0 => false,
        _ => return Ok(None),
    };
    let count = usize::from(u8_at(selector, 2).unwrap_or(0));
    let keys = selector.get(SELECTOR..).unwrap_or_default().chunks_exact(KEY).take(count);
    Ok(network(v4, keys).map(|(subnet, end)| Sorted { subnet, end, class }))
}

/// The network that keys stand for, if they stand for one.
fn network<'a>(v4: bool, keys: impl Iterator<Item = &'a [u8]>) -> Option<(IpNetwork, End)> {
    let (source, destination, length) = if v4 { (12, 16, 1) } else { (8, 24, 4) };
    let (mut ip, mut mask, mut end) = (0_u128, 0_u128, None);
    for key in keys {
        let part = u32::from_be(u32_at(key, 0)?);
        if part == 0 {
            continue;
        }
        let offset = u32_at(key, 8)?;
        let (this, begin) =
            if offset >= destination { (End::Destination, destination) } else { (End::Source, source) };
        let word = offset.checked_sub(begin)? / 4;
        if word >= length || end.is_some_and(|end| end != this) {
            return None;
        }
        end = Some(this);
        let shift = 32 * (length - 1 - word);
        mask |= u128::from(part) << shift;
        ip |= u128::from(u32::from_be(u32_at(key, 4)?)) << shift;
    }
    let (ip, mask) = if v4 {
        (IpAddr::from(Ipv4Addr::from_bits(ip as u32)), IpAddr::from(Ipv4Addr::from_bits(mask as u32)))
    } else {
        (IpAddr::from(Ipv6Addr::from_bits(ip)), IpAddr::from(Ipv6Addr::from_bits(mask)))
    };
    let prefix = ipnetwork::ip_mask_to_prefix(mask).ok()?;
    // What matches everything looks at no address.
    Some((IpNetwork::new(ip, prefix).ok()?, end.unwrap_or(End::Destination)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::htb;
    use crate::qdisc::Tbf;
    use crate::testing::in_netns;

    #[test]
    fn what_is_sorted_is_read() {
        in_netns("prio", || {
            let mut netlink = Netlink::open().unwrap();
            let lo = netlink.link("lo").unwrap().index;
            assert!(netlink.sorted(lo).unwrap().is_empty());
            netlink.execute(htb::add(lo, "lo", Class::Limited)).unwrap();
            let tbf = Tbf::new(1_000_000, 100_000, 25);
            netlink.execute_all(htb::classes(lo, "lo", &tbf)).unwrap();
            assert!(netlink.sorted(lo).unwrap().is_empty());
            let mut expected = Vec::new();
            for (subnet, end) in [
                ("fd00::/8", End::Source),
                ("fd00:1:2:3::/64", End::Destination),
                ("2001:db8::1/128", End::Source),
                ("2001:db8:8000::/33", End::Source),
                ("::/0", End::Destination),
                ("10.1.2.3/32", End::Source),
                ("10.128.0.0/9", End::Destination),
                ("0.0.0.0/0", End::Destination),
            ] {
                for class in [Class::Free, Class::Limited] {
                    let sorted = Sorted::new(subnet.parse().unwrap(), end, class);
                    netlink.execute(add(lo, "lo", &sorted)).unwrap();
                    expected.push(sorted);
                }
            }
            assert_eq!(netlink.sorted(lo).unwrap(), expected);
            // Host bits don't count.
            let bits = Sorted::new("10.129.2.3/9".parse().unwrap(), End::Destination, Class::Free);
            assert!(expected.contains(&bits));
        });
    }

    #[test]
    fn keys_that_are_no_network() {
        let key = |mask: u32, offset: u32| {
            let mut key = mask.to_be_bytes().to_vec();
            key.extend([0; 4]);
            key.extend(offset.to_ne_bytes());
            key.extend([0; 4]);
            key
        };
        for (v4, keys) in [
            (true, vec![key(0xff00_ff00, 12)]),
            (true, vec![key(0xff00_0000, 12), key(0xff00_0000, 16)]),
            (true, vec![key(0xff00_0000, 20)]),
            (true, vec![key(0xff00_0000, 4)]),
            (false, vec![key(u32::MAX, 12)]),
            (false, vec![key(u32::MAX, 40)]),
            (true, vec![vec![1; 8]]),
        ] {
            assert_eq!(network(v4, keys.iter().map(Vec::as_slice)), None, "{keys:?}");
        }
    }
}
