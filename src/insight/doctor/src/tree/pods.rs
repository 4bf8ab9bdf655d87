//! Finds the pods in the cache, and by the aliases of links those that the cache doesn't know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cnimble_cni::Owner;
pub use cnimble_liveness::cache_entries::kubernetes_name;
use cnimble_liveness::cache_entries::owner_of;
use cnimble_netlink::kind::Kind;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, NetNs, Netlink};
use cnimble_rules::objects::{device, pair};
use cnimble_runtime::Entry;

use super::label;
use super::model::{InterfaceState, Pod, PodInterface};

/// The scope RT_SCOPE_LINK (rtnetlink(7)).
const SCOPE_LINK: u8 = 253;

/// An owner. Its names may be cut, but the tag is complete.
pub(super) struct TaggedOwner {
    pub(super) owner: Owner,
    pub(super) tag: String,
}

/// A pod with its place on the host.
pub(super) struct PlacedPod {
    pub(super) owner: TaggedOwner,
    pub(super) pod: Pod,
    /// The index of the host's end.
    pub(super) host_index: Option<u32>,
    /// The index of the host's link on which its interface is made (macvlan).
    pub(super) parent: Option<u32>,
    pub(super) cni_version: Option<String>,
    pub(super) plugins: Vec<String>,
}

/// Returns the cache's pods, without loopback, each with what its namespace has.
pub(super) fn of_cache(entries: Vec<Entry>, links: &[Link]) -> Vec<PlacedPod> {
    entries.into_iter().filter(|entry| entry.ifname != "lo").map(|entry| of_entry(&entry, links)).collect()
}

fn of_entry(entry: &Entry, links: &[Link]) -> PlacedPod {
    let owner = owner_of(entry);
    let list = entry.network_list().ok();
    let mut pod = Pod {
        container_id: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        name: kubernetes_name(&entry.args),
        netns: entry.namespace().map(str::to_owned),
        ..Pod::default()
    };
    let (mut host_index, mut above) = (None, None);
    match pod.netns.clone() {
        Some(path) => match look_inside(Path::new(&path), &entry.ifname) {
            Ok(inside) => {
                host_index = inside.host_end(links).map(|link| link.index);
                above = inside.parent(links).map(|link| link.index);
                let device = list.as_ref().and_then(|list| device::name_on_host(list, &inside.link));
                inside.fill(&mut pod);
                if let Some(interface) = &mut pod.interface {
                    interface.device = device;
                }
            }
            Err(err) if err.is_missing() && !Path::new(&path).exists() => {
                pod.problem = Some("its namespace is not there".to_owned());
                pod.state = InterfaceState::NoNamespace;
            }
            Err(err) if err.is(nix::errno::Errno::ENODEV) => {
                pod.problem = Some(format!("it has no interface {}", entry.ifname));
                pod.state = InterfaceState::NoInterface;
            }
            Err(err) => pod.problem = Some(err.to_string()),
        },
        None => pod.problem = Some("its record names no namespace".to_owned()),
    }
    let tag = owner.tag();
    if host_index.is_none() {
        // The alias of the host's end names the owner, where our plugins made the pair.
        host_index = links.iter().find(|link| owner.owns(&link.alias)).map(|link| link.index);
    }
    if pod.interface.is_none() {
        pod.addresses = given_addresses(entry);
    }
    PlacedPod {
        owner: TaggedOwner { owner, tag },
        pod,
        host_index,
        parent: above,
        cni_version: list.as_ref().map(|list| list.version.to_string()),
        plugins: list.into_iter().flat_map(|list| list.plugins).map(|plugin| plugin.plugin_type).collect(),
    }
}

/// Returns the addresses in the result of an ADD, with their prefixes. The list is empty without a readable result.
pub fn given_addresses(entry: &Entry) -> Vec<String> {
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address.to_string()).collect()
}

/// Returns the pods that no entry of `told` is about, and that an alias names on the host's end or on the link in the
/// pod.
pub(super) fn of_aliases(links: &[Link], told: &[PlacedPod]) -> Vec<PlacedPod> {
    let known: BTreeSet<u32> = told.iter().filter_map(|of| of.host_index).collect();
    let tags: BTreeSet<&str> = told.iter().map(|of| of.owner.tag.as_str()).collect();
    let namespaces = Namespaces::read();
    let ends = links.iter().filter(|link| link.kind == pair::KIND && !known.contains(&link.index));
    let mut found: Vec<PlacedPod> = ends
        .filter_map(|link| {
            of_alias(link, links, |owner| namespaces.behind(link, &owner.attachment.ifname), Some(link.index))
        })
        .collect();
    let alone = namespaces.0.iter().flat_map(|(path, inside)| inside.iter().map(move |link| (path, link)));
    found.extend(alone.filter(|(_, link)| link.kind != pair::KIND && !tags.contains(tag(link))).filter_map(
        |(path, link)| {
            of_alias(link, links, |_| Some((path.as_path(), look_inside(path, &link.name).ok()?)), None)
        },
    ));
    found
}

/// Returns the tag at the beginning of an alias of cnimble. Another program's alias gives its own text up to the first
/// comma.
fn tag(link: &Link) -> &str {
    link.alias.split(',').next().unwrap_or_default()
}

/// Returns the pod that an alias names. `inside` looks for its namespace.
fn of_alias<'n>(
    link: &Link,
    links: &[Link],
    inside: impl FnOnce(&Owner) -> Option<(&'n Path, Inside)>,
    host_index: Option<u32>,
) -> Option<PlacedPod> {
    let owner = Owner::named(&link.alias)?;
    let mut pod = Pod {
        container_id: owner.attachment.container_id.clone(),
        ifname: owner.attachment.ifname.clone(),
        ..Pod::default()
    };
    let mut above = None;
    match inside(&owner) {
        Some((path, inside)) => {
            pod.netns = Some(path.display().to_string());
            above = inside.parent(links).map(|link| link.index);
            inside.fill(&mut pod);
        }
        None => {
            pod.problem =
                Some("no record that was read is of it, and its namespace was not found".to_owned());
        }
    }
    Some(PlacedPod {
        owner: TaggedOwner { owner, tag: tag(link).to_owned() },
        pod,
        host_index,
        parent: above,
        cni_version: None,
        plugins: Vec::new(),
    })
}

/// The directories in which runtimes keep named namespaces.
const NETNS_DIRS: [&str; 3] = ["/run/netns", "/run/cnimble/netns", "/run/docker/netns"];

/// The named namespaces with their links.
struct Namespaces(Vec<(PathBuf, Vec<Link>)>);

impl Namespaces {
    fn read() -> Self {
        let entries = NETNS_DIRS.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let mut namespaces = Vec::new();
        for path in paths {
            namespaces.extend(links_in(&path).map(|links| (path, links)));
        }
        Namespaces(namespaces)
    }

    /// Returns the namespace with the other end of a pair, which has this name there.
    fn behind(&self, link: &Link, ifname: &str) -> Option<(&Path, Inside)> {
        let candidates = self.0.iter().filter(|(_, inside)| {
            inside.iter().any(|other| other.name == ifname && Some(other.index) == link.peer)
        });
        candidates
            .filter_map(|(path, _)| Some((path.as_path(), look_inside(path, ifname).ok()?)))
            .find(|(_, inside)| link.leads_to(inside.link.index, inside.number))
    }
}

/// An interface as it is in its namespace.
struct Inside {
    link: Link,
    /// The peer netns ID by which the host knows the namespace. It is `None` if no link of the host leads there.
    number: Option<i32>,
    /// Whether the link on which it is made is in the host's namespace. A link of the pod may have the same index.
    is_on_host: bool,
    on: Option<String>,
    port_of: Option<String>,
    addresses: Vec<String>,
    routes: Vec<String>,
}

impl Inside {
    /// Returns the host's end of a pair. Only a link that leads to this namespace counts, because another one can have
    /// the index.
    fn host_end<'a>(&self, links: &'a [Link]) -> Option<&'a Link> {
        links.iter().find(|link| link.leads_to(self.link.index, self.number))
    }

    /// Returns the host's link on which it is made. It returns `None` if it is made on none, or on a link of the pod.
    fn parent<'a>(&self, links: &'a [Link]) -> Option<&'a Link> {
        let parent = self.link.peer.filter(|_| self.is_on_host)?;
        links.iter().find(|link| link.index == parent)
    }

    /// Writes interface, addresses and routes into the pod.
    fn fill(self, pod: &mut Pod) {
        pod.state = if self.link.up { InterfaceState::Up } else { InterfaceState::Down };
        pod.interface = Some(PodInterface {
            kind: self.link.kind,
            settings: self.link.settings.map(|kind| kind.to_string()),
            on: self.on,
            port_of: self.port_of,
            device: None,
            mac: self.link.mac.map(|mac| mac.to_string()),
            mtu: self.link.mtu,
            up: self.link.up,
        });
        pod.addresses = self.addresses;
        pod.routes = self.routes;
    }
}

/// Reads an interface in a namespace. The error is ENODEV if it is missing.
fn look_inside(netns: &Path, ifname: &str) -> netlink::Result<Inside> {
    let netns = NetNs::open(netns)?;
    let mut inside = Netlink::open_bounded(&netns)?;
    let link = inside.link(ifname)?;
    let number = Netlink::open()?.number_of(&netns)?;
    let is_made = link.settings.is_some_and(Kind::has_parent);
    let is_on_host =
        is_made && link.peer_netnsid.is_some() && link.peer_netnsid == inside.number_of(&NetNs::current()?)?;
    let addresses = addresses(&mut inside, link.index)?;
    let routes = routes(&mut inside, link.index)?;
    // Without a peer netns ID the parent is in the pod itself.
    let on = link.peer.filter(|_| is_made && link.peer_netnsid.is_none());
    let (on, port_of) = (name_at(&mut inside, on), name_at(&mut inside, link.master));
    Ok(Inside { link, number, is_on_host, on, port_of, addresses, routes })
}

/// Returns the name of the link with this index, if there is one.
fn name_at(netlink: &mut Netlink, index: Option<u32>) -> Option<String> {
    netlink.link_at(index?).ok().map(|link| link.name)
}

/// Returns the links in a namespace, or `None` if they can't be read.
fn links_in(netns: &Path) -> Option<Vec<Link>> {
    Netlink::open_bounded(&NetNs::open(netns).ok()?).ok()?.links(&Filter::default()).ok()
}

/// Returns the addresses of a link as texts, sorted, without IPv6 link-local ones, which every link has.
pub(super) fn addresses(netlink: &mut Netlink, index: u32) -> netlink::Result<Vec<String>> {
    let mut found = netlink.addrs(index)?;
    found.retain(|addr| addr.net.is_ipv4() || addr.scope != SCOPE_LINK);
    let mut nets: Vec<_> = found.into_iter().map(|addr| (addr.net, addr.duplicate)).collect();
    nets.sort_by_key(|(net, _)| (net.is_ipv6(), net.ip(), net.prefix()));
    let texts = nets.into_iter().map(
        |(net, duplicate)| {
            if duplicate { format!("{net} (duplicate)") } else { net.to_string() }
        },
    );
    Ok(texts.collect())
}

/// Returns the routes over a link as texts, sorted, without those that the kernel adds for its addresses.
pub(super) fn routes(netlink: &mut Netlink, index: u32) -> netlink::Result<Vec<String>> {
    let own: Vec<_> = netlink.addrs(index)?.into_iter().map(|addr| addr.net).collect();
    let mut routes = netlink.routes(index, None)?;
    routes.retain(|route| {
        let dst = route.dst;
        route.via.is_some()
            || !own.iter().any(|net| net.network() == dst.ip() && net.prefix() == dst.prefix())
    });
    routes.sort_by_key(|route| (route.dst.is_ipv6(), route.dst.prefix(), route.dst.ip(), route.via));
    Ok(routes.iter().map(label::route).collect())
}
