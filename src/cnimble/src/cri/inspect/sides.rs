//! Compares the three views of a pod line by line.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cri::SandboxStatus;
use cnimble_doctor::tree::{Pod, Tree};
use cnimble_liveness::Sight;
use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_netlink::{self as netlink, NetNs, Netlink};

use crate::style::joined;

/// The values of one property in the runtime, the cache and the kernel. A side that doesn't have the property is empty.
#[derive(Debug)]
pub(super) struct PropertyRow {
    pub(super) what: &'static str,
    pub(super) runtime: Vec<String>,
    pub(super) cache: Vec<String>,
    pub(super) kernel: Vec<String>,
}

impl PropertyRow {
    fn new(
        what: &'static str,
        runtime: impl IntoIterator<Item = String>,
        cache: impl IntoIterator<Item = String>,
        kernel: impl IntoIterator<Item = String>,
    ) -> Self {
        let [runtime, cache, kernel] =
            [runtime.into_iter().collect(), cache.into_iter().collect(), kernel.into_iter().collect()];
        PropertyRow { what, runtime, cache, kernel }
    }

    /// Returns the cells of one row for each value. Only the first row has the name.
    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let height = self.runtime.len().max(self.cache.len()).max(self.kernel.len());
        let rows = (0..height).map(|row| {
            let what = if row == 0 { self.what } else { "" };
            vec![what.to_owned(), cell(&self.runtime, row), cell(&self.cache, row), cell(&self.kernel, row)]
        });
        rows.collect()
    }
}

/// Returns the cell of one side in a row. The first row of a side without values has a dash.
fn cell(side: &[String], row: usize) -> String {
    match side.get(row) {
        Some(text) => text.clone(),
        None if row == 0 => "-".to_owned(),
        None => String::new(),
    }
}

/// The three views of a sandbox, and how they differ.
pub(super) struct Sides {
    pub(super) lines: Vec<PropertyRow>,
    pub(super) differences: Vec<String>,
}

/// An interface in a pod. Its addresses are also in text, with the prefix length.
struct Interface {
    name: String,
    mac: String,
    addrs: Vec<(IpAddr, String)>,
}

impl Sides {
    /// Compares a sandbox of the runtime with the cache and the kernel. Differences are only reported for a ready
    /// sandbox, other than a different namespace.
    pub(super) fn compare_sandbox(status: &SandboxStatus, sight: &Sight, tree: &Tree) -> Self {
        let id = &status.sandbox.id;
        let of_sandbox = sight.node.entries.iter().filter(|known| known.entry.container_id == *id);
        let entries: Vec<&JudgedEntry> = of_sandbox.filter(|known| known.entry.ifname != "lo").collect();
        let cached = entries.first().and_then(|known| known.entry.namespace()).map(PathBuf::from);
        let path = status.netns.clone().or(cached.clone()).filter(|_| !status.host_network);
        let kernel = KernelSide::read(path.as_deref());
        let interfaces = kernel.interfaces.as_deref().unwrap_or_default();
        let mut differences = Vec::new();
        if let (Some(told), Some(cached)) = (&status.netns, &cached)
            && plain(told) != plain(cached)
        {
            differences.push("the runtime and the cache have different namespaces".to_owned());
        }
        if status.sandbox.ready && !status.host_network {
            differences.extend(expected(status, &entries, &kernel));
        }
        let netns = if status.host_network { Some("the node's".to_owned()) } else { shown(&status.netns) };
        let leases = sight.node.leases.all().filter(|(_, lease)| lease.container() == Some(id));
        let results = entries.iter().filter_map(|known| known.result());
        let cached_ips = results.flat_map(|result| result.ips).map(|ip| ip.address.to_string());
        let ips = interfaces.iter().flat_map(|of| of.addrs.iter().map(|(_, text)| text.clone()));
        let names = entries.iter().map(|known| known.entry.ifname.clone());
        let links = interfaces.iter().map(|of| format!("{} {}", of.name, of.mac));
        let mut lines = vec![
            PropertyRow::new("state", [status.sandbox.state().to_owned()], [], []),
            PropertyRow::new("namespace", netns, shown(&cached), kernel.word.clone()),
            PropertyRow::new("network", [], entries.iter().map(|known| network(known)), []),
            PropertyRow::new("interface", [], names, links),
            PropertyRow::new("address", status.ips.iter().map(ToString::to_string), cached_ips, ips),
            PropertyRow::new("lease", [], leases.map(|(_, lease)| lease.path.display().to_string()), []),
        ];
        let pods =
            tree.networks.iter().flat_map(|network| network.places.iter().flat_map(|place| &place.pods));
        let named = pods.filter(|pod| !pod.container_id.is_empty());
        let pods: Vec<&Pod> = named.filter(|pod| id.starts_with(&pod.container_id)).collect();
        let ends = pods.iter().filter_map(|pod| Some(pod.link.as_ref()?.name.clone()));
        lines.extend([
            PropertyRow::new("host's end", [], [], ends),
            PropertyRow::new("route", [], [], pods.iter().flat_map(|pod| pod.routes.clone())),
            PropertyRow::new("rule", [], [], pods.iter().flat_map(|pod| pod.rules_in_words())),
        ]);
        lines.retain(|line| !(line.runtime.is_empty() && line.cache.is_empty() && line.kernel.is_empty()));
        Sides { lines, differences }
    }
}

/// Returns the path as text.
fn shown(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.display().to_string())
}

/// Returns what a ready pod should have but lacks: a cache entry, its interfaces, and the addresses of the runtime and
/// the cache. If the namespace could not be read, it says so, and nothing about interfaces.
fn expected(status: &SandboxStatus, entries: &[&JudgedEntry], side: &KernelSide) -> Vec<String> {
    let mut missing = Vec::new();
    if entries.is_empty() {
        missing.push("no result cache that was read has the pod".to_owned());
    }
    let interfaces = match &side.interfaces {
        Ok(interfaces) => interfaces,
        Err(why) => {
            missing.push(why.clone());
            return missing;
        }
    };
    let kernel: BTreeSet<IpAddr> =
        interfaces.iter().flat_map(|of| of.addrs.iter().map(|(ip, _)| *ip)).collect();
    let wanted: Vec<&str> = entries.iter().map(|known| known.entry.ifname.as_str()).collect();
    let wanted = if wanted.is_empty() { vec!["eth0"] } else { wanted };
    for name in wanted {
        if !interfaces.iter().any(|of| of.name == name) {
            missing.push(format!("the sandbox is Ready, but the kernel has no {name} in it"));
        }
    }
    for (whose, ips) in
        [("runtime", status.ips.clone()), ("cache", entries.iter().flat_map(|known| known.addrs()).collect())]
    {
        let lost: Vec<IpAddr> = ips.into_iter().filter(|ip| !kernel.contains(ip)).collect();
        if !lost.is_empty() {
            missing.push(format!("the {whose}'s address {} is not the kernel's", joined(&lost)));
        }
    }
    missing
}

/// Returns the network's name with its plugins.
fn network(known: &JudgedEntry) -> String {
    let plugins = known.entry.network_list().map(|list| list.plugins).unwrap_or_default();
    let types: Vec<String> = plugins.into_iter().map(|plugin| plugin.plugin_type).collect();
    format!("{} ({})", known.entry.network, types.join(" "))
}

/// Returns the path with `/run` for `/var/run`, which is a link to it.
fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

/// The interfaces that the kernel has in a sandbox's namespace.
struct KernelSide {
    /// The interfaces, or a sentence that tells why they were not read.
    interfaces: Result<Vec<Interface>, String>,
    /// A word about the namespace, or the error if it can't be read. It is `None` if no namespace is known.
    word: Option<String>,
}

impl KernelSide {
    fn read(path: Option<&Path>) -> Self {
        let Some(path) = path else {
            let why = "neither the runtime nor a cache that was read names its namespace, so the kernel was not asked";
            return KernelSide { interfaces: Err(why.to_owned()), word: None };
        };
        let (interfaces, word) = match interfaces(path) {
            Ok(interfaces) => (Ok(interfaces), "there".to_owned()),
            Err(err) if err.is_missing() => {
                let why = format!("the sandbox is Ready, and its namespace {} is gone", path.display());
                (Err(why), "gone".to_owned())
            }
            Err(err) => (Err(format!("the kernel could not be asked: {err}")), err.to_string()),
        };
        KernelSide { interfaces, word: Some(word) }
    }
}

/// Returns the interfaces of a namespace but `lo`, without IPv6 link-local addresses.
fn interfaces(path: &Path) -> netlink::Result<Vec<Interface>> {
    let mut inside = Netlink::open_bounded(&NetNs::open(path)?)?;
    let mut found = Vec::new();
    for link in inside.links(&netlink::link::Filter::default())? {
        if link.name == "lo" {
            continue;
        }
        let addrs = inside.addrs(link.index)?.into_iter().map(|addr| (addr.net.ip(), addr.net.to_string()));
        let addrs =
            addrs.filter(|(ip, _)| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())).collect();
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        found.push(Interface { name: link.name, mac, addrs });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> SandboxStatus {
        let sandbox = cnimble_cri::Sandbox {
            id: "one".to_owned(),
            name: "web".to_owned(),
            namespace: "shop".to_owned(),
            uid: String::new(),
            attempt: 0,
            ready: true,
            created: 0,
        };
        SandboxStatus {
            sandbox,
            ips: vec!["10.1.0.2".parse().unwrap()],
            host_network: false,
            netns: None,
            pid: None,
        }
    }

    #[test]
    fn nothing_is_said_of_interfaces_that_were_not_read() {
        let file = std::env::temp_dir().join(format!("cnimble-no-namespace-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        for (path, reason) in [
            (None, "so the kernel was not asked"),
            (Some("/run/netns/there-is-none".as_ref()), "its namespace /run/netns/there-is-none is gone"),
            (Some(file.as_path()), "the kernel could not be asked: "),
        ] {
            let missing = expected(&ready(), &[], &KernelSide::read(path));
            assert_eq!(missing.len(), 2, "{missing:?}");
            assert_eq!(missing[0], "no result cache that was read has the pod");
            assert!(missing[1].contains(reason), "{missing:?}");
        }
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_read_namespace_without_interfaces_lacks_eth0_and_the_runtimes_address() {
        let kernel = KernelSide { interfaces: Ok(Vec::new()), word: None };
        let missing = expected(&ready(), &[], &kernel);
        assert_eq!(missing[1], "the sandbox is Ready, but the kernel has no eth0 in it");
        assert_eq!(missing[2], "the runtime's address 10.1.0.2 is not the kernel's");
    }
}
