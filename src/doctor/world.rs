//! What lives: everything that the findings are judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use super::entries::{self, Known};
use super::{Doctor, leases, namespaces};
use crate::net::link::{Filter, Link};
use crate::net::{NetNs, Netlink};
use crate::rules::{Owner, survey};
use crate::spec::{Attachment, Error};

/// An attachment that lives, or may live.
#[derive(Debug, Clone)]
pub(super) struct Life {
    /// [`Owner::tag`]; not known of a lease that names no interface.
    pub(super) tag: Option<String>,
    /// The network, if it is known.
    pub(super) network: Option<String>,
    /// The container, and whether that is all of its ID.
    pub(super) container: Option<(String, bool)>,
    /// Its addresses, as far as they are known.
    pub(super) addrs: Vec<IpAddr>,
}

impl Life {
    pub(super) fn of(owner: &Owner, addrs: Vec<IpAddr>) -> Self {
        let container = Some((owner.attachment.container_id.clone(), true));
        Life { tag: Some(owner.tag()), network: Some(owner.network.clone()), container, addrs }
    }
}

/// What is to be thought of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Lives,
    /// Nobody's, and why.
    Orphan(String),
    /// It seems to be nobody's, but: why it is left alone.
    Doubt(String),
}

/// The node.
#[derive(Debug)]
pub(super) struct World {
    /// The host's links.
    pub(super) links: Vec<Link>,
    /// The host's addresses.
    own: BTreeSet<IpAddr>,
    /// Addresses in other namespaces.
    seen: BTreeMap<IpAddr, String>,
    pub(super) blind: Vec<String>,
    /// The cache's entries.
    pub(super) entries: Vec<Known>,
    /// Whether there is a cache.
    has_cache: bool,
    pub(super) leases: leases::Leases,
    lives: Vec<Life>,
}

impl World {
    pub(super) fn look(doctor: &Doctor<'_>) -> Result<Self, Error> {
        let cache = doctor.invoker.cache();
        let mut entries = entries::read(cache)?;
        let paths = entries.iter().filter_map(|known| known.entry.namespace()).map(Into::into);
        let seen = namespaces::look(paths.filter(|path: &std::path::PathBuf| NetNs::open(path).is_ok()));
        let mut host = Netlink::open()?;
        let own = host.all_addrs()?.into_iter().map(|addr| addr.net.ip());
        let own = own.filter(|ip| namespaces::is_somebodys(*ip)).collect();
        let links = host.links(&Filter::default())?;
        let mut world = World {
            links,
            own,
            seen: seen.addrs,
            blind: seen.blind,
            entries: Vec::new(),
            has_cache: cache.dir().join("results").is_dir(),
            leases: leases::Leases::default(),
            lives: Vec::new(),
        };
        let ends: Vec<Life> = world.links.iter().filter_map(life_of_link).collect();
        world.lives.extend(ends);
        let book = leases::Book::read(doctor, &entries)?;
        let holders = book.holders(&world);
        world.lives.extend(holders);
        // First those that surely live: they hold their addresses against the others.
        entries.sort_by_key(|known| !entries::is_there(known));
        for mut known in entries {
            known.verdict = entries::judge(&known, &world);
            if !matches!(known.verdict, Verdict::Orphan(_)) {
                world.lives.push(Life::of(&known.owner(), known.addrs()));
            }
            world.entries.push(known);
        }
        let leases = book.judge(doctor, &world);
        world.lives.extend(leases.lives.iter().cloned());
        world.leases = leases;
        Ok(world)
    }

    /// How many attachments live.
    pub(super) fn attachments(&self) -> usize {
        self.lives.iter().filter_map(|life| life.tag.as_ref()).collect::<BTreeSet<_>>().len()
    }

    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.lives.iter().any(|life| life.tag.as_deref() == Some(tag))
    }

    pub(super) fn has_attachment(&self, network: &str, attachment: &Attachment) -> bool {
        self.has_tag(&Owner { network: network.to_owned(), attachment: attachment.clone() }.tag())
    }

    /// Networks and containers, as far as both are known.
    pub(super) fn containers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lives.iter().filter_map(|life| match (&life.network, &life.container) {
            (Some(network), Some((id, true))) => Some((network.as_str(), id.as_str())),
            _ => None,
        })
    }

    /// Whether the container lives, in whichever network.
    pub(super) fn has_container(&self, id: &str) -> bool {
        self.lives.iter().any(|life| match &life.container {
            Some((own, true)) => own == id,
            Some((own, false)) => id.starts_with(own.as_str()),
            None => false,
        })
    }

    /// Whether somebody who lives is known to have this address.
    pub(super) fn is_held(&self, ip: IpAddr) -> bool {
        self.lives.iter().any(|life| life.addrs.contains(&ip))
    }

    /// Where this address is in use.
    pub(super) fn place_of(&self, ip: IpAddr) -> Option<String> {
        if self.own.contains(&ip) {
            return Some("on this host".to_owned());
        }
        self.seen.get(&ip).map(|path| format!("in the namespace {path}"))
    }

    /// What to think of something that nobody who lives is named by: its addresses may be in
    /// use, by nobody who is known.
    pub(super) fn by_addresses(&self, addrs: &[IpAddr], why: String) -> Verdict {
        for ip in addrs.iter().filter(|ip| !self.is_held(**ip)) {
            if let Some(place) = self.place_of(*ip) {
                return Verdict::Doubt(format!("{ip} is in use {place}, by nobody who is known"));
            }
        }
        self.unless_blind(why)
    }

    /// The same for what tells a container's ID and no address: only the cache and leases
    /// know of containers.
    pub(super) fn by_container(&self, addrs: &[IpAddr], why: String) -> Verdict {
        if addrs.is_empty() && !self.has_cache {
            return Verdict::Doubt(
                "there is no result cache here that could tell whether the container lives".to_owned(),
            );
        }
        self.by_addresses(addrs, why)
    }

    pub(super) fn unless_blind(&self, why: String) -> Verdict {
        match self.blind.first() {
            None => Verdict::Orphan(why),
            Some(first) => Verdict::Doubt(format!("not every namespace can be looked into ({first})")),
        }
    }

    /// Whether the other end of a veth is here, too.
    pub(super) fn both_ends_here(&self, link: &Link) -> bool {
        let is_other = |other: &Link| Some(other.index) == link.peer && other.peer == Some(link.index);
        link.kind == "veth" && link.far.is_none() && self.links.iter().any(is_other)
    }
}

/// The host's end of a pair whose other end is in a namespace: the pair goes with that.
fn life_of_link(link: &Link) -> Option<Life> {
    let tag = survey::tag(&link.alias).filter(|_| link.kind == "veth" && link.far.is_some())?;
    let container = survey::container(&link.alias).map(|(id, whole)| (id.to_owned(), whole));
    Some(Life { tag: Some(tag.to_owned()), network: None, container, addrs: Vec::new() })
}

/// Whether there is a namespace at this path that isn't our own.
pub(super) fn namespace(path: &str) -> Option<NetNs> {
    let ns = NetNs::open(Path::new(path)).ok()?;
    let own = NetNs::current().ok()?;
    (!ns.same_as(&own).unwrap_or(true)).then_some(ns)
}
