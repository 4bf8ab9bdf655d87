//! Hierarchical token buckets, where a limit is for some packets only: two classes at a link's
//! root, one with a rate, and [`super::sort`]'s filters between them. It is what newer Go plugins
//! make, so that either set finds its way in the other's.
//!
//! ```text
//! tc qdisc add dev LINK root handle 1: htb default 30
//! tc class add dev LINK parent 1: classid 1:30 htb rate 8mbit burst 20k
//! tc class add dev LINK parent 1: classid 1:1 htb rate 800gbit
//! tc qdisc add dev LINK parent 1:30 handle 30: bfifo limit 176072
//! ```
//!
//! The netlink crates have no types for the options: `struct tc_htb_glob`, `struct tc_htb_opt`
//! and `struct tc_fifo_qopt` of include/uapi/linux/pkt_sched.h.

use netlink_packet_core::{DefaultNla, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcOption};

use super::filter::nested;
use super::qdisc::{ROOT_HANDLE, TCA_OPTIONS, TCMSG, Tbf, is_of, of_link};
use super::request::{Mode, encode};
use super::wire::{Attributes, Malformed, Message, u32_at};
use super::{Netlink, Request, Result};

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// `struct tc_ratespec` has the rate behind 8 bytes; two of these stand before the bucket.
const RATE: usize = 8;
const BUFFER: usize = 24;
/// Behind version and rate2quantum.
const DEFAULT: usize = 8;
/// The rate of the class without a limit, in bytes per second, as the Go plugin has it.
const UNCAPPED: u64 = 100_000_000_000;
/// A millisecond in ticks of 64 ns: at that rate more than a link ever has waiting.
const UNCAPPED_BUFFER: u32 = 15_625;
/// Two packets at the largest that TCP puts together. Unlike `tbf` this kind doesn't cut them,
/// and a queue that is too short for one would never let it through.
const QUEUE: u32 = 2 * 65_536;
const LEAF_HANDLE: TcHandle = TcHandle { major: 0x30, minor: 0 };

/// Where packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Through at once: `1:1`.
    Free,
    /// The class with the rate: `1:30`, in hexadecimal digits as all of them.
    Limited,
}

impl Class {
    pub(super) fn handle(self) -> TcHandle {
        TcHandle { major: 1, minor: if self == Class::Free { 1 } else { 0x30 } }
    }

    /// The class with this handle, if it is one of the two.
    pub(super) fn named(handle: u32) -> Option<Self> {
        [Class::Free, Class::Limited].into_iter().find(|class| u32::from(class.handle()) == handle)
    }
}

/// The rate of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The class.
    pub class: Class,
    /// Bytes per second.
    pub rate: u64,
    /// The size of the bucket: the time that it takes to fill it, in ticks of 64 ns.
    pub buffer: u32,
}

/// `tc qdisc add dev LINK root handle 1: htb`, and `rest` for all packets that no filter sorts.
/// EEXIST if a qdisc has been put there. `name` is for messages, here as below.
pub fn add(index: u32, name: &str, rest: Class) -> Request {
    // Version, rate2quantum, the default class, and two fields that are only read.
    let glob = [3, 10, u32::from(rest.handle().minor), 0, 0].map(u32::to_ne_bytes).concat();
    let mut message = of_link(index, ROOT_HANDLE, TcHandle::ROOT);
    message.attributes = vec![
        TcAttribute::Kind("htb".into()),
        TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(TCA_HTB_INIT, glob))]),
    ];
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    Request::new(format!("add qdisc htb to {name}"), Mode::Create, message)
}

/// The two classes, the limited one with the rate and the burst of `limit`, and a queue as long
/// as its own would be.
pub fn classes(index: u32, name: &str, limit: &Tbf) -> Vec<Request> {
    let mut leaf = of_link(index, LEAF_HANDLE, Class::Limited.handle());
    let length = limit.limit.saturating_add(QUEUE).to_ne_bytes().to_vec();
    leaf.attributes =
        vec![TcAttribute::Kind("bfifo".into()), TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, length))];
    let leaf = RouteNetlinkMessage::NewQueueDiscipline(leaf);
    let free = Bucket { class: Class::Free, rate: UNCAPPED, buffer: UNCAPPED_BUFFER };
    let limited = Bucket { class: Class::Limited, rate: limit.rate, buffer: limit.buffer };
    vec![
        class(index, name, &limited),
        class(index, name, &free),
        Request::new(format!("add qdisc bfifo to {name}"), Mode::Create, leaf),
    ]
}

/// `tc class add dev LINK parent 1: classid … htb rate … ceil …`, the ceiling being the rate.
fn class(index: u32, name: &str, bucket: &Bucket) -> Request {
    let narrow = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    let ratespec = [0, 0, narrow];
    // How much it may send in its turn. The kernel would write to its log what it thinks of a
    // tenth of the rate.
    let quantum = u32::try_from(bucket.rate / 10).unwrap_or(u32::MAX).clamp(1514, 200_000);
    let parameters = [&ratespec[..], &ratespec, &[bucket.buffer, bucket.buffer, quantum, 0, 0]].concat();
    let parameters: Vec<u8> = parameters.into_iter().flat_map(u32::to_ne_bytes).collect();
    let mut options = vec![TcOption::Other(DefaultNla::new(TCA_HTB_PARMS, parameters))];
    if bucket.rate > u64::from(u32::MAX) {
        let long = |kind| TcOption::Other(DefaultNla::new(kind, bucket.rate.to_ne_bytes().to_vec()));
        options.extend([TCA_HTB_RATE64, TCA_HTB_CEIL64].map(long));
    }
    let mut message = of_link(index, bucket.class.handle(), ROOT_HANDLE);
    message.attributes = vec![TcAttribute::Kind("htb".into()), TcAttribute::Options(options)];
    let what =
        format!("add class {:x} of {} bytes per second to {name}", bucket.class.handle().minor, bucket.rate);
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewTrafficClass(message))
}

impl Netlink {
    /// Which of the two classes of a link's root qdisc there are.
    ///
    /// # Errors
    /// ENODEV if the link is gone.
    pub fn buckets(&mut self, index: u32) -> Result<Vec<Bucket>> {
        let message = of_link(index, TcHandle::UNSPEC, TcHandle::UNSPEC);
        let message = encode(RouteNetlinkMessage::GetTrafficClass(message), NLM_F_REQUEST | NLM_F_DUMP);
        self.dump_raw(
            "list classes",
            &message,
            |message| {
                if is_of(message, index) { read(message) } else { Ok(None) }
            },
        )
    }
}

pub(super) fn read(message: &Message<'_>) -> std::result::Result<Option<Bucket>, Malformed> {
    let Some(class) = u32_at(message.body, 8).and_then(Class::named) else { return Ok(None) };
    let Some(options) = nested(Attributes::behind(message.body, TCMSG), TCA_OPTIONS)? else {
        return Ok(None);
    };
    let Some(parameters) = nested(Attributes::new(options), TCA_HTB_PARMS)? else { return Ok(None) };
    let long = nested(Attributes::new(options), TCA_HTB_RATE64)?;
    let long = long.and_then(|value| value.try_into().ok()).map(u64::from_ne_bytes);
    let (Some(rate), Some(buffer)) = (u32_at(parameters, RATE), u32_at(parameters, BUFFER)) else {
        return Err(Malformed("the options of a class are too short"));
    };
    Ok(Some(Bucket { class, rate: long.unwrap_or(rate.into()), buffer }))
}

/// The class of what no filter has sorted, by the qdisc's options.
pub(super) fn default_class(options: &[u8]) -> std::result::Result<Option<Class>, Malformed> {
    let minor = nested(Attributes::new(options), TCA_HTB_INIT)?.and_then(|glob| u32_at(glob, DEFAULT));
    Ok(minor.and_then(|minor| Class::named(u32::from(ROOT_HANDLE) | minor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_netns;

    #[test]
    fn what_is_set_is_read() {
        in_netns("htb", || {
            let mut netlink = Netlink::open().unwrap();
            let lo = netlink.link("lo").unwrap().index;
            assert!(netlink.knows_qdisc("htb").unwrap());
            assert!(netlink.buckets(lo).unwrap().is_empty());
            for rest in [Class::Free, Class::Limited] {
                for limit in [Tbf::new(1000, 100_000, 25), Tbf::new(5 << 32, 1 << 30, 25)] {
                    netlink.execute(add(lo, "lo", rest)).unwrap();
                    let root = netlink.root_qdisc(lo).unwrap().unwrap();
                    assert_eq!((root.kind.as_str(), root.major, root.default_class), ("htb", 1, Some(rest)));
                    netlink.execute_all(classes(lo, "lo", &limit)).unwrap();
                    let mut found = netlink.buckets(lo).unwrap();
                    found.sort_by_key(|bucket| u32::from(bucket.class.handle()));
                    let limited = Bucket { class: Class::Limited, rate: limit.rate, buffer: limit.buffer };
                    let free = Bucket { class: Class::Free, rate: UNCAPPED, buffer: UNCAPPED_BUFFER };
                    assert_eq!(found, [free, limited]);
                    netlink.execute(crate::qdisc::del_root(lo, "lo")).unwrap();
                }
            }
        });
    }

    #[test]
    fn broken_options() {
        for options in [&[8, 0, 1, 0, 0, 0, 0][..], &[9, 0, 2, 0]] {
            assert!(default_class(options).is_err(), "{options:?}");
        }
        assert_eq!(default_class(&[8, 0, 2, 0, 0, 0, 0, 0]), Ok(None));
    }
}
