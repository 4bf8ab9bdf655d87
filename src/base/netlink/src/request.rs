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
    /// The message, or why there can't be one.
    pub(super) bytes: Result<Vec<u8>, Error>,
    /// The link that it makes, for kernels that don't echo it.
    pub(super) makes: Option<String>,
    /// The master that the new link gets: right after the echo, which therefore lacks it.
    pub(super) master: Option<u32>,
}

/// The flags of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mode {
    /// Change or delete what is there.
    Change,
    /// Make; EEXIST if it is there.
    Create,
    /// Make, in front of others of the kind.
    Prepend,
    /// Make, behind others of the kind.
    Append,
    /// Makes or replaces an object.
    Replace,
}

impl Mode {
    fn flags(self) -> u16 {
        let flags = match self {
            Mode::Change => 0,
            Mode::Create => NLM_F_CREATE | NLM_F_EXCL,
            Mode::Prepend => NLM_F_CREATE,
            Mode::Append => NLM_F_CREATE | NLM_F_APPEND,
            Mode::Replace => NLM_F_CREATE | NLM_F_REPLACE,
        };
        NLM_F_REQUEST | NLM_F_ACK | flags
    }
}

impl Request {
    pub(super) fn new(what: String, mode: Mode, message: RouteNetlinkMessage) -> Self {
        Request { bytes: Ok(encode(message, mode.flags())), what, makes: None, master: None }
    }

    /// A request of type `kind` with a family's `header` and the attributes that `fill` writes.
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

    /// A change of a link, refused if one of the names in it can't be the name of a link.
    /// The kernel would cut a name at a NUL and take another link than was meant; and a very
    /// long one doesn't fit into an attribute.
    pub(super) fn of_link(what: String, names: &[&str], message: RouteNetlinkMessage) -> Self {
        match names.iter().find_map(|name| bad_name(name)) {
            Some(reason) => Request::invalid(what, reason),
            None => Request::new(what, Mode::Change, message),
        }
    }

    /// A request for a new link, the first of `names`, which asks for it to be echoed.
    pub(super) fn new_link(what: String, names: &[&str], message: RouteNetlinkMessage) -> Self {
        if let Some(reason) = names.iter().find_map(|name| bad_name(name)) {
            return Request::invalid(what, reason);
        }
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO;
        Request {
            bytes: Ok(encode(message, flags)),
            what,
            makes: names.first().map(|&name| name.to_owned()),
            master: None,
        }
    }

    /// A request that can't be: it fails with EINVAL when it is carried out, like one that
    /// the kernel refuses, so that callers have one place for errors.
    pub(super) fn invalid(what: String, reason: &str) -> Self {
        let refusal = Error::new(&what, Errno::EINVAL).reason(reason);
        Request { what, bytes: Err(refusal), makes: None, master: None }
    }
}

/// The bytes of a message with sequence number 0.
pub(super) fn encode(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Why `name` can't be a link's, by the kernel's dev_valid_name().
pub(super) fn bad_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("the name is empty"),
        "." | ".." => Some("the name is . or .."),
        _ if name.len() > 15 => Some("the name has more than 15 bytes"),
        _ if name.contains(['/', ':', '\0']) || name.contains(char::is_whitespace) => {
            Some("the name has a character that no link may have")
        }
        _ => None,
    }
}
