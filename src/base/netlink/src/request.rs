//! Changes to be made, as messages ready to send.

use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::Error;
use super::uapi::netlink::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
};
use super::wire::{self, Writer};

/// A change to be made, with the words for its error.
#[derive(Debug, Clone)]
pub struct Request {
    pub(super) what: String,
    pub(super) bytes: Result<Vec<u8>, Error>,
    /// The name of the new link, for kernels that don't echo it.
    pub(super) makes: Option<String>,
    /// The master that the new link gets right after the echo, which therefore lacks it.
    pub(super) master: Option<u32>,
}

/// What a request may do if the object exists already.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mode {
    Change,
    Create,
    CreateEchoed,
    /// The object comes in front of others of the kind.
    Prepend,
    /// The object comes behind others of the kind.
    Append,
    Replace,
}

impl Mode {
    fn flags(self) -> u16 {
        let flags = match self {
            Mode::Change => 0,
            Mode::Create => NLM_F_CREATE | NLM_F_EXCL,
            Mode::CreateEchoed => NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO,
            Mode::Prepend => NLM_F_CREATE,
            Mode::Append => NLM_F_CREATE | NLM_F_APPEND,
            Mode::Replace => NLM_F_CREATE | NLM_F_REPLACE,
        };
        NLM_F_REQUEST | NLM_F_ACK | flags
    }
}

impl Request {
    /// Returns a change of NETLINK_ROUTE for which this crate has no function. `what` says what it does, for messages.
    ///
    /// `kind` is one of `RTM_NEW…`, `RTM_DEL…` and `RTM_SET…`, and `flags` are `NLM_F_CREATE`, `NLM_F_EXCL` and the like.
    /// `payload` is what follows `struct nlmsghdr`: the header of the family and the attributes, in the order of bytes of
    /// this machine. A question (`RTM_GET…`) is refused with EINVAL when it is carried out.
    ///
    /// ```no_run
    /// use cnimble_netlink::{Netlink, Request};
    ///
    /// const RTM_SETLINK: u16 = 19;
    /// const IFLA_TXQLEN: u16 = 13;
    ///
    /// let mut netlink = Netlink::open()?;
    /// let index = netlink.link("lo")?.index;
    /// // ip link set lo txqueuelen 500: struct ifinfomsg, and an attribute of 8 bytes.
    /// let mut payload = vec![0; 16];
    /// payload[4..8].copy_from_slice(&index.to_ne_bytes());
    /// payload.extend(8_u16.to_ne_bytes());
    /// payload.extend(IFLA_TXQLEN.to_ne_bytes());
    /// payload.extend(500_u32.to_ne_bytes());
    /// netlink.execute(Request::from_payload("set the queue of lo", RTM_SETLINK, 0, &payload))?;
    /// # Ok::<(), cnimble_netlink::Error>(())
    /// ```
    pub fn from_payload(what: impl Into<String>, kind: u16, flags: u16, payload: &[u8]) -> Self {
        // The two lowest bits of a kind of NETLINK_ROUTE are 0 for NEW, 1 for DEL, 2 for GET and 3 for SET.
        const GET: u16 = 2;
        let what = what.into();
        if kind & 3 == GET {
            return Request::invalid(what, "a request that changes nothing");
        }
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        Request { bytes: Ok(wire::message(kind, flags, payload, |_| {})), what, makes: None, master: None }
    }

    pub(super) fn new(what: String, mode: Mode, message: RouteNetlinkMessage) -> Self {
        Request { bytes: Ok(encode(message, mode.flags())), what, makes: None, master: None }
    }

    /// Returns a request whose attributes `fill` writes. `header` is the fixed part of the message behind `struct
    /// nlmsghdr`.
    pub(super) fn written(
        what: String,
        mode: Mode,
        kind: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Writer),
    ) -> Self {
        let bytes = wire::message(kind, mode.flags(), header, fill);
        if bytes.is_empty() {
            return Request::invalid(what, "an attribute of more than 64 KiB");
        }
        Request { bytes: Ok(bytes), what, makes: None, master: None }
    }

    /// A request that fails with EINVAL when it is carried out, so that callers have one place for errors.
    pub(super) fn invalid(what: String, reason: &str) -> Self {
        let refusal = Error::new(&what, Errno::EINVAL).reason(reason);
        Request { what, bytes: Err(refusal), makes: None, master: None }
    }
}

/// Returns the bytes of a message. Its sequence number is 0, and set when it is sent.
pub(super) fn encode(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
