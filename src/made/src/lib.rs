//! The kinds of objects that our plugins make on a host, one file for each.
//!
//! | file | kind | made by |
//! |---|---|---|
//! | [`bridge`] | bridges that pods are joined to | bridge |
//! | [`device`] | devices of the host in a pod | host-device |
//! | [`lifetime`] | addresses that end with a lease | dhcp |
//! | [`pair`] | the host's ends of veth pairs | bridge, ptp |
//! | [`ifb`] | devices that a pod's egress goes through | bandwidth |
//! | [`rules`] | packet rules of pods | firewall, portmap |
//!
//! It says which plugins make the thing, how it is named and found, and when it has no owner any more. Elements of nf_tables sets are declared beside the rules that use them, in
//! [`cnimble_rules::survey`]. What lives is not known here: the judge tells it ([`Judge`]).

pub mod bridge;
pub mod device;
pub mod ifb;
pub mod lifetime;
pub mod pair;
pub mod rules;

use cnimble_cni::Error;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;

/// Kinds of links that are made on the host and name their owner in their alias. In another namespace
/// such an alias is another node's, and its networks may have the names of ours.
pub const ON_HOST: [&str; 2] = [pair::KIND, ifb::KIND];

/// Knowledge of a node, for judging a link.
pub trait Judge {
    /// Whether the attachment that a link's alias names lives.
    fn lives(&self, alias: &str) -> bool;
    /// Whether the other end of a pair is on the host, too.
    fn both_ends_here(&self, link: &Link) -> bool;
    /// Whether an attachment that lives may have an ifb of this name.
    fn has_ifb(&self, name: &str) -> bool;
    /// Why nothing can be taken for dead, if something can't be looked at.
    fn doubt(&self) -> Option<String>;
}

/// A link without a living owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Why it has none.
    pub why: &'static str,
    /// Why it is left alone, if it is.
    pub doubt: Option<String>,
}

/// The verdict on a link of the host; `None` if it has an owner, or is none of ours.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn orphan(judge: &impl Judge, link: &Link) -> Result<Option<Orphan>, Error> {
    match link.kind.as_str() {
        pair::KIND => Ok(pair::orphan(judge, link)),
        ifb::KIND => ifb::orphan(judge, link),
        _ => Ok(None),
    }
}

/// Whether a link without an owner serves something all the same.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn is_used(host: &mut Netlink, link: &Link) -> Result<bool, Error> {
    match link.kind.as_str() {
        ifb::KIND => ifb::is_used(host, link.index),
        _ => Ok(false),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
