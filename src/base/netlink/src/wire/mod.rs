//! Netlink as bytes: messages in a datagram, attributes in a message (netlink(7), linux/netlink.h).
//!
//! The netlink crates encode requests about links, addresses, routes, neighbours and rules. All other requests are
//! written here, and all answers are read here. A plugin needs a dozen of a link's hundred attributes, and an unknown
//! form of one from a newer kernel must not fail a look-up. The readers take any bytes without panicking.
//!
//! In names of functions `_ne` is the processor's byte order (netlink itself, NETLINK_ROUTE), `_be` the network's
//! (NETLINK_NETFILTER).

mod ack;
mod read;
mod write;

pub(crate) use ack::Ack;
pub(crate) use read::{
    Attributes, Malformed, Message, Messages, Parsed, ip, text, u8_at, u16_ne, u32_be, u32_ne,
};
pub(crate) use write::{Writer, flags, list, message, number, set_flags};

/// Rounds up, as `NLMSG_ALIGN` and `NLA_ALIGN` do.
fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

#[cfg(test)]
mod tests;
