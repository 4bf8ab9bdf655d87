//! Reads the counters of pods from the kernel.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use cnimble_cni::{Attachment, Owner, owner};
use cnimble_liveness::cache_entries::{host_links, owner_of};
use cnimble_liveness::named::short_name;
use cnimble_netlink::counters::Counters;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, NetNs, Netlink};
use cnimble_rules::objects::{ifb, pair};
use cnimble_runtime::{Cache, Entry};

/// An attachment with its counters, from the pod's point of view.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counted {
    pub(super) owner: Owner,
    pub(super) pod: Option<String>,
    /// The pod's name, or else a short form of the container ID.
    pub(super) title: String,
    /// The link of the host that leads to the pod, if there is one.
    pub(super) host_link: Option<String>,
    /// The counters, or `None` if the interface doesn't exist any more or can't be read.
    pub(super) counters: Option<Counters>,
    /// The drops by limits, of received and of sent traffic. It is `None` for a direction without a limit.
    pub(super) limited: [Option<u64>; 2],
}

/// The links of the host. Their counters and the drops of their limits are by index.
struct Host {
    links: Vec<Link>,
    counters: HashMap<u32, Counters>,
    drops: HashMap<u32, u64>,
}

impl Host {
    fn read() -> netlink::Result<Self> {
        let mut netlink = Netlink::open()?;
        let links = netlink.links(&Filter::default())?;
        let counters = netlink.counters()?.into_iter().collect();
        let drops = netlink.limit_drops()?.into_iter().collect();
        Ok(Host { links, counters, drops })
    }

    /// Returns the host's end of an attachment. It is found by its alias. If the Go plugins made it, it has no alias,
    /// but has the name in the result and leads into the pod's namespace.
    fn end(&self, owner: &Owner, entry: Option<&Entry>) -> Option<&Link> {
        let mut ends = self.links.iter().filter(|link| pair::leads_to_a_pod(link));
        let by_alias = ends.clone().find(|link| owner.owns(&link.alias));
        by_alias.or_else(|| {
            let named = entry.map(host_links).unwrap_or_default();
            let end = ends.find(|link| link.alias.is_empty() && named.contains(&link.name.as_str()))?;
            let netns = NetNs::open(Path::new(entry?.namespace()?)).ok()?;
            (Netlink::open().ok()?.number_of(&netns).ok()? == end.peer_netnsid).then_some(end)
        })
    }

    /// Returns the drops of the traffic that the pod sends, which the qdisc on the owner's ifb limits. It returns
    /// `None` without one.
    fn sent_drops(&self, owner: &Owner) -> Option<u64> {
        let name = ifb::name(&owner.network, &owner.attachment.container_id);
        let mut ifbs = self.links.iter().filter(|link| link.kind == ifb::KIND);
        let its =
            ifbs.find(|link| owner.owns(&link.alias) || (link.alias.is_empty() && link.name == name))?;
        self.limited(its.index)
    }

    /// Returns the drops of a link's limit, or `None` if it has none.
    fn limited(&self, index: u32) -> Option<u64> {
        self.drops.get(&index).copied()
    }

    /// Returns the counters of an attachment. `entry` is its cache entry, if there is one.
    fn count(&self, owner: Owner, entry: Option<&Entry>) -> Counted {
        let end = self.end(&owner, entry);
        let of_end = end.and_then(|link| self.counters.get(&link.index)).map(|of| of.of_the_other_end());
        // An interface without a host end is counted in the pod.
        let counters = of_end.or_else(|| inside(Path::new(entry?.namespace()?), &owner.attachment.ifname));
        let pod = entry.and_then(|entry| cnimble_doctor::tree::kubernetes_name(&entry.args));
        let short = short_name(&owner.attachment.container_id, entry.and_then(Entry::namespace));
        Counted {
            title: pod.clone().unwrap_or_else(|| short.to_owned()),
            pod,
            host_link: end.map(|link| link.name.clone()),
            counters,
            limited: [end.and_then(|link| self.limited(link.index)), self.sent_drops(&owner)],
            owner,
        }
    }
}

/// Returns the attachments of caches and of links with their counters. They are sorted by network, pod, container and
/// interface.
pub(super) fn read(caches: &[Cache]) -> Result<Vec<Counted>, String> {
    let mut entries = Vec::new();
    for cache in caches {
        entries.extend(cache.list().map_err(|err| err.to_string())?);
    }
    entries.retain(|entry| entry.ifname != "lo");
    // Links are read after the entries, so the links of each entry exist by now.
    let host = Host::read().map_err(|err| err.to_string())?;
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for entry in &entries {
        let owner = owner_of(entry);
        if seen.insert(owner.tag()) {
            all.push(host.count(owner, Some(entry)));
        }
    }
    for link in host.links.iter().filter(|link| pair::leads_to_a_pod(link)) {
        if let (Some(tag), Some(owner)) = (owner::tag(&link.alias), Owner::named(&link.alias))
            && seen.insert(tag.to_owned())
        {
            let mut counted = host.count(owner, None);
            counted.host_link = Some(link.name.clone());
            counted.counters = host.counters.get(&link.index).map(|of| of.of_the_other_end());
            all.push(counted);
        }
    }
    all.sort_by_cached_key(|of| {
        let Attachment { container_id, ifname } = of.owner.attachment.clone();
        (of.owner.network.clone(), of.pod.clone(), container_id, ifname)
    });
    Ok(all)
}

/// Returns the counters of an interface in a namespace, or `None` if they can't be read.
fn inside(netns: &Path, ifname: &str) -> Option<Counters> {
    let mut inside = Netlink::open_bounded(&NetNs::open(netns).ok()?).ok()?;
    let index = inside.link(ifname).ok()?.index;
    inside.counters().ok()?.into_iter().find(|(of, _)| *of == index).map(|(_, counters)| counters)
}
