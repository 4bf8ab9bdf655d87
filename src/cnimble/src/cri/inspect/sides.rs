//! Compares the three views of a pod line by line.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cri::SandboxStatus;
use cnimble_doctor::tree::{Pod, Tree};
use cnimble_liveness::Sight;
use cnimble_liveness::cache_entries::Known;
use cnimble_netlink::{self as netlink, NetNs, Netlink};

/// The values of one property in the runtime, the cache and the kernel.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) what: &'static str,
    pub(super) runtime: Vec<String>,
    pub(super) cache: Vec<String>,
    pub(super) kernel: Vec<String>,
}

impl Line {
    /// Returns the rows of a table. Only the first row has the name.
    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let height = self.runtime.len().max(self.cache.len()).max(self.kernel.len());
        let cell = |side: &Vec<String>, row: usize| match side.get(row) {
            Some(text) => text.clone(),
            None if row == 0 => "-".to_owned(),
            None => String::new(),
        };
        let row = |row: usize| {
            let what = if row == 0 { self.what } else { "" };
            vec![what.to_owned(), cell(&self.runtime, row), cell(&self.cache, row), cell(&self.kernel, row)]
        };
        (0..height).map(row).collect()
    }
}

/// The views of a pod and their differences.
pub(super) struct Sides {
    pub(super) lines: Vec<Line>,
    pub(super) differences: Vec<String>,
}

struct Interface {
    name: String,
    mac: String,
    addrs: Vec<(IpAddr, String)>,
}

impl Sides {
    pub(super) fn of(status: &SandboxStatus, sight: &Sight, tree: &Tree) -> Self {
        let id = &status.sandbox.id;
        let entries: Vec<&Known> =
            sight.node.entries.iter().filter(|known| known.entry.container_id == *id).collect();
        let entries: Vec<&Known> = entries.into_iter().filter(|known| known.entry.ifname != "lo").collect();
        let cached = entries.first().and_then(|known| known.entry.namespace()).map(PathBuf::from);
        let path = status.netns.clone().or(cached.clone());
        let mut differences = Vec::new();
        let inside = match &path {
            Some(path) if !status.host_network => look(path),
            _ => Ok(Vec::new()),
        };
        let (there, interfaces) = match inside {
            Ok(interfaces) => ("there".to_owned(), interfaces),
            Err(err) if err.is_missing() => ("gone".to_owned(), Vec::new()),
            Err(err) => (err.to_string(), Vec::new()),
        };
        if let (Some(told), Some(cached)) = (&status.netns, &cached)
            && plain(told) != plain(cached)
        {
            differences.push("the runtime's namespace is not the cache's".to_owned());
        }
        let kernel: BTreeSet<IpAddr> =
            interfaces.iter().flat_map(|of| of.addrs.iter().map(|(ip, _)| *ip)).collect();
        if status.sandbox.ready && !status.host_network {
            differences.extend(expected(status, &entries, &interfaces, &kernel));
        }
        let pods: Vec<&Pod> = tree
            .networks
            .iter()
            .flat_map(|network| network.places.iter().flat_map(|place| &place.pods))
            .filter(|pod| !pod.container_id.is_empty() && id.starts_with(&pod.container_id))
            .collect();
        let leases = sight.node.leases.all().filter(|(_, lease)| lease.container() == Some(id));
        let mut lines = vec![
            Line { what: "state", runtime: vec![status.sandbox.state().to_owned()], ..Line::default() },
            Line {
                what: "namespace",
                runtime: match (&status.netns, status.host_network) {
                    (_, true) => vec!["the node's".to_owned()],
                    (netns, false) => netns.iter().map(|path| path.display().to_string()).collect(),
                },
                cache: cached.iter().map(|path| path.display().to_string()).collect(),
                kernel: if path.is_some() && !status.host_network { vec![there] } else { Vec::new() },
            },
            Line {
                what: "network",
                cache: entries.iter().map(|known| network(known)).collect(),
                ..Line::default()
            },
            Line {
                what: "interface",
                cache: entries.iter().map(|known| known.entry.ifname.clone()).collect(),
                kernel: interfaces.iter().map(|of| format!("{} {}", of.name, of.mac)).collect(),
                ..Line::default()
            },
            Line {
                what: "address",
                runtime: status.ips.iter().map(ToString::to_string).collect(),
                cache: entries
                    .iter()
                    .filter_map(|known| known.result())
                    .flat_map(|result| result.ips)
                    .map(|ip| ip.address.to_string())
                    .collect(),
                kernel: interfaces
                    .iter()
                    .flat_map(|of| of.addrs.iter().map(|(_, text)| text.clone()))
                    .collect(),
            },
            Line {
                what: "lease",
                cache: leases.map(|(_, lease)| lease.path.display().to_string()).collect(),
                ..Line::default()
            },
            Line {
                what: "host's end",
                kernel: pods.iter().filter_map(|pod| Some(pod.link.as_ref()?.name.clone())).collect(),
                ..Line::default()
            },
            Line {
                what: "route",
                kernel: pods.iter().flat_map(|pod| pod.routes.clone()).collect(),
                ..Line::default()
            },
            Line {
                what: "rule",
                kernel: pods.iter().flat_map(|pod| pod.rules_in_words()).collect(),
                ..Line::default()
            },
        ];
        lines.retain(|line| !(line.runtime.is_empty() && line.cache.is_empty() && line.kernel.is_empty()));
        Sides { lines, differences }
    }
}

/// Returns what a Ready pod should have but lacks.
fn expected(
    status: &SandboxStatus,
    entries: &[&Known],
    interfaces: &[Interface],
    kernel: &BTreeSet<IpAddr>,
) -> Vec<String> {
    let mut missing = Vec::new();
    if entries.is_empty() {
        missing.push("no result cache knows the pod".to_owned());
    }
    let wanted: Vec<&str> = entries.iter().map(|known| known.entry.ifname.as_str()).collect();
    let wanted = if wanted.is_empty() { vec!["eth0"] } else { wanted };
    for name in wanted {
        if !interfaces.iter().any(|of| of.name == name) {
            missing.push(format!("the sandbox is Ready, and the kernel has no {name} in it"));
        }
    }
    for (whose, ips) in
        [("runtime", status.ips.clone()), ("cache", entries.iter().flat_map(|known| known.addrs()).collect())]
    {
        let lost: Vec<IpAddr> = ips.into_iter().filter(|ip| !kernel.contains(ip)).collect();
        if !lost.is_empty() {
            missing.push(format!(
                "the {whose}'s address {} is not the kernel's",
                super::super::pods::joined(&lost)
            ));
        }
    }
    missing
}

fn network(known: &Known) -> String {
    let plugins = known.entry.network_list().map(|list| list.plugins).unwrap_or_default();
    let types: Vec<String> = plugins.into_iter().map(|plugin| plugin.plugin_type).collect();
    format!("{} ({})", known.entry.network, types.join(" "))
}

/// Replaces the prefix `/var/run` of a path with `/run`, where it links to.
fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

/// Returns the interfaces in a namespace except loopback.
fn look(path: &Path) -> netlink::Result<Vec<Interface>> {
    let mut inside = Netlink::open_in(&NetNs::open(path)?)?;
    let mut found = Vec::new();
    for link in inside.links(&netlink::link::Filter::default())? {
        if link.name == "lo" {
            continue;
        }
        let is_own = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let addrs = inside.addrs(link.index)?.into_iter().map(|addr| (addr.net.ip(), addr.net.to_string()));
        let addrs = addrs.filter(|(ip, _)| is_own(*ip)).collect();
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        found.push(Interface { name: link.name, mac, addrs });
    }
    Ok(found)
}
