//! The kinds of objects that the plugins make on a host, with one file for each. Elements of nf_tables sets are
//! declared next to their rules, in [`crate::survey`]. The [`Judge`] tells which attachments live.

pub mod bridge;
pub mod configured;
pub mod device;
pub mod ifb;
pub mod lifetime;
pub mod pair;
pub mod shim;

use cnimble_cni::Error;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;

/// Whether a link with its owner in its alias is one of those that are on the host. In another namespace it belongs to
/// another node, and its networks may have the same names.
pub fn is_on_host(link: &Link) -> bool {
    [pair::KIND, ifb::KIND].contains(&link.kind.as_str()) || shim::is_shim(link)
}

/// Knowledge of a node, for judging a link.
pub trait Judge {
    /// Whether the attachment in a link's alias is alive.
    fn lives(&self, alias: &str) -> bool;
    /// Whether the other end of a pair is on the host, too.
    fn both_ends_here(&self, link: &Link) -> bool;
    /// Whether a living attachment may have an ifb of this name.
    fn has_ifb(&self, name: &str) -> bool;
    /// The reason why no attachment can be considered dead, if some state cannot be read.
    fn doubt(&self) -> Option<String>;
}

/// A link without a living owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub why: &'static str,
    pub doubt: Option<String>,
}

/// Returns the verdict on a link of the host, or `None` if it has an owner or was not made by a plugin.
pub fn orphan(judge: &impl Judge, link: &Link) -> Result<Option<Orphan>, Error> {
    match link.kind.as_str() {
        pair::KIND => Ok(pair::orphan(judge, link)),
        ifb::KIND => ifb::orphan(judge, link),
        kind if shim::KINDS.contains(&kind) => Ok(shim::orphan(judge, link)),
        _ => Ok(None),
    }
}

/// Whether a link without an owner is still in use.
pub fn is_used(host: &mut Netlink, link: &Link) -> Result<bool, Error> {
    match link.kind.as_str() {
        ifb::KIND => ifb::is_used(host, link.index),
        bridge::KIND => Ok(!bridge::is_left_over(host, link)?),
        _ => Ok(false),
    }
}
