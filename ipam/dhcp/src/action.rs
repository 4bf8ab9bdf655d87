//! What a [`Client`](crate::client::Client) is, and what it wants to be done.

use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

use crate::lease::Lease;
use crate::message::Question;

/// What stays the same for an interface.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) mac: Mac,
    /// Whether answers must be broadcast.
    pub(crate) broadcast: bool,
    /// Options of every message: the client's ID and those that the configuration provides.
    pub(crate) own: Vec<(u8, Vec<u8>)>,
    /// What a server is asked for.
    pub(crate) request: Vec<u8>,
}

/// Where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    Everybody,
    Server(Ipv4Addr, Mac),
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a message from this address.
    Send { question: Box<Question>, from: Ipv4Addr, to: To },
    /// Ask the link who has the address.
    Probe(Ipv4Addr),
    /// There is a lease: a new one, or the same for longer.
    Bound(Box<Lease>),
    /// There is none any more.
    Lost(Box<Lease>, &'static str),
    /// For the log.
    Tell(String),
}
