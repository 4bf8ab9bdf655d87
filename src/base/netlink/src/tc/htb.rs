//! Hierarchical token buckets, a limit for some packets only: two classes at a link's root, one with a rate, and the
//! filters of [`subnet`](super::subnet) that choose between them. Newer Go plugins make the same, so that either set
//! can remove the other's.
//!
//! ```text
//! tc qdisc add dev LINK root handle 1: htb default 30
//! tc class add dev LINK parent 1: classid 1:30 htb rate 8mbit burst 20k
//! tc class add dev LINK parent 1: classid 1:1 htb rate 800gbit
//! tc qdisc add dev LINK parent 1:30 handle 30: bfifo limit 176072
//! ```
//!
//! `struct tc_htb_glob`, `struct tc_htb_opt` and `struct tc_fifo_qopt` of linux/pkt_sched.h.

use super::tbf::Tbf;
use super::{Handle, handle_of, header, is_of, kind_and_options, struct_of, write_kind};
use crate::request::Mode;
use crate::uapi::pkt_sched::{
    TC_HTB_GLOB_DEFCLS, TC_HTB_OPT_BUFFER, TC_HTB_OPT_RATE, TC_HTB_PROTOVER, TCA_HTB_CEIL64, TCA_HTB_INIT,
    TCA_HTB_PARMS, TCA_HTB_RATE64,
};
use crate::uapi::rtnetlink::{RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS, TCA_KIND, TCA_OPTIONS};
use crate::wire::{self, Attributes, Malformed, Message, Parsed, u32_ne};
use crate::{Netlink, Request, Result};

/// The kind of the qdisc and of its classes.
const KIND: &str = "htb";

/// The rate of the class without a limit, in bytes per second. Newer Go plugins have the same.
pub(super) const UNCAPPED: u64 = 100_000_000_000;
/// A millisecond in ticks of 64 ns. At [`UNCAPPED`] that is 100 MB, more than a link ever has waiting.
pub(super) const UNCAPPED_BUFFER: u32 = 15_625;
/// Bytes that the queue holds beside a token bucket's limit: two of the largest packets that TCP puts together. Unlike
/// `tbf` this kind doesn't cut them. A queue that is too short for one would never let it through.
const QUEUE: u32 = 2 * 65_536;
/// The handle of the queue below the limited class.
const LEAF: Handle = Handle::new(0x30, 0);

/// A class that packets go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The class without a limit: `1:1`.
    Free,
    /// The class with the rate: `1:30`, in hexadecimal digits as all of them.
    Limited,
}

impl Class {
    pub(super) fn handle(self) -> Handle {
        Handle::new(1, if self == Class::Free { 1 } else { 0x30 })
    }

    /// The class with this handle, if it is one of the two.
    pub(super) fn named(handle: Handle) -> Option<Self> {
        [Class::Free, Class::Limited].into_iter().find(|class| class.handle() == handle)
    }
}

/// A class with its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The handle of the class.
    pub class: Class,
    /// The rate in bytes per second.
    pub rate: u64,
    /// The size of the bucket: the time that it takes to fill it, in ticks of 64 ns.
    pub buffer: u32,
}

/// `tc qdisc add dev LINK root handle 1: htb default …`: packets that no filter matches go to `rest`. The kernel
/// refuses it with EEXIST if the link already has a root qdisc other than the default one. In this module `name` is the
/// link's name, for messages.
pub fn add(index: u32, name: &str, rest: Class) -> Request {
    // Version, rate2quantum, the default class, and two fields that are only read.
    let glob = struct_of(&[TC_HTB_PROTOVER, 10, rest.handle().minor().into(), 0, 0]);
    let header = header(index, Handle::AT_ROOT, Handle::ROOT);
    Request::written(format!("add qdisc htb to {name}"), Mode::Create, RTM_NEWQDISC, &header, |w| {
        write_kind(w, KIND, |w| w.bytes(TCA_HTB_INIT, &glob));
    })
}

/// Returns the requests for the two classes and a queue below the limited one, to be carried out in this order after
/// [`add`]. The limited class has the rate and the burst of `limit`. Its queue holds the bytes of a token bucket, and
/// two of the largest packets more.
pub fn classes(index: u32, name: &str, limit: &Tbf) -> Vec<Request> {
    let free = Bucket { class: Class::Free, rate: UNCAPPED, buffer: UNCAPPED_BUFFER };
    let limited = Bucket { class: Class::Limited, rate: limit.rate, buffer: limit.buffer };
    vec![class(index, name, &limited), class(index, name, &free), leaf(index, name, limit)]
}

/// `tc qdisc add dev LINK parent 1:30 handle 30: bfifo limit …`
fn leaf(index: u32, name: &str, limit: &Tbf) -> Request {
    let header = header(index, LEAF, Class::Limited.handle());
    Request::written(format!("add qdisc bfifo to {name}"), Mode::Create, RTM_NEWQDISC, &header, |w| {
        w.text(TCA_KIND, "bfifo");
        // `struct tc_fifo_qopt`, which consists of the limit.
        w.u32_ne(TCA_OPTIONS, limit.limit.saturating_add(QUEUE));
    })
}

/// `tc class add dev LINK parent 1: classid … htb rate … ceil …`. The ceiling is the rate, so a class borrows from no
/// other.
fn class(index: u32, name: &str, bucket: &Bucket) -> Request {
    let narrow = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    // The number of bytes that the class may send in its turn. The kernel would take a tenth of the rate, and log a
    // warning if that is too small or too large.
    let quantum = u32::try_from(bucket.rate / 10).unwrap_or(u32::MAX).clamp(1514, 200_000);
    // Two `struct tc_ratespec` of three words, the last being the rate; two buffers, the quantum, and two unused
    // fields.
    let opt = struct_of(&[0, 0, narrow, 0, 0, narrow, bucket.buffer, bucket.buffer, quantum, 0, 0]);
    let handle = bucket.class.handle();
    let what = format!("add class {:x} of {} bytes per second to {name}", handle.minor(), bucket.rate);
    let header = header(index, handle, Handle::AT_ROOT);
    Request::written(what, Mode::Create, RTM_NEWTCLASS, &header, |w| {
        write_kind(w, KIND, |w| {
            w.bytes(TCA_HTB_PARMS, &opt);
            if bucket.rate > u64::from(u32::MAX) {
                w.u64_ne(TCA_HTB_RATE64, bucket.rate);
                w.u64_ne(TCA_HTB_CEIL64, bucket.rate);
            }
        });
    })
}

impl Netlink {
    /// `tc class show dev LINK`. Returns those of the two classes that exist. The list is empty if the link is gone.
    ///
    /// # Errors
    /// Fails if the kernel refuses to list the classes, or lists one that can't be read.
    pub fn buckets(&mut self, index: u32) -> Result<Vec<Bucket>> {
        let header = header(index, Handle::UNSPEC, Handle::UNSPEC);
        let message = wire::list(RTM_GETTCLASS, &header);
        self.dump_raw(
            "list classes",
            &message,
            |message| {
                if is_of(message, index) { read(message) } else { Ok(None) }
            },
        )
    }
}

/// Reads one of the two classes from an RTM_NEWTCLASS. `None` for any other class.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<Bucket>> {
    let Some(class) = handle_of(message).and_then(Class::named) else { return Ok(None) };
    let (kind, options) = kind_and_options(message)?;
    let Some(options) = options.filter(|_| kind == KIND) else { return Ok(None) };
    let Some(opt) = options.find(TCA_HTB_PARMS)? else { return Ok(None) };
    let long = options.find(TCA_HTB_RATE64)?;
    let long = long.and_then(|value| value.try_into().ok()).map(u64::from_ne_bytes);
    let (Some(rate), Some(buffer)) = (u32_ne(opt, TC_HTB_OPT_RATE), u32_ne(opt, TC_HTB_OPT_BUFFER)) else {
        return Err(Malformed("the options of a class are too short"));
    };
    Ok(Some(Bucket { class, rate: long.unwrap_or(rate.into()), buffer }))
}

/// Reads the class of packets that no filter matches from the options of the qdisc. `None` if it is none of the two.
pub(super) fn default_class(options: Attributes<'_>) -> Parsed<Option<Class>> {
    let minor = options.find(TCA_HTB_INIT)?.and_then(|glob| u32_ne(glob, TC_HTB_GLOB_DEFCLS));
    Ok(minor.and_then(|minor| Class::named(Handle(Handle::AT_ROOT.0 | minor))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_options() {
        for options in [&[8, 0, 1, 0, 0, 0, 0][..], &[9, 0, 2, 0]] {
            assert!(default_class(Attributes::new(options)).is_err(), "{options:?}");
        }
        assert_eq!(default_class(Attributes::new(&[8, 0, 2, 0, 0, 0, 0, 0])), Ok(None));
    }
}
