//! Everything in the packet rules that is for one pod, ours and the Go plugins', for `cnimble doctor`. Our elements and
//! the Go plugins' nf_tables rules carry the attachment's tag, their iptables chains the container's ID, and the rules
//! in their chain CNI-FORWARD only an address.

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

#[derive(Debug, Clone)]
pub struct Trace {
    pub what: String,
    pub named: Named,
    pub addrs: Vec<IpAddr>,
    place: Place,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// The comment is from [`Owner::comment`](cnimble_cni::Owner::comment).
    Comment(String),
    Container {
        network: Option<String>,
        id: String,
    },
    Link(String),
    Nothing,
}

#[derive(Debug, Clone)]
enum Place {
    Element(Part, Placed),
    Reference(reference::Place),
}

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
pub(super) const TABLES: [Table<'static>; 2] =
    [Table::new(Family::Inet, "cnimble"), Table::new(Family::Bridge, "cnimble")];

/// The name of the nf_tables tables that have only rules of cnimble.
pub const OWN: &str = "cnimble";

/// The names of the nf_tables tables in which rules of pods may stand: of cnimble, of iptables and of firewalld.
pub const FOLLOWED: &[&str] = &["cnimble", "filter", "nat", "mangle", "firewalld"];

pub(super) struct Operations {
    table: Table<'static>,
    pub(super) all: fn(&mut Nft) -> netlink::Result<Vec<Placed>>,
    is_idle: fn(&mut Nft) -> netlink::Result<bool>,
    empty_sets: fn(&mut Nft) -> netlink::Result<Vec<String>>,
    forget: fn(&mut Nft, &[Placed]) -> netlink::Result<()>,
    pub(super) let_go: fn(&mut Nft, &[Placed]) -> netlink::Result<()>,
}

impl Operations {
    fn of<L: Layout>() -> Self {
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
            Part::Masquerade => Operations::of::<Masquerade>(),
            Part::Forward => Operations::of::<Forwarding>(),
            Part::Portmap => Operations::of::<Portmap>(),
            Part::Spoof => Operations::of::<Spoof>(),
            Part::Isolation => Operations::of::<Isolation>(),
        }
    }

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

fn of_element(part: Part, placed: Placed) -> Trace {
    let element = &placed.element;
    let link = match part {
        Part::Forward => forwarding::bridge(&placed),
        // The pair of port and MAC names its owner, too, but goes by the port.
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
            Some(link) => Named::Link(link),
            None => Named::Comment(element.comment.clone()),
        },
        addrs,
        place: Place::Element(part, placed),
    }
}

impl Trace {
    pub fn comment(&self) -> Option<&str> {
        match &self.place {
            Place::Element(_, placed) => Some(&placed.element.comment),
            Place::Reference(_) => None,
        }
    }

    /// Whether it is an element of ours, rather than what the Go plugins make.
    pub fn is_element(&self) -> bool {
        self.element().is_some()
    }

    /// Whether it is our rules for a pod's published ports in iptables (`acceptPublished`).
    pub fn is_of_published_ports(&self) -> bool {
        matches!(self.place, Place::Reference(reference::Place::Published { .. }))
    }

    pub(super) fn element(&self) -> Option<(Part, &Placed)> {
        match &self.place {
            Place::Element(part, placed) => Some((*part, placed)),
            Place::Reference(_) => None,
        }
    }

    /// The port of a mapping of ours that the rules of another container lead away as well, in the form of the Go
    /// plugins. `None` if the Go plugins' rule sees the packets first, so that ours takes none.
    pub fn contested_port(&self, nft: &mut Nft) -> Result<Option<Contested>, Error> {
        let Place::Element(Part::Portmap, placed) = &self.place else { return Ok(None) };
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

    /// An `ingressPolicy` is a bridge's.
    pub fn is_of_bridge(&self) -> bool {
        matches!(&self.place, Place::Element(Part::Forward, placed) if forwarding::bridge(placed).is_some())
    }

    /// Removes it, if it has not changed since, and the sets and chains that are unused without it.
    pub fn remove(&self, nft: &mut Nft) -> Result<(), Error> {
        match &self.place {
            Place::Element(part, placed) => {
                Ok((part.operations().forget)(nft, std::slice::from_ref(placed))?)
            }
            Place::Reference(place) => place.remove(nft),
        }
    }
}

/// The unused parts of our tables, for people.
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

/// Removes what [`idle`] lists. Switches portmap's `route_localnet` off before the rules go that make it harmless.
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

/// The container's ID in a comment or alias of ours, and whether it is whole: a comment may have been cut.
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
