//! Traffic control: `tc`. linux/pkt_sched.h, linux/pkt_cls.h. The netlink crates have no types for `tbf` and `htb`.
//!
//! A limit for all packets of a link is a token bucket at its root ([`tbf`]). A limit for some of them is two classes
//! ([`htb`]), and filters that choose by subnet ([`subnet`]). Received packets are redirected ([`redirect`]) to another
//! link with a limit at its root. [`qdisc`] finds and removes existing qdiscs.

pub(crate) mod filter;
pub mod htb;
pub(crate) mod programs;
pub mod qdisc;
pub mod redirect;
pub mod subnet;
pub mod tbf;

#[cfg(test)]
mod tests;

use crate::uapi::pkt_sched::{TC_H_INGRESS, TC_H_ROOT, TC_H_UNSPEC};
use crate::uapi::rtnetlink::{TCA_KIND, TCA_OPTIONS, TCM_HANDLE, TCM_IFINDEX, TCM_INFO, TCMSG};
use crate::wire::{Attributes, Malformed, Message, Writer, text, u32_ne};

/// `MAJOR:MINOR` in a link's tree of qdiscs and classes, in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle(u32);

impl Handle {
    const UNSPEC: Handle = Handle(TC_H_UNSPEC);
    const ROOT: Handle = Handle(TC_H_ROOT);
    const INGRESS: Handle = Handle(TC_H_INGRESS);
    const AT_ROOT: Handle = Handle::new(1, 0);
    /// `ffff:`, the only handle that the kernel accepts for the qdisc `ingress`.
    const AT_INGRESS: Handle = Handle::new(0xffff, 0);

    const fn new(major: u16, minor: u16) -> Self {
        Handle((major as u32) << 16 | minor as u32)
    }

    fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn minor(self) -> u16 {
        self.0 as u16
    }
}

/// Returns a `struct tcmsg` for the object `handle` below `parent`, on the link `index`.
fn header(index: u32, handle: Handle, parent: Handle) -> [u8; TCMSG] {
    header_with(index, handle, parent, 0)
}

/// Like [`header`], with `info` as `tcm_info`: for a filter its priority and protocol.
fn header_with(index: u32, handle: Handle, parent: Handle, info: u32) -> [u8; TCMSG] {
    let mut header = [0; TCMSG];
    // The first word is the family and padding.
    let fields = [0, index, handle.0, parent.0, info];
    for (place, field) in header.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    header
}

/// Writes TCA_KIND, and TCA_OPTIONS with what `options` writes.
fn write_kind(w: &mut Writer, kind: &str, options: impl FnOnce(&mut Writer)) {
    w.text(TCA_KIND, kind);
    w.nest_unflagged(TCA_OPTIONS, options);
}

/// Returns the bytes of a C structure of 32-bit fields. Unlike in netfilter they have the host's byte order.
fn struct_of(fields: &[u32]) -> Vec<u8> {
    fields.iter().copied().flat_map(u32::to_ne_bytes).collect()
}

/// Returns true if the message is about the link `index`. A dump may be of other links, too.
fn is_of(message: &Message<'_>, index: u32) -> bool {
    u32_ne(message.body, TCM_IFINDEX) == Some(index)
}

fn handle_of(message: &Message<'_>) -> Option<Handle> {
    u32_ne(message.body, TCM_HANDLE).map(Handle)
}

fn info_of(message: &Message<'_>) -> Option<u32> {
    u32_ne(message.body, TCM_INFO)
}

fn attributes_of<'a>(message: &Message<'a>) -> Attributes<'a> {
    Attributes::behind(message.body, TCMSG)
}

/// Reads TCA_KIND and TCA_OPTIONS. An absent kind is empty.
fn kind_and_options<'a>(message: &Message<'a>) -> Result<(String, Option<Attributes<'a>>), Malformed> {
    let (mut kind, mut options) = (String::new(), None);
    for attribute in attributes_of(message) {
        match attribute? {
            (TCA_KIND, value) => kind = text(value),
            (TCA_OPTIONS, value) => options = Some(Attributes::new(value)),
            _ => {}
        }
    }
    Ok((kind, options))
}
