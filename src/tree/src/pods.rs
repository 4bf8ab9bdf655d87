//! Pods: from the cache, and from the aliases of links that the cache doesn't know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cnimble_cni::{Attachment, CniResult, Owner, Version};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, NetNs, Netlink};
use cnimble_runtime::Entry;

use super::label;
use super::model::{Pod, PodInterface};
use super::read::peers;

/// RT_SCOPE_LINK (rtnetlink(7)).
const SCOPE_LINK: u8 = 253;

/// An owner whose names may be cut; the tag is whole.
pub(super) struct Named {
    pub(super) owner: Owner,
    pub(super) tag: String,
}

/// A pod, and what it is joined by.
pub(super) struct Attached {
    pub(super) owner: Named,
    pub(super) pod: Pod,
    pub(super) host_index: Option<u32>,
    pub(super) cni_version: Option<String>,
    pub(super) plugins: Vec<String>,
}

/// The cache's pods, each with what its namespace has.
pub(super) fn of_cache(entries: Vec<Entry>, links: &[Link]) -> Vec<Attached> {
    entries.into_iter().filter(|entry| entry.ifname != "lo").map(|entry| of_entry(&entry, links)).collect()
}

fn of_entry(entry: &Entry, links: &[Link]) -> Attached {
    let attachment = Attachment { container_id: entry.container_id.clone(), ifname: entry.ifname.clone() };
    let owner = Owner { network: entry.network.clone(), attachment };
    let list = entry.network_list().ok();
    let mut pod = Pod {
        container_id: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        name: kubernetes_name(&entry.args),
        netns: entry.namespace().map(str::to_owned),
        ..Pod::default()
    };
    let mut host_index = None;
    match pod.netns.clone() {
        Some(path) => match look_inside(Path::new(&path), &entry.ifname) {
            Ok(inside) => {
                host_index = peers(links, &inside.link).map(|link| link.index);
                inside.fill(&mut pod);
            }
            Err(err) if err.is_missing() && !Path::new(&path).exists() => {
                pod.problem = Some("its namespace is gone".to_owned());
            }
            Err(err) if err.is(nix::errno::Errno::ENODEV) => {
                pod.problem = Some(format!("it has no interface {}", entry.ifname));
            }
            Err(err) => pod.problem = Some(err.to_string()),
        },
        None => pod.problem = Some("the cache doesn't know its namespace".to_owned()),
    }
    let tag = owner.tag();
    if host_index.is_none() {
        // The alias still tells, where our plugins made the pair.
        host_index = links.iter().find(|link| owner.owns(&link.alias)).map(|link| link.index);
    }
    if pod.interface.is_none() {
        pod.addresses = given_addresses(entry);
    }
    Attached {
        owner: Named { owner, tag },
        pod,
        host_index,
        cni_version: list.as_ref().map(|list| list.version.to_string()),
        plugins: list.into_iter().flat_map(|list| list.plugins).map(|plugin| plugin.plugin_type).collect(),
    }
}

/// `NAMESPACE/NAME` from the arguments that a kubelet's runtime passes.
fn kubernetes_name(args: &[(String, String)]) -> Option<String> {
    let get = |wanted: &str| {
        let found = args.iter().find(|(key, _)| key == wanted);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    Some(format!("{}/{}", get("K8S_POD_NAMESPACE").unwrap_or("default"), get("K8S_POD_NAME")?))
}

fn given_addresses(entry: &Entry) -> Vec<String> {
    let read = |value| CniResult::from_value(value, Version::V0_2_0, "result").ok();
    let result = entry.result.as_ref().and_then(read).unwrap_or_default();
    result.ips.iter().map(|ip| ip.address.to_string()).collect()
}

/// Pods whose link says whose it is, and that no cache has told of.
pub(super) fn of_aliases(links: &[Link], known: &BTreeSet<u32>, dirs: &[PathBuf]) -> Vec<Attached> {
    let strangers = links.iter().filter(|link| link.kind == "veth" && !known.contains(&link.index));
    let owned: Vec<(&Link, Owner)> =
        strangers.filter_map(|link| Some((link, Owner::named(&link.alias)?))).collect();
    if owned.is_empty() {
        return Vec::new();
    }
    let namespaces = Namespaces::read(dirs);
    let attach = |(link, owner): (&Link, Owner)| {
        let mut pod = Pod {
            container_id: owner.attachment.container_id.clone(),
            ifname: owner.attachment.ifname.clone(),
            ..Pod::default()
        };
        match namespaces.behind(link, &pod.ifname) {
            Some((path, inside)) => {
                pod.netns = Some(path.display().to_string());
                inside.fill(&mut pod);
            }
            None => pod.problem = Some("the cache doesn't know it, nor where its namespace is".to_owned()),
        }
        let tag = link.alias.split(',').next().unwrap_or_default().to_owned();
        Attached {
            owner: Named { owner, tag },
            pod,
            host_index: Some(link.index),
            cni_version: None,
            plugins: Vec::new(),
        }
    };
    owned.into_iter().map(attach).collect()
}

/// Named namespaces with their veths.
struct Namespaces(Vec<(PathBuf, Vec<Link>)>);

impl Namespaces {
    fn read(dirs: &[PathBuf]) -> Self {
        let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let veths = |path: PathBuf| {
            let mut inside = Netlink::open_in(&NetNs::open(&path).ok()?).ok()?;
            Some((path, inside.links(&Filter { master: None, kind: Some("veth") }).ok()?))
        };
        Namespaces(paths.into_iter().filter_map(veths).collect())
    }

    fn behind(&self, link: &Link, ifname: &str) -> Option<(&Path, Inside)> {
        let is_peer = |other: &Link| {
            other.name == ifname && Some(other.index) == link.peer && other.peer == Some(link.index)
        };
        let (path, _) = self.0.iter().find(|(_, veths)| veths.iter().any(is_peer))?;
        Some((path, look_inside(path, ifname).ok()?))
    }
}

/// An interface in a pod.
struct Inside {
    link: Link,
    addresses: Vec<String>,
    routes: Vec<String>,
}

impl Inside {
    fn fill(self, pod: &mut Pod) {
        pod.interface = Some(PodInterface {
            kind: self.link.kind,
            mac: self.link.mac.map(|mac| mac.to_string()),
            mtu: self.link.mtu,
            up: self.link.up,
        });
        pod.addresses = self.addresses;
        pod.routes = self.routes;
    }
}

fn look_inside(netns: &Path, ifname: &str) -> netlink::Result<Inside> {
    let mut inside = Netlink::open_in(&NetNs::open(netns)?)?;
    let link = inside.link(ifname)?;
    let addresses = addresses(&mut inside, link.index)?;
    let routes = routes(&mut inside, link.index)?;
    Ok(Inside { link, addresses, routes })
}

/// Addresses of a link, without IPv6 link-local ones, which every link has.
pub(super) fn addresses(netlink: &mut Netlink, index: u32) -> netlink::Result<Vec<String>> {
    let mut found = netlink.addrs(index)?;
    found.retain(|addr| addr.net.is_ipv4() || addr.scope != SCOPE_LINK);
    let mut nets: Vec<_> = found.into_iter().map(|addr| (addr.net, addr.duplicate)).collect();
    nets.sort_by_key(|(net, _)| (net.is_ipv6(), net.ip(), net.prefix()));
    let text = |(net, duplicate)| format!("{net}{}", if duplicate { " (duplicate)" } else { "" });
    Ok(nets.into_iter().map(text).collect())
}

/// Routes out of a link, without those that come with its addresses.
pub(super) fn routes(netlink: &mut Netlink, index: u32) -> netlink::Result<Vec<String>> {
    let own: Vec<_> = netlink.addrs(index)?.into_iter().map(|addr| addr.net).collect();
    let mut routes = netlink.routes(index, None)?;
    let comes_with = |dst: ipnetwork::IpNetwork| {
        own.iter().any(|net| net.network() == dst.ip() && net.prefix() == dst.prefix())
    };
    routes.retain(|route| route.via.is_some() || !comes_with(route.dst));
    routes.sort_by_key(|route| (route.dst.is_ipv6(), route.dst.prefix(), route.dst.ip(), route.via));
    Ok(routes.iter().map(label::route).collect())
}
