//! The order in which the node is read, and the verdicts on cache entries and leases. The crate's documentation
//! explains why the order matters.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::{Error, Owner};
use cnimble_leases::holder::Holder;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::objects::pair;
use cnimble_rules::survey::{self, Trace};

use super::cache_entries::{self, JudgedEntry};
use super::leases::{JudgedLease, JudgedLeases, Network};
use super::node::{LivingAttachment, LivingAttachments, Node};
use super::{Evidence, Verdict, inside, namespaces, young};

/// Reads the node and judges its cache entries and leases. The caller has read `traces`, packet rules, before this.
/// Their addresses are searched for in the namespaces, so that the rules can be judged by the returned node.
pub(super) fn read_node(evidence: &Evidence, traces: &[Trace]) -> Result<Node, Error> {
    // The objects to judge are read first.
    let mut host = Netlink::open()?;
    let candidates = host.links(&Filter::default())?;
    let cache = &evidence.cache;
    let mut unread = Vec::new();
    let mut entries = cache_entries::read(cache, true, &mut unread)?;
    let others: Vec<_> = evidence.others.iter().filter(|other| !evidence.is_own(other)).collect();
    for other in &others {
        entries.extend(cache_entries::read(other, evidence.judge_others, &mut unread)?);
    }
    let mut leases = JudgedLeases::read(evidence, &entries)?;
    // The evidence for their owners is read afterwards.
    let listed = evidence.runtime.as_ref().map(|runtime| runtime.sandboxes()).transpose()?;
    let paths = entries.iter().filter_map(|known| known.entry.namespace()).map(PathBuf::from);
    let of_entries = entries.iter().flat_map(JudgedEntry::addrs);
    let of_leases = leases.all().filter_map(|(_, lease)| Some(lease.held.as_ref()?.0));
    let of_traces = traces.iter().flat_map(|trace| trace.addrs.iter().copied());
    let judged = of_entries.chain(of_leases).chain(of_traces).collect();
    let seen = namespaces::search(paths.filter(|path| !matches!(NetNs::find(path), Ok(None))), judged);
    let own = host.all_addrs()?.into_iter().map(|addr| addr.net.ip());
    let own = own.filter(|ip| namespaces::can_identify_a_pod(*ip)).collect();
    let mut node = Node {
        candidates,
        links: host.links(&Filter::default())?,
        own,
        seen: seen.addrs,
        blind: seen.blind.into_iter().chain(unread).collect(),
        entries: Vec::new(),
        has_cache: std::iter::once(cache).chain(others).any(|cache| cache.dir().join("results").is_dir()),
        leases: JudgedLeases::default(),
        sandboxes: listed.map(|all| all.into_iter().map(|of| (of.id.clone(), of)).collect()),
        lives: LivingAttachments::default(),
        certain: HashSet::new(),
    };
    let ends: Vec<LivingAttachment> = node
        .links
        .iter()
        .filter(|link| pair::leads_to_a_pod(link))
        .chain(&seen.owned)
        .filter_map(life_of_link)
        .collect();
    node.lives.extend(ends);
    node.certain = node.lives.tags();
    let holders = holders(&leases, &node);
    node.lives.extend(holders);
    // Entries with an existing namespace are judged first. They claim their addresses, so that no dead entry with the
    // same address lives by them.
    entries.sort_by_cached_key(|known| !known.has_namespace());
    for mut known in entries {
        known.verdict = entry(&known, &node, &mut host);
        if known.verdict == Verdict::Lives {
            node.certain.insert(known.owner().tag());
        }
        if !matches!(known.verdict, Verdict::Orphan(_)) {
            node.lives.extend([LivingAttachment::from_owner(&known.owner(), known.addrs())]);
        }
        node.entries.push(known);
    }
    let lives = judge_all(&mut leases, evidence, &node);
    node.lives.extend(lives);
    node.leases = leases;
    Ok(node)
}

/// Returns the entries of the judged caches whose namespace has their interface. An entry that can't be checked is left
/// out. With a container's ID only its entries count. The result is not enough to remove anything.
pub(super) fn attached(evidence: &Evidence, container_id: Option<&str>) -> Result<Vec<JudgedEntry>, Error> {
    let mut host = Netlink::open()?;
    let mut attached = Vec::new();
    for cache in evidence.judged() {
        for known in cache_entries::read_own(cache, container_id)? {
            let ns = known.entry.namespace().map(namespaces::namespace);
            if let Some(Ok(Some(ns))) = ns
                && matches!(inside::doubt(&known.entry, &ns, &mut host), Ok(None))
            {
                attached.push(known);
            }
        }
    }
    Ok(attached)
}

/// Returns the attachment that a link's alias names, or `None` if the alias is not one of cnimble. The caller passes
/// only links that vanish with the pod's namespace: a host's end whose peer is in a namespace, or an interface in a
/// namespace.
fn life_of_link(link: &Link) -> Option<LivingAttachment> {
    let tag = survey::tag(&link.alias)?;
    let container = survey::container(&link.alias).map(|(id, whole)| (id.to_owned(), whole));
    let ifname = Owner::named(&link.alias).map(|owner| owner.attachment.ifname);
    Some(LivingAttachment { tag: Some(tag.to_owned()), network: None, container, ifname, addrs: Vec::new() })
}

/// Returns the attachments that are already known to live, each with its leased addresses.
fn holders(leases: &JudgedLeases, node: &Node) -> Vec<LivingAttachment> {
    let mut lives = Vec::new();
    for (network, lease) in leases.all() {
        if let Some((ip, holder @ Holder::Attachment(attachment))) = &lease.held
            && node.has_attachment(&network.name, attachment)
        {
            lives.extend(life(&network.name, holder, *ip));
        }
    }
    lives
}

/// Writes the verdict into each lease. Returns the holders that live or may live.
fn judge_all(leases: &mut JudgedLeases, evidence: &Evidence, node: &Node) -> Vec<LivingAttachment> {
    let mut lives = Vec::new();
    for (network, of) in leases.all_mut() {
        of.verdict = lease(evidence, node, network, of);
        if let (Some((ip, holder)), Verdict::Lives | Verdict::Doubt(_)) = (&of.held, &of.verdict) {
            lives.extend(life(&network.name, holder, *ip));
        }
    }
    lives
}

/// Judges a cache entry by its namespace and interface, then by links, the runtime's list and its addresses. The
/// addresses count only against entries that were judged before: see [`read_node`].
fn entry(known: &JudgedEntry, node: &Node, host: &mut Netlink) -> Verdict {
    let path = known.entry.namespace();
    let ns = match path.map(namespaces::namespace).transpose() {
        Ok(ns) => ns.flatten(),
        Err(err) => return Verdict::Doubt(err.to_string()),
    };
    if let Some(ns) = ns {
        return match inside::doubt(&known.entry, &ns, host) {
            Ok(None) => Verdict::Lives,
            Ok(Some(doubt)) => Verdict::Doubt(doubt),
            Err(err) => Verdict::Doubt(err.to_string()),
        };
    }
    if node.has_tag(&known.owner().tag()) || node.is_listed(&known.entry.container_id, true) {
        return Verdict::Lives;
    }
    match path {
        Some(path) => {
            node.by_addresses(&known.addrs(), format!("{path} leads here to no namespace of a pod"))
        }
        None => Verdict::Doubt("it doesn't tell its namespace".to_owned()),
    }
}

/// Judges a lease. One that would be an orphan is a doubt if it is younger than the grace period, or if other hosts may
/// share its file system. A lease of an earlier boot needs no grace period.
fn lease(evidence: &Evidence, node: &Node, network: &Network, lease: &JudgedLease) -> Verdict {
    let Some((ip, holder)) = &lease.held else {
        let why = "it is a file of an unfinished write".to_owned();
        return find_doubt(evidence, network, lease).map_or(Verdict::Orphan(why), Verdict::Doubt);
    };
    match by_holder(node, network, *ip, holder, lease.before_boot) {
        Verdict::Orphan(why) => match find_doubt(evidence, network, lease) {
            Some(doubt) if network.doubt.is_some() || !lease.before_boot => Verdict::Doubt(doubt),
            _ => Verdict::Orphan(why),
        },
        verdict => verdict,
    }
}

/// Returns why a lease may not be called an orphan: other hosts may share its file system, or it is young. It returns
/// `None` if it may be called one.
fn find_doubt(evidence: &Evidence, network: &Network, lease: &JudgedLease) -> Option<String> {
    network.doubt.clone().or_else(|| young(&lease.path, evidence.grace))
}

/// Judges a lease by its holder and by the address alone, without regard to its age.
fn by_holder(node: &Node, network: &Network, ip: IpAddr, holder: &Holder, before_boot: bool) -> Verdict {
    let place = node.place_of(ip);
    let lives = match holder {
        Holder::Attachment(attachment) => {
            node.has_attachment(&network.name, attachment) || node.is_listed(&attachment.container_id, true)
        }
        Holder::Container(id) => node.has_container(id) || node.is_listed(id, true),
        Holder::Broken => {
            return match place {
                Some(place) => Verdict::Doubt(format!("{ip} is in use {place}")),
                None => node.unless_blind("it is empty or damaged and names no owner".to_owned()),
            };
        }
        Holder::Unknown => return Verdict::Doubt("it isn't a lease file, or can't be read".to_owned()),
    };
    match place {
        _ if lives => Verdict::Lives,
        // The attachment with this address is known, and is not the lease's holder. The address is not free, so the
        // lease stays.
        Some(place) if node.is_held(ip) => Verdict::Doubt(format!("another pod uses {ip} {place}")),
        Some(_) => Verdict::Lives,
        None if before_boot => node.unless_blind(
            "it was made before this boot, which no namespace outlived, and no pod that can be seen from here has its \
             address"
                .to_owned(),
        ),
        None => {
            let gone = "its address is in no network namespace that can be seen from here, and neither a record nor a \
                        link that was read shows that its owner lives";
            node.unless_blind(match node.sandboxes {
                Some(_) => format!("the runtime lists no such sandbox: {gone}"),
                None => gone.to_owned(),
            })
        }
    }
}

/// Returns the living attachment that a lease proves, or `None` for a lease without a readable holder. A lease with a
/// container ID alone proves one without a tag and an interface.
fn life(network: &str, holder: &Holder, ip: IpAddr) -> Option<LivingAttachment> {
    match holder {
        Holder::Attachment(attachment) => {
            let owner = Owner { network: network.to_owned(), attachment: attachment.clone() };
            Some(LivingAttachment::from_owner(&owner, vec![ip]))
        }
        Holder::Container(id) => Some(LivingAttachment {
            tag: None,
            network: Some(network.to_owned()),
            container: Some((id.clone(), true)),
            ifname: None,
            addrs: vec![ip],
        }),
        Holder::Broken | Holder::Unknown => None,
    }
}
