//! The actions that a [`Client`](crate::client::Client) asks its driver to carry out.

use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

use crate::lease::Lease;
use crate::message::Question;

/// The client's settings. They stay the same for the life of an interface.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) mac: Mac,
    /// Whether answers must be broadcast.
    pub(crate) broadcast: bool,
    /// Options of every message: the client's ID and those that the configuration provides.
    pub(crate) own: Vec<(u8, Vec<u8>)>,
    /// The codes of the options that a server is asked for.
    pub(crate) request: Vec<u8>,
}

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    Everybody,
    Server(Ipv4Addr, Mac),
}

#[derive(Debug)]
pub(crate) enum Action {
    /// Send a message from the address `from`.
    Send { question: Box<Question>, from: Ipv4Addr, to: To },
    /// Send an ARP probe for the address.
    Probe(Ipv4Addr),
    /// The client has a lease: a new one, or a renewed one.
    Bound(Box<Lease>),
    /// The lease has ended, for this reason.
    Lost(Box<Lease>, &'static str),
    /// Write a line to the log.
    Tell(String),
}
