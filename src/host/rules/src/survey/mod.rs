//! Finds everything in the packet rules that is for one pod, ours and the Go plugins', for `cnimble doctor`.
//!
//! What a rule tells of its pod differs. Our elements and the Go plugins' masquerading in nf_tables have the
//! attachment's tag. Chains of iptables and the Go plugins' port mappings in nf_tables have the container's ID. Rules
//! in the Go plugin's chain CNI-FORWARD have only an address. Elements and chains of a bridge's port have only the
//! port.

mod reference;

use std::net::IpAddr;

use cnimble_cni::{Error, Owner};

use super::elements::{Layout, Placed};
use super::forward::nftables::{self as forwarding, Forwarding};
use super::isolation::{self, Isolation};
use super::masquerade::nftables::Masquerade;
pub use cnimble_cni::owner::tag;
use cnimble_netlink::nft::{Batch, Family, Key, Nft, Table};
use cnimble_netlink::{self as netlink, IfPresent as _};
use nix::errno::Errno;

use super::portmap::nftables::Portmap;
use super::portmap::{self, foreign, hand_over};
use super::spoof::Spoof;
use super::xtables;

/// Something in the packet rules that is for one pod or one bridge.
#[derive(Debug, Clone)]
pub struct Trace {
    /// What it is and where, for people.
    pub what: String,
    /// What it tells of its owner.
    pub named: OwnerHint,
    /// The pod's addresses in it, if it has any.
    pub addrs: Vec<IpAddr>,
    place: TracePlace,
}

/// A port that leads to two containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contested {
    /// The port as people write it, `8080/tcp` for example.
    pub port: String,
    /// The address that our mapping leads to.
    pub address: IpAddr,
    /// The other container.
    pub container: String,
}

/// What a trace tells of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerHint {
    /// The comment, which [`Owner::comment`](cnimble_cni::Owner::comment) has made.
    Comment(String),
    /// The container, and its network unless the Go plugins left it out.
    Container { network: Option<String>, id: String },
    /// The host's interface that it is for: a port of a bridge, or a bridge with a policy. Empty if the interface is
    /// missing.
    Link(String),
    /// Nothing but the addresses.
    Nothing,
}

#[derive(Debug, Clone)]
enum TracePlace {
    Element(Part, Placed),
    Reference(reference::ReferencePlace),
}

/// The parts of our tables. Each has a layout, which [`operations`](Self::operations) makes callable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Masquerade,
    Forward,
    Portmap,
    Spoof,
    Isolation,
}

pub(super) const PARTS: [Part; 5] =
    [Part::Masquerade, Part::Forward, Part::Portmap, Part::Spoof, Part::Isolation];
/// The tables of all parts.
pub(super) const TABLES: [Table<'static>; 2] =
    [Table::new(Family::Inet, "cnimble"), Table::new(Family::Bridge, "cnimble")];

/// The name of the nf_tables tables that have only rules of cnimble.
pub const OWN: &str = "cnimble";

/// The names of the nf_tables tables in which rules of pods may stand: of cnimble, of iptables and of firewalld.
pub const FOLLOWED: &[&str] = &["cnimble", "filter", "nat", "mangle", "firewalld"];

/// The functions of a part's [`Layout`], which can't be a trait object.
pub(super) struct Operations {
    table: Table<'static>,
    pub(super) all: fn(&mut Nft) -> netlink::Result<Vec<Placed>>,
    is_idle: fn(&mut Nft) -> netlink::Result<bool>,
    empty_sets: fn(&mut Nft) -> netlink::Result<Vec<String>>,
    forget: fn(&mut Nft, &[Placed]) -> netlink::Result<()>,
    pub(super) let_go: fn(&mut Nft, &[Placed]) -> netlink::Result<()>,
}

impl Operations {
    fn for_layout<L: Layout>() -> Self {
        Operations {
            table: L::TABLE,
            all: L::all,
            is_idle: L::is_idle,
            empty_sets: L::empty_sets,
            forget: L::forget,
            let_go: L::let_go,
        }
    }
}

impl Part {
    pub(super) fn operations(self) -> Operations {
        match self {
            Part::Masquerade => Operations::for_layout::<Masquerade>(),
            Part::Forward => Operations::for_layout::<Forwarding>(),
            Part::Portmap => Operations::for_layout::<Portmap>(),
            Part::Spoof => Operations::for_layout::<Spoof>(),
            Part::Isolation => Operations::for_layout::<Isolation>(),
        }
    }

    /// Returns what the part is for, for people.
    fn name(self) -> &'static str {
        match self {
            Part::Masquerade => "masquerading",
            Part::Forward => "forwarding",
            Part::Portmap => "port mappings",
            Part::Spoof => "the MAC check",
            Part::Isolation => "isolated ports",
        }
    }
}

/// Returns all traces in this namespace. On a kernel without nf_tables, only those in the legacy variant of iptables.
pub fn traces(nft: &mut Nft) -> Result<Vec<Trace>, Error> {
    let mut traces = Vec::new();
    let has_nf_tables = nft.is_supported()?;
    if has_nf_tables {
        for part in PARTS {
            traces.extend((part.operations().all)(nft)?.into_iter().map(|placed| of_element(part, placed)));
        }
    }
    reference::traces(Some(nft).filter(|_| has_nf_tables), &mut traces)?;
    Ok(traces)
}

/// Returns why [`traces`] left out tables of the legacy variant of iptables: the commands that print them are not
/// installed. The list is empty if it read all tables.
pub fn unreadable_legacy_tables() -> Vec<String> {
    let mut texts = Vec::new();
    for family in xtables::FAMILIES {
        for table in ["nat", "filter"] {
            texts.extend(xtables::unreadable_legacy_table(family, table));
        }
    }
    texts
}

fn of_element(part: Part, placed: Placed) -> Trace {
    let element = &placed.element;
    let link = match part {
        Part::Forward => forwarding::bridge(&placed),
        // The pair of port and MAC has an owner in its comment, but the port decides whether it is still needed.
        Part::Spoof => Some(element.key.first_ifname()),
        Part::Isolation => isolation::port(&placed),
        Part::Masquerade | Part::Portmap => None,
    };
    let mut addrs = Vec::new();
    if link.is_none() {
        let data = element.data.as_ref().and_then(Key::as_service).map(|(ip, _)| ip);
        addrs.extend(data.or_else(|| element.key.as_ip()));
    }
    Trace {
        what: format!("element {} of set {}", element.key, part.operations().table.set(&placed.set)),
        named: match link {
            Some(link) => OwnerHint::Link(link),
            None => OwnerHint::Comment(element.comment.clone()),
        },
        addrs,
        place: TracePlace::Element(part, placed),
    }
}

impl Trace {
    /// Returns the comment of an element of our tables, or `None` for anything in the form of the Go plugins.
    pub fn comment(&self) -> Option<&str> {
        match &self.place {
            TracePlace::Element(_, placed) => Some(&placed.element.comment),
            TracePlace::Reference(_) => None,
        }
    }

    /// Returns whether it is an element of our tables. Otherwise it is a rule or chain in the form of the Go plugins.
    pub fn is_element(&self) -> bool {
        self.element().is_some()
    }

    /// Returns whether it is our rules in iptables that let published ports of a pod pass (`acceptPublished`).
    pub fn is_of_published_ports(&self) -> bool {
        matches!(self.place, TracePlace::Reference(reference::ReferencePlace::Published { .. }))
    }

    /// Returns the element and its part, or `None` if it is none.
    pub(super) fn element(&self) -> Option<(Part, &Placed)> {
        match &self.place {
            TracePlace::Element(part, placed) => Some((*part, placed)),
            TracePlace::Reference(_) => None,
        }
    }

    /// Returns the port of a mapping of ours that rules of another container in the form of the Go plugins take as
    /// well. Returns `None` for anything else, and if packets surely meet these rules first, because then there is no
    /// contest.
    pub fn contested_port(&self, nft: &mut Nft) -> Result<Option<Contested>, Error> {
        let TracePlace::Element(Part::Portmap, placed) = &self.place else { return Ok(None) };
        let Some(owner) = Owner::named(&placed.element.comment) else { return Ok(None) };
        if portmap::nftables::runs_after_go(nft)? {
            return Ok(None);
        }
        for forward in hand_over::read(&[placed], 0) {
            let Some((mapping, pod)) = forward.mappings.first().zip(forward.addrs.first()) else { continue };
            let (port, address) = (mapping.to_string(), pod.ip());
            if let Some(holder) = foreign::holder_of(nft, &owner, &forward)? {
                return Ok(Some(Contested { port, address, container: holder.container }));
            }
        }
        Ok(None)
    }

    /// Returns whether it belongs to a bridge and to no pod, as an `ingressPolicy` does.
    pub fn is_of_bridge(&self) -> bool {
        matches!(&self.place, TracePlace::Element(Part::Forward, placed) if forwarding::bridge(placed).is_some())
    }

    /// Removes it. An element is removed only if it has not changed since, with the sets and chains that are unused
    /// without it.
    pub fn remove(&self, nft: &mut Nft) -> Result<(), Error> {
        match &self.place {
            TracePlace::Element(part, placed) => {
                Ok((part.operations().forget)(nft, std::slice::from_ref(placed))?)
            }
            TracePlace::Reference(place) => place.remove(nft),
        }
    }
}

/// Returns what of our tables is unused, for people: parts, empty sets, empty tables, and links on which
/// `route_localnet` is still on.
pub fn idle(nft: &mut Nft) -> Result<Vec<String>, Error> {
    let mut idle = Vec::new();
    if !nft.is_supported()? {
        return Ok(idle);
    }
    for part in PARTS {
        let operations = part.operations();
        if (operations.is_idle)(nft)? {
            idle.push(format!("chains and sets for {} in table {}", part.name(), operations.table));
        } else {
            let empty = (operations.empty_sets)(nft)?;
            idle.extend(empty.iter().map(|set| format!("set {}, which is empty", operations.table.set(set))));
        }
    }
    for table in TABLES {
        if nft.has_table(table)? && nft.chains(table)?.is_empty() && nft.sets(table)?.is_empty() {
            idle.push(format!("table {table}"));
        }
    }
    for link in super::portmap::open_links(nft)? {
        idle.push(format!("route_localnet of {link}, which portmap has switched on"));
    }
    Ok(idle)
}

/// Removes what [`idle`] lists. Switches `route_localnet` off before the rules of portmap go that keep others from
/// localhost.
pub fn remove_idle(nft: &mut Nft) -> Result<(), Error> {
    for part in PARTS {
        let operations = part.operations();
        if (operations.is_idle)(nft)? || !(operations.empty_sets)(nft)?.is_empty() {
            (operations.forget)(nft, &[])?;
        }
    }
    super::portmap::close_links(nft)?;
    for table in TABLES {
        if nft.has_table(table)? && nft.chains(table)?.is_empty() && nft.sets(table)?.is_empty() {
            let mut batch = Batch::new();
            batch.delete_table(table);
            nft.commit(&batch).default_for(&[Errno::EBUSY]).if_present()?;
        }
    }
    Ok(())
}

/// Returns the container's ID in a comment or alias of ours, and whether it is whole: a comment may have been cut.
/// `None` without an ID.
pub fn container(comment: &str) -> Option<(&str, bool)> {
    let (_, id) = comment.split_once(", id: ")?;
    Some((id, comment.len() < cnimble_cni::owner::COMMENT_LIMIT))
}

#[cfg(feature = "fuzzing")]
pub(super) use reference::fuzz;

#[cfg(test)]
mod tests {
    use cnimble_cni::Attachment;

    use super::*;

    #[test]
    fn comments_are_known_by_their_tag() {
        let attachment = Attachment { container_id: "c".repeat(100), ifname: "eth0".into() };
        let owner = Owner { network: "net".into(), attachment };
        let comment = owner.comment();
        assert_eq!(tag(&comment), Some(owner.tag().as_str()));
        let (id, whole) = container(&comment).unwrap();
        assert!(!whole && owner.attachment.container_id.starts_with(id));
        assert_eq!(container("0-1, net: n, if: eth0, id: c1"), Some(("c1", true)));
        for other in ["", "ingressPolicy: open", "my-link", "7d24d33e39064c8a-xxxxxxxxxxxxxxxx, net: n"] {
            assert_eq!(tag(other), None, "{other}");
        }
    }
}
