//! Everything that attachments are judged by, apart from packet rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::survey;
use cnimble_runtime::Entry;

use super::entries::{self, Known};
use super::leases::Book;
use super::{Verdict, Witnesses, namespaces};

/// An attachment that lives, or may live.
#[derive(Debug, Clone)]
pub struct Life {
    /// [`Owner::tag`]; not known of a lease that names no interface.
    pub tag: Option<String>,
    /// The network, if it is known.
    pub network: Option<String>,
    /// The container, and whether that is all of its ID.
    pub container: Option<(String, bool)>,
    /// The interface, if it is known.
    pub ifname: Option<String>,
    /// Its addresses, as far as they are known.
    pub addrs: Vec<IpAddr>,
}

impl Life {
    /// An attachment that is known by its owner.
    pub fn of(owner: &Owner, addrs: Vec<IpAddr>) -> Self {
        Life {
            tag: Some(owner.tag()),
            network: Some(owner.network.clone()),
            container: Some((owner.attachment.container_id.clone(), true)),
            ifname: Some(owner.attachment.ifname.clone()),
            addrs,
        }
    }
}

/// Those who live, and what they are found by.
#[derive(Debug, Default)]
struct Lives {
    all: Vec<Life>,
    tags: HashSet<String>,
    addrs: HashSet<IpAddr>,
    containers: HashSet<String>,
    /// IDs that were cut.
    parts: Vec<String>,
}

impl Lives {
    fn extend(&mut self, lives: impl IntoIterator<Item = Life>) {
        for life in lives {
            self.tags.extend(life.tag.clone());
            self.addrs.extend(&life.addrs);
            match &life.container {
                Some((id, true)) => drop(self.containers.insert(id.clone())),
                Some((part, false)) => self.parts.push(part.clone()),
                None => {}
            }
            self.all.push(life);
        }
    }
}

/// The node.
#[derive(Debug)]
pub struct World {
    /// The host's links as they were listed first: those that are judged.
    pub candidates: Vec<Link>,
    /// The host's links as they were listed last: those that speak for attachments.
    pub links: Vec<Link>,
    /// The host's addresses.
    own: HashSet<IpAddr>,
    /// Addresses in other namespaces.
    seen: BTreeMap<IpAddr, String>,
    /// Namespaces that can't be looked into, with the reason.
    pub blind: Vec<String>,
    /// The caches' entries.
    pub entries: Vec<Known>,
    /// Whether there is a cache.
    has_cache: bool,
    /// All leases.
    pub leases: Book,
    lives: Lives,
}

impl World {
    pub(super) fn look(witnesses: &Witnesses) -> Result<Self, Error> {
        // What is judged.
        let mut host = Netlink::open()?;
        let candidates = host.links(&Filter::default())?;
        let cache = &witnesses.cache;
        let mut entries = entries::read(cache, true)?;
        let others: Vec<_> =
            witnesses.others.iter().filter(|other| !same_dir(other.dir(), cache.dir())).collect();
        for other in &others {
            entries.extend(entries::read(other, false)?);
        }
        let mut book = Book::read(witnesses, &entries)?;
        // What speaks for it.
        let paths = entries.iter().filter_map(|known| known.entry.namespace()).map(PathBuf::from);
        let seen = namespaces::look(paths.filter(|path| NetNs::open(path).is_ok()));
        let own = host.all_addrs()?.into_iter().map(|addr| addr.net.ip());
        let own = own.filter(|ip| namespaces::is_somebodys(*ip)).collect();
        let has_results = |cache: &cnimble_runtime::Cache| cache.dir().join("results").is_dir();
        let mut world = World {
            candidates,
            links: host.links(&Filter::default())?,
            own,
            seen: seen.addrs,
            blind: seen.blind,
            entries: Vec::new(),
            has_cache: has_results(cache) || others.into_iter().any(has_results),
            leases: Book::default(),
            lives: Lives::default(),
        };
        let ends: Vec<Life> = world.links.iter().filter_map(life_of_link).collect();
        world.lives.extend(ends);
        let holders = book.holders(&world);
        world.lives.extend(holders);
        // First those that surely live: they hold their addresses against the others.
        entries.sort_by_cached_key(|known| !known.is_there());
        for mut known in entries {
            known.verdict = entries::judge(&known, &world);
            if !matches!(known.verdict, Verdict::Orphan(_)) {
                world.lives.extend([Life::of(&known.owner(), known.addrs())]);
            }
            world.entries.push(known);
        }
        let lives = book.judge(witnesses, &world);
        world.lives.extend(lives);
        world.leases = book;
        Ok(world)
    }

    /// How many attachments live.
    pub fn attachments(&self) -> usize {
        self.lives.tags.len()
    }

    /// How many of them are in this network.
    pub fn attachments_in(&self, network: &str) -> usize {
        self.lives.tags.iter().filter(|tag| Owner::in_network(tag, network)).count()
    }

    /// Those of a network, by name.
    ///
    /// # Errors
    /// One that doesn't tell its name.
    pub(super) fn valid(&self, network: &str) -> Result<Vec<Attachment>, String> {
        let mut found: HashMap<&str, Option<Attachment>> = HashMap::new();
        let mut valid = Vec::new();
        for life in &self.lives.all {
            let whole = life.container.as_ref().filter(|(_, whole)| *whole).map(|(id, _)| id.clone());
            match &life.tag {
                Some(tag) if Owner::in_network(tag, network) => {
                    let named = whole.zip(life.ifname.clone());
                    let named = named.map(|(container_id, ifname)| Attachment { container_id, ifname });
                    let named = named.filter(|named| tag_in(network, named) == *tag);
                    let known = found.entry(tag).or_default();
                    *known = known.take().or(named);
                }
                Some(_) => {}
                // A lease in the old form, which is valid if its container is.
                None if life.network.as_deref() == Some(network) => {
                    let ifname = "eth0".to_owned();
                    valid.extend(whole.map(|container_id| Attachment { container_id, ifname }));
                }
                None => {}
            }
        }
        for (tag, attachment) in found {
            valid.push(attachment.ok_or_else(|| format!("{tag} lives, and its name was cut"))?);
        }
        Ok(valid)
    }

    /// Returns true if and only if an attachment with this [`Owner::tag`] lives.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.lives.tags.contains(tag)
    }

    /// Returns true if and only if this attachment lives.
    pub fn has_attachment(&self, network: &str, attachment: &Attachment) -> bool {
        self.has_tag(&tag_in(network, attachment))
    }

    /// Networks and containers, as far as both are known.
    pub fn containers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lives.all.iter().filter_map(|life| match (&life.network, &life.container) {
            (Some(network), Some((id, true))) => Some((network.as_str(), id.as_str())),
            _ => None,
        })
    }

    /// Whether the container lives, in whichever network.
    pub fn has_container(&self, id: &str) -> bool {
        self.lives.containers.contains(id)
            || self.lives.parts.iter().any(|part| id.starts_with(part.as_str()))
    }

    /// Whether an attachment that lives is known to have this address.
    pub fn is_held(&self, ip: IpAddr) -> bool {
        self.lives.addrs.contains(&ip)
    }

    /// Whether an address of an entry's result may be another's by now, and rules that go by
    /// addresses with it.
    pub fn is_anothers(&self, entry: &Entry) -> bool {
        let known = Known { entry: entry.clone(), verdict: Verdict::Lives, own: true };
        known.addrs().into_iter().any(|ip| self.is_held(ip) || self.place_of(ip).is_some())
    }

    /// Where this address is in use.
    pub fn place_of(&self, ip: IpAddr) -> Option<String> {
        if self.own.contains(&ip) {
            return Some("on this host".to_owned());
        }
        self.seen.get(&ip).map(|path| format!("in the namespace {path}"))
    }

    /// The verdict on an object without a living owner: its addresses may be in use, by a pod
    /// that isn't known.
    pub fn by_addresses(&self, addrs: &[IpAddr], why: String) -> Verdict {
        for ip in addrs.iter().filter(|ip| !self.is_held(**ip)) {
            if let Some(place) = self.place_of(*ip) {
                return Verdict::Doubt(format!("{ip} is in use {place}, by nobody who is known"));
            }
        }
        self.unless_blind(why)
    }

    /// The same for what tells a container's ID and no address: only the cache and leases
    /// know of containers.
    pub fn by_container(&self, addrs: &[IpAddr], why: String) -> Verdict {
        if addrs.is_empty() && !self.has_cache {
            return Verdict::Doubt(
                "there is no result cache here that could tell whether the container lives".to_owned(),
            );
        }
        self.by_addresses(addrs, why)
    }

    /// An orphan, unless there is a namespace that can't be looked into.
    pub fn unless_blind(&self, why: String) -> Verdict {
        match self.blind.first() {
            None => Verdict::Orphan(why),
            Some(first) => Verdict::Doubt(format!("not every namespace can be looked into ({first})")),
        }
    }

    /// Whether the other end of a veth is here, too.
    pub fn both_ends_here(&self, link: &Link) -> bool {
        let is_other = |other: &Link| Some(other.index) == link.peer && other.peer == Some(link.index);
        link.kind == "veth" && link.far.is_none() && self.candidates.iter().any(is_other)
    }
}

/// The host's end of a pair whose other end is in a namespace: the pair goes with that.
fn life_of_link(link: &Link) -> Option<Life> {
    let tag = survey::tag(&link.alias).filter(|_| link.kind == "veth" && link.far.is_some())?;
    let container = survey::container(&link.alias).map(|(id, whole)| (id.to_owned(), whole));
    let ifname = Owner::named(&link.alias).map(|owner| owner.attachment.ifname);
    Some(Life { tag: Some(tag.to_owned()), network: None, container, ifname, addrs: Vec::new() })
}

/// The attachment that a comment with this tag names, if it is of this network.
///
/// # Errors
/// It is, and its name was cut.
pub(super) fn named(comment: &str, tag: &str, network: &str) -> Result<Option<Attachment>, String> {
    if !Owner::in_network(tag, network) {
        return Ok(None);
    }
    match Owner::named(comment).filter(|owner| owner.tag() == tag) {
        Some(owner) => Ok(Some(owner.attachment)),
        None => Err(format!("the name of {tag} was cut")),
    }
}

fn tag_in(network: &str, attachment: &Attachment) -> String {
    Owner { network: network.to_owned(), attachment: attachment.clone() }.tag()
}

fn same_dir(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Whether there is a namespace at this path that isn't our own.
pub fn namespace(path: &str) -> Option<NetNs> {
    let ns = NetNs::open(Path::new(path)).ok()?;
    let own = NetNs::current().ok()?;
    (!ns.same_as(&own).unwrap_or(true)).then_some(ns)
}
