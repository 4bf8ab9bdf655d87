//! The kinds of objects that the plugins make on a host, with one file for each kind. The kinds of elements in
//! nf_tables sets are listed in [`crate::survey`]. A [`Judge`] tells which attachments live.

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

/// Returns whether a link with its owner in its alias is of a kind that the plugins make on the host. In another
/// namespace, such a link belongs to another node, whose networks may have the same names.
pub fn is_on_host(link: &Link) -> bool {
    [pair::KIND, ifb::KIND].contains(&link.kind.as_str()) || shim::is_shim(link)
}

/// What a caller knows of a node, for the verdict on a link.
pub trait Judge {
    /// Returns whether the attachment in a link's alias lives.
    fn lives(&self, alias: &str) -> bool;
    /// Returns whether the other end of a veth pair is on the host, too.
    fn both_ends_here(&self, link: &Link) -> bool;
    /// Returns whether a living attachment may have an ifb of this name.
    fn has_ifb(&self, name: &str) -> bool;
    /// Returns why no attachment can be considered dead, if some state can't be read.
    fn doubt(&self) -> Option<String>;
}

/// A link without a living owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Why nobody needs the link, for people.
    pub why: &'static str,
    /// Why the link must stay all the same. `None` if it may be removed.
    pub doubt: Option<String>,
}

/// Returns the verdict on a link of the host, or `None` if it is in order or was not made by a plugin. Bridges belong
/// to no attachment and get no verdict.
pub fn orphan(judge: &impl Judge, link: &Link) -> Result<Option<Orphan>, Error> {
    match link.kind.as_str() {
        pair::KIND => Ok(pair::orphan(judge, link)),
        ifb::KIND => ifb::orphan(judge, link),
        kind if shim::KINDS.contains(&kind) => Ok(shim::orphan(judge, link)),
        _ => Ok(None),
    }
}

/// Returns whether an orphaned link is still in use: an ifb to which a link redirects, or a bridge that is more than a
/// left-over. Other kinds never are. Ask again right before the removal.
pub fn is_used(host: &mut Netlink, link: &Link) -> Result<bool, Error> {
    match link.kind.as_str() {
        ifb::KIND => ifb::is_used(host, link.index),
        bridge::KIND => Ok(!bridge::is_left_over(host, link)?),
        _ => Ok(false),
    }
}
