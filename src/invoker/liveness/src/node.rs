//! The evidence by which attachments are judged, apart from packet rules, and the attachments that live or may live.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::link::Link;
use cnimble_rules::objects::pair;
use cnimble_rules::survey;
use cnimble_runtime::Entry;

use super::Verdict;
use super::cache_entries::JudgedEntry;
use super::leases::JudgedLeases;
use super::runtime::Sandbox;

/// An attachment that lives, or may live.
#[derive(Debug, Clone)]
pub struct LivingAttachment {
    /// The [`Owner::tag`]. It is `None` for a lease that names no interface.
    pub tag: Option<String>,
    /// The network, or `None` if only a tag is known.
    pub network: Option<String>,
    /// The container's ID, and whether it is complete. An alias can have cut it.
    pub container: Option<(String, bool)>,
    pub ifname: Option<String>,
    /// The addresses that it is known to have.
    pub addrs: Vec<IpAddr>,
}

impl LivingAttachment {
    /// Returns an attachment that lives, or may live, with a completely known name.
    pub fn from_owner(owner: &Owner, addrs: Vec<IpAddr>) -> Self {
        LivingAttachment {
            tag: Some(owner.tag()),
            network: Some(owner.network.clone()),
            container: Some((owner.attachment.container_id.clone(), true)),
            ifname: Some(owner.attachment.ifname.clone()),
            addrs,
        }
    }

    /// Returns whether this is the attachment of the entry, whose [`Owner::tag`] is `tag`. A lease that names no
    /// interface can be of any attachment of its container.
    fn is_of(&self, entry: &Entry, tag: &str) -> bool {
        match &self.tag {
            Some(own) => own == tag,
            None => {
                self.network.as_deref() == Some(entry.network.as_str())
                    && self.container.as_ref().is_some_and(|(id, whole)| *whole && *id == entry.container_id)
            }
        }
    }

    /// Returns the container's ID, or the part of it that is known.
    fn container_id(&self) -> Option<&str> {
        self.container.as_ref().map(|(id, _)| id.as_str())
    }
}

/// The attachments that live or may live, with indices for look-ups.
#[derive(Debug, Default)]
pub(super) struct LivingAttachments {
    all: Vec<LivingAttachment>,
    tags: HashSet<String>,
    addrs: HashSet<IpAddr>,
    containers: HashSet<String>,
    /// The beginnings of IDs that an alias has cut.
    parts: Vec<String>,
}

impl LivingAttachments {
    pub(super) fn tags(&self) -> HashSet<String> {
        self.tags.clone()
    }

    pub(super) fn extend(&mut self, lives: impl IntoIterator<Item = LivingAttachment>) {
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

/// The evidence of one reading of the node, with the verdicts on its cache entries and leases.
#[derive(Debug)]
pub struct Node {
    /// The host's links as they were listed first. These are the links to judge.
    pub candidates: Vec<Link>,
    /// The host's links as they were listed last, as evidence.
    pub links: Vec<Link>,
    /// The addresses of the host itself, without loopback and IPv6 link-local ones.
    pub(super) own: HashSet<IpAddr>,
    /// The addresses in other namespaces, each with the path of one that has it.
    pub(super) seen: BTreeMap<IpAddr, Arc<str>>,
    /// Why some namespaces, or entries of the caches, could not be read. While there is a reason, no missing address
    /// makes an orphan.
    pub blind: Vec<String>,
    /// The cache entries with their verdicts.
    pub entries: Vec<JudgedEntry>,
    /// Whether any of the caches exists.
    pub(super) has_cache: bool,
    /// The leases with their verdicts.
    pub leases: JudgedLeases,
    /// The sandboxes of the container runtime by ID. It is `None` if no runtime was asked.
    pub sandboxes: Option<BTreeMap<String, Sandbox>>,
    pub(super) lives: LivingAttachments,
    /// The tags of attachments that live for certain: a link leads to their pod, or their entry's interface is there.
    pub(super) certain: HashSet<String>,
}

impl Node {
    /// Returns how many attachments live or may live. A lease that names no interface counts as one attachment, unless
    /// another of the same container is known.
    pub fn attachments(&self) -> usize {
        self.lives.tags.len() + self.only_leased(None).len()
    }

    /// Returns how many attachments live or may live, and have no entry in a cache that was read.
    pub fn unrecorded(&self) -> usize {
        let recorded: HashSet<String> = self.entries.iter().map(|known| known.owner().tag()).collect();
        let containers: HashSet<&str> =
            self.entries.iter().map(|known| known.entry.container_id.as_str()).collect();
        self.lives.tags.difference(&recorded).count() + self.only_leased(None).difference(&containers).count()
    }

    /// Counts as [`Node::attachments`] does, in one network.
    pub fn attachments_in(&self, network: &str) -> usize {
        let tags = self.lives.tags.iter().filter(|tag| Owner::in_network(tag, network)).count();
        tags + self.only_leased(Some(network)).len()
    }

    /// Returns the containers that only a lease without an interface shows, in all networks or in the given one.
    fn only_leased(&self, network: Option<&str>) -> HashSet<&str> {
        let (with_interface, leased): (Vec<&LivingAttachment>, Vec<&LivingAttachment>) =
            self.lives.all.iter().partition(|life| life.tag.is_some());
        let named: HashSet<&str> =
            with_interface.into_iter().filter_map(LivingAttachment::container_id).collect();
        let mut containers: HashSet<&str> = leased
            .into_iter()
            .filter(|life| network.is_none_or(|network| life.network.as_deref() == Some(network)))
            .filter_map(LivingAttachment::container_id)
            .collect();
        // An alias can have cut the ID of its container.
        let is_cut = |id: &str| self.lives.parts.iter().any(|part| id.starts_with(part.as_str()));
        containers.retain(|id| !named.contains(id) && !is_cut(id));
        containers
    }

    /// Returns the attachments of a network that live or may live.
    ///
    /// # Errors
    /// Fails if the name of one was cut in its alias, and no other source has it.
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
                // A lease in the old form names no interface. `eth0` is what runtimes ask for.
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

    /// Returns true if and only if an attachment with this [`Owner::tag`] lives or may live.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.lives.tags.contains(tag)
    }

    /// Returns whether a link or a good entry shows that the attachment with this tag lives. False proves nothing.
    pub fn lives_surely(&self, tag: &str) -> bool {
        self.certain.contains(tag)
    }

    /// Returns true if and only if this attachment lives or may live.
    pub fn has_attachment(&self, network: &str, attachment: &Attachment) -> bool {
        self.has_tag(&tag_in(network, attachment))
    }

    /// Returns network and container ID of each attachment that lives or may live, as far as both are completely known.
    pub fn containers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lives.all.iter().filter_map(|life| match (&life.network, &life.container) {
            (Some(network), Some((id, true))) => Some((network.as_str(), id.as_str())),
            _ => None,
        })
    }

    /// Returns whether an attachment of this container lives or may live, in any network.
    pub fn has_container(&self, id: &str) -> bool {
        self.lives.containers.contains(id)
            || self.lives.parts.iter().any(|part| id.starts_with(part.as_str()))
    }

    /// Returns whether the container runtime lists this sandbox. `id` may be the beginning of an ID, unless `whole`. It
    /// returns false if no runtime was asked.
    pub fn is_listed(&self, id: &str, whole: bool) -> bool {
        let Some(sandboxes) = &self.sandboxes else { return false };
        if whole {
            sandboxes.contains_key(id)
        } else {
            sandboxes.range(id.to_owned()..).next().is_some_and(|(listed, _)| listed.starts_with(id))
        }
    }

    /// Returns whether the runtime lists the container that a comment or an alias names. It returns false if it names
    /// none.
    pub fn is_listed_in(&self, comment: &str) -> bool {
        survey::container(comment).is_some_and(|(id, whole)| self.is_listed(id, whole))
    }

    /// Returns whether an attachment that lives, or may live, is known to have this address.
    pub fn is_held(&self, ip: IpAddr) -> bool {
        self.lives.addrs.contains(&ip)
    }

    /// Returns whether an address of the entry's result is in use, perhaps by another pod. Then rules for the address
    /// must not be removed on behalf of this entry. A lease of the entry's own attachment is no other pod.
    pub fn is_anothers(&self, entry: &Entry) -> bool {
        let cache = PathBuf::new();
        let known = JudgedEntry { entry: entry.clone(), verdict: Verdict::Lives, own: true, cache };
        let tag = known.owner().tag();
        let others = || self.lives.all.iter().filter(|life| !life.is_of(entry, &tag));
        known
            .addrs()
            .into_iter()
            .any(|ip| others().any(|life| life.addrs.contains(&ip)) || self.place_of(ip).is_some())
    }

    /// Returns where the address is in use, as the end of a sentence: on the host, or in a namespace. It returns `None`
    /// if it was not found.
    pub fn place_of(&self, ip: IpAddr) -> Option<String> {
        if self.own.contains(&ip) {
            return Some("on this host".to_owned());
        }
        self.seen.get(&ip).map(|path| format!("in the namespace {path}"))
    }

    /// Returns the verdict on an object without a living owner, for the reason `why`. It is a doubt if one of its
    /// addresses is in use by an unknown owner, or if a namespace or a cache entry could not be read. Otherwise it is an
    /// orphan.
    pub fn by_addresses(&self, addrs: &[IpAddr], why: String) -> Verdict {
        for ip in addrs.iter().filter(|ip| !self.is_held(**ip)) {
            if let Some(place) = self.place_of(*ip) {
                return Verdict::Doubt(format!("{ip} is in use {place}, by an unknown owner"));
            }
        }
        self.unless_blind(why)
    }

    /// Does the same for an object that names only its container. If it has no addresses and there is no cache, nothing
    /// can tell whether the container lives, and this is a doubt.
    pub fn by_container(&self, addrs: &[IpAddr], why: String) -> Verdict {
        if addrs.is_empty() && !self.has_cache {
            return Verdict::Doubt(
                "there is no result cache here that could tell whether the container lives".to_owned(),
            );
        }
        self.by_addresses(addrs, why)
    }

    /// Returns an orphan, or a doubt if a namespace or a cache entry could not be read.
    pub fn unless_blind(&self, why: String) -> Verdict {
        match self.blind.first() {
            None => Verdict::Orphan(why),
            Some(first) => {
                Verdict::Doubt(format!("not every namespace and record can be looked into ({first})"))
            }
        }
    }

    /// Returns whether `link` is an end of a veth pair whose other end is on the host, too, so that it leads to no pod.
    pub fn both_ends_here(&self, link: &Link) -> bool {
        link.kind == pair::KIND
            && link.peer_netnsid.is_none()
            && self
                .candidates
                .iter()
                .any(|other| Some(other.index) == link.peer && other.peer == Some(link.index))
    }
}

/// Returns the attachment that a comment names, or `None` if the tag is of another network.
///
/// # Errors
/// Fails if the comment is of this network, and its name was cut.
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
