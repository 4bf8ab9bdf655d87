//! The numbers that a namespace has for other namespaces: `ip netns list-id`.

use std::os::fd::{AsFd, AsRawFd};

use super::uapi::net_namespace::{NETNSA_FD, NETNSA_NSID};
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{RTM_GETNSID, RTM_NEWNSID};
use super::wire::{self, Attributes, Message, Parsed, u32_ne};
use super::{NetNs, Netlink, Result};

/// `struct rtgenmsg` is one byte, the family.
const RTGENMSG: usize = 1;

impl Netlink {
    /// The number that this socket's namespace has for `ns`, as in [`Link::far`](super::link::Link::far). `None` if it
    /// has none: then no link here leads there.
    pub fn number_of(&mut self, ns: &NetNs) -> Result<Option<i32>> {
        let message = wire::message(RTM_GETNSID, NLM_F_REQUEST, &[0; RTGENMSG], |w| {
            w.u32_ne(NETNSA_FD, ns.as_fd().as_raw_fd().cast_unsigned());
        });
        self.get("look up the number of a namespace", message, read)
    }
}

pub(super) fn read(message: &Message<'_>) -> Parsed<Option<i32>> {
    if message.kind != RTM_NEWNSID {
        return Ok(None);
    }
    let number = Attributes::behind(message.body, RTGENMSG).find(NETNSA_NSID)?;
    let number = number.and_then(|number| u32_ne(number, 0)).map(u32::cast_signed);
    // NETNSA_NSID_NOT_ASSIGNED is -1.
    Ok(number.filter(|number| *number >= 0))
}
