//! Combines the kernel's links, the cache's entries and the rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cnimble_cni::{NetworkList, Owner};
use cnimble_liveness::cache_entries::owner_of;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::{self as netlink, Netlink};
use cnimble_rules::forward::Policy;
use cnimble_rules::listing::{self, OwnedRule};
use cnimble_rules::objects::bridge;
use cnimble_runtime::{Cache, CacheError};

use super::model::{HostLink, InterfaceState, Network, Pod, PodGroup, Port, Tree};
use super::pods;

/// The sources of a tree besides the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The caches with records. Of two entries for one attachment the first counts.
    pub caches: &'a [Cache],
    /// The networks that are drawn even without an attachment.
    pub configured: &'a [NetworkList],
    pub notes: &'a Notes,
}

/// Facts of a container runtime and findings of the doctor.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// `NAMESPACE/NAME`, by container ID.
    pub names: BTreeMap<String, String>,
    /// Problems as sentences, by container ID.
    pub problems: Vec<(String, String)>,
    /// What was not looked at, or not compared, with the reasons.
    pub not_checked: Vec<String>,
}

impl Notes {
    /// Writes name and problems into the pod that they are about. `noted` collects the IDs that have been used.
    pub(super) fn write_notes<'n>(&'n self, pod: &mut Pod, noted: &mut BTreeSet<&'n str>) {
        if let Some((id, name)) = self.names.iter().find(|(id, _)| pod.may_have_id(id)) {
            pod.name.get_or_insert_with(|| name.clone());
            noted.insert(id);
        }
        let of = self.problems.iter().filter(|(id, _)| pod.may_have_id(id));
        let mut problems: Vec<&str> = pod.problem.as_deref().into_iter().collect();
        for (id, problem) in of {
            noted.insert(id);
            problems.push(problem);
        }
        pod.problem = (!problems.is_empty()).then(|| problems.join("; "));
    }
}

/// Why there is no picture at all.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("the host's links can't be read: {0}")]
    Kernel(#[from] netlink::Error),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Reads the tree. It runs in the host's network namespace, and changes nothing. It takes about 1 ms for each pod. A
/// failure is noted in the tree, except that it fails if the host's links or the cache can't be listed.
pub fn read(sources: &Sources<'_>) -> Result<Tree, TreeError> {
    let mut host = Host::read()?;
    let mut tree = Tree { not_checked: sources.notes.not_checked.clone(), ..Tree::default() };
    let mut nft = Nft::new();
    let mut unread = |err| tree.problems.push(format!("packet rules can't be read: {err}"));
    // A kernel without nf_tables has no rules there that could be read.
    let (mut rules, mut policies) = Default::default();
    if nft.is_supported().map_err(&mut unread).unwrap_or_default() {
        rules = listing::list(&mut nft).map_err(&mut unread).unwrap_or_default();
        policies = listing::policies(&mut nft).map_err(&mut unread).unwrap_or_default();
    }
    let mut entries = Vec::new();
    let mut seen = BTreeSet::new();
    for cache in sources.caches {
        let (read, unread) = cache.list_with_unread()?;
        entries.extend(read);
        tree.problems.extend(unread.iter().map(ToString::to_string));
    }
    entries.retain(|of| seen.insert((of.network.clone(), of.container_id.clone(), of.ifname.clone())));
    let mut attached = pods::of_cache(entries, &host.links);
    attached.extend(pods::of_aliases(&host.links, &attached));

    let mut networks: BTreeMap<String, Builder> = BTreeMap::new();
    for list in sources.configured {
        networks.entry(list.name.clone()).or_insert_with(|| Builder::configured(list));
    }
    let mut used = vec![false; rules.len()];
    let mut noted = BTreeSet::new();
    for mut one in attached {
        sources.notes.write_notes(&mut one.pod, &mut noted);
        let tag = one.owner.tag.clone();
        for (rule, used) in rules.iter().zip(&mut used) {
            if rule.owner.is(&one.owner.owner, &tag) {
                *used = true;
                one.pod.rules.push(rule.effect.clone());
            }
        }
        let network = networks.entry(one.owner.owner.network.clone()).or_default();
        if network.plugins.is_empty() {
            (network.cni_version, network.plugins) = (one.cni_version, one.plugins);
        }
        let link = one.host_index.and_then(|index| host.by_index.get(&index).copied());
        let link = link.and_then(|at| host.links.get(at)).cloned();
        let master = link.as_ref().and_then(|link| link.master).or(one.parent);
        if let Some(link) = &link {
            if !link.up && one.pod.state == InterfaceState::Up {
                one.pod.state = InterfaceState::Down;
            }
            one.pod.link = Some(host.describe(link, &mut tree.problems));
        }
        network.pods.entry(master).or_default().push(one.pod);
    }
    let strays: Vec<&OwnedRule> =
        rules.iter().zip(&used).filter(|(_, used)| !**used).map(|(rule, _)| rule).collect();
    if !strays.is_empty() {
        tree.strays = lasting_strays(&strays, &mut nft, sources.caches);
    }
    for (id, problem) in sources.notes.problems.iter().filter(|(id, _)| !noted.contains(id.as_str())) {
        let name = sources.notes.names.get(id).map_or(id.get(..13).unwrap_or(id), String::as_str);
        tree.problems.push(format!("{name}: {problem}"));
    }
    for (name, network) in networks {
        tree.networks.push(network.build(name, &mut host, &policies, &mut tree.problems));
    }
    Ok(tree)
}

/// Looks at rules without a pod once more, and returns the texts about those that still have none. A DEL that ended, or an
/// ADD that began, between the reads of the rules and of the records leaves out a pod or its record. A rule or record that
/// can't be read now changes nothing.
fn lasting_strays(strays: &[&OwnedRule], nft: &mut Nft, caches: &[Cache]) -> Vec<String> {
    let entries = caches.iter().flat_map(|cache| cache.list_with_unread().unwrap_or_default().0);
    let owners: Vec<(Owner, String)> =
        entries.map(|entry| owner_of(&entry)).map(|owner| (owner.clone(), owner.tag())).collect();
    let without_record =
        strays.iter().filter(|rule| !owners.iter().any(|(owner, tag)| rule.owner.is(owner, tag)));
    let mut lasting: BTreeSet<String> = without_record.map(|rule| stray(rule)).collect();
    if let Ok(rules) = listing::list(nft) {
        let now: BTreeSet<String> = rules.iter().map(stray).collect();
        lasting.retain(|text| now.contains(text));
    }
    lasting.into_iter().collect()
}

/// Returns the text about a rule without a pod.
fn stray(rule: &OwnedRule) -> String {
    let owner = match &rule.owner {
        listing::RuleOwner::Comment(comment) => comment.clone(),
        listing::RuleOwner::Container { network, container_id } => {
            format!("net: {network}, id: {container_id}")
        }
    };
    format!("{} ({owner})", rule.effect)
}

/// A network while it is put together.
#[derive(Default)]
struct Builder {
    cni_version: Option<String>,
    plugins: Vec<String>,
    bridges: Vec<String>,
    /// The pods by the index of the bridge or master. `None` is for those without either.
    pods: BTreeMap<Option<u32>, Vec<Pod>>,
}

impl Builder {
    fn configured(list: &NetworkList) -> Self {
        Builder {
            cni_version: Some(list.version.to_string()),
            plugins: list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect(),
            bridges: bridge::configured(list).collect(),
            pods: BTreeMap::new(),
        }
    }

    fn build(
        mut self,
        name: String,
        host: &mut Host,
        policies: &[(String, Policy)],
        problems: &mut Vec<String>,
    ) -> Network {
        for bridge in &self.bridges {
            if let Some(link) = host.links.iter().find(|link| link.name == *bridge) {
                self.pods.entry(Some(link.index)).or_default();
            }
        }
        let mut places = Vec::new();
        for (master, mut pods) in self.pods {
            pods.sort_by_cached_key(|pod| {
                (natural(pod.title()), pod.ifname.clone(), pod.container_id.clone())
            });
            let link = master.and_then(|index| host.find_link(index)).cloned();
            let policy =
                link.as_ref().and_then(|link| policies.iter().find(|(bridge, _)| *bridge == link.name));
            places.push(PodGroup {
                policy: policy.map(|(_, policy)| policy.to_string()),
                others: link.as_ref().map(|link| host.strangers(link.index, problems)).unwrap_or_default(),
                link: link.map(|link| host.describe(&link, problems)),
                pods,
            });
        }
        // Pods without a bridge or master are drawn last.
        places.sort_by_key(|place| {
            let name = place.link.as_ref().map(|link| link.name.clone());
            (place.link.is_none(), name)
        });
        Network { name, cni_version: self.cni_version, plugins: self.plugins, places }
    }
}

/// Returns a key that sorts `web-10` after `web-9`.
pub fn natural(text: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (digits, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        parts.push((word.to_owned(), digits.parse().unwrap_or(0)));
        rest = tail;
    }
    parts
}

/// The links of the host.
struct Host {
    netlink: Netlink,
    links: Vec<Link>,
    by_index: HashMap<u32, usize>,
    /// The links that have been drawn.
    described: BTreeSet<u32>,
}

impl Host {
    fn read() -> netlink::Result<Self> {
        let mut netlink = Netlink::open()?;
        let mut links = netlink.links(&Filter { master: None, kind: None })?;
        links.sort_by(|a, b| a.name.cmp(&b.name));
        let by_index = links.iter().enumerate().map(|(at, link)| (link.index, at)).collect();
        Ok(Host { netlink, links, by_index, described: BTreeSet::new() })
    }

    fn find_link(&self, index: u32) -> Option<&Link> {
        self.links.get(*self.by_index.get(&index)?)
    }

    /// Describes a link. Addresses and routes of a bridge's port do not matter, so the kernel isn't asked for them.
    fn describe(&mut self, link: &Link, problems: &mut Vec<String>) -> HostLink {
        self.described.insert(link.index);
        let mut described = HostLink {
            name: link.name.clone(),
            kind: link.kind.clone(),
            mac: link.mac.map(|mac| mac.to_string()),
            mtu: link.mtu,
            up: link.up,
            port: link.port.map(|port| Port { hairpin: port.hairpin, isolated: port.isolated }),
            ..HostLink::default()
        };
        if link.master.is_some() {
            return described;
        }
        let read = pods::addresses(&mut self.netlink, link.index)
            .and_then(|addresses| Ok((addresses, pods::routes(&mut self.netlink, link.index)?)));
        match read {
            Ok((addresses, routes)) => (described.addresses, described.routes) = (addresses, routes),
            // The link may have gone in this moment.
            Err(err) if err.is_missing() => {}
            Err(err) => problems.push(format!("{}: {err}", link.name)),
        }
        described
    }

    /// Returns the ports of a bridge that belong to no pod. The pods must have been described before.
    fn strangers(&mut self, bridge: u32, problems: &mut Vec<String>) -> Vec<HostLink> {
        let ports = self.links.iter().filter(|link| link.master == Some(bridge));
        let ports: Vec<Link> = ports.filter(|link| !self.described.contains(&link.index)).cloned().collect();
        ports.iter().map(|port| self.describe(port, problems)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["web-10", "web-9", "a", "web-9b", "web", "99999999999999999999999"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["99999999999999999999999", "a", "web", "web-9", "web-9b", "web-10"]);
    }
}
