//! Conditions of the host that stop pods, or will. They are warnings and no findings, because they are nothing that
//! cnimble has made.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cnimble_cni::Error;
use cnimble_cni::capability::PortMapping;
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::{Known, published_ports};
use cnimble_liveness::node::Node;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;
use cnimble_netlink::listeners::Listener;
use cnimble_netlink::nft::{Family, Nft, Table};
use cnimble_rules::forward;
use cnimble_rules::objects::configured::{self, ACCEPTING, PUBLISHING};
use ipnetwork::IpNetwork;

/// Programs that keep a port occupied for the pod to which it leads (podman, Docker).
const HOLDERS: [&str; 3] = ["conmon", "docker-proxy", "rootlessport"];

/// The percentage from which on a table counts as full.
const FULL: u64 = 95;

/// Returns the warnings as texts. What can't be read is logged.
pub(super) fn warnings(node: &Node) -> Vec<String> {
    let living: Vec<&Known> = node.entries.iter().filter(|known| known.verdict == Verdict::Lives).collect();
    let mut published: Vec<(&Known, Vec<PortMapping>)> =
        living.iter().map(|known| (*known, published_ports(&known.entry))).collect();
    published.retain(|(_, ports)| !ports.is_empty());
    let mut warnings = listeners(&published);
    let lists = published.iter().filter_map(|(known, _)| known.entry.network_list().ok());
    let has_ports = lists.map(|list| (list.name.clone(), !configured::accepts_published(&list))).collect();
    let networks = networks(&living);
    warnings.extend(of_uplink(&networks).unwrap_or_else(|err| {
        log::warn!("the host's uplink was not looked at: {err}");
        None
    }));
    match of_rules(&networks, &has_ports) {
        Ok(found) => warnings.extend(found),
        Err(err) => log::warn!("the host's packet rules were not looked at: {err}"),
    }
    warnings.extend(of_tables());
    warnings
}

/// Returns the networks with pods whose packets pass the host's rules. The value is whether a pod has no plugin that
/// makes these rules accept its packets. Pods of one network may have been added with different configurations.
fn networks(living: &[&Known]) -> BTreeMap<String, bool> {
    let mut networks = BTreeMap::new();
    let lists = living.iter().filter_map(|known| known.entry.network_list().ok());
    for list in lists.filter(configured::meet_rules) {
        *networks.entry(list.name.clone()).or_default() |= configured::need_others(&list);
    }
    networks
}

/// Returns warnings about processes that listen on published ports.
fn listeners(published: &[(&Known, Vec<PortMapping>)]) -> Vec<String> {
    let of_pod = |(known, ports): &(&Known, Vec<PortMapping>)| {
        let result = known.entry.cni_result().ok().flatten().unwrap_or_default();
        let addrs = result.ips.iter().map(|ip| ip.address).collect();
        let id = &known.entry.container_id;
        let more = format!("which is published for container {id} and leads there");
        shadowed(ports, addrs).into_iter().map(move |text| format!("{text}, {more}")).collect::<Vec<_>>()
    };
    published.iter().flat_map(of_pod).collect()
}

/// Returns texts about the processes of the host that listen on published ports of a pod with these addresses.
pub fn shadowed(ports: &[PortMapping], addrs: Vec<IpNetwork>) -> Vec<String> {
    let found = configured::shadowed_by(ports, addrs);
    let found = found.unwrap_or_else(|err| {
        log::warn!("listeners were not looked at: {err}");
        Vec::new()
    });
    let text = |(mapping, listener): (configured::Mapping, Listener)| {
        let process = match process(listener.inode) {
            Some((_, name)) if HOLDERS.contains(&name.as_str()) => return None,
            Some((pid, name)) => format!("process {pid} ({name})"),
            None => "a process".to_owned(),
        };
        Some(format!("{process} listens on port {}/{}", listener.port, mapping.protocol))
    };
    found.into_iter().filter_map(text).collect()
}

/// Returns the ID and the name of a process that has the socket open. It returns `None` if none is found, or /proc
/// hides it.
fn process(inode: u32) -> Option<(String, String)> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(mut open) = fs::read_dir(process.path().join("fd")) else { continue };
        let is_it = |path: &Path| fs::read_link(path).is_ok_and(|link| link == Path::new(&wanted));
        if open.any(|file| file.is_ok_and(|file| is_it(&file.path()))) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((process.file_name().to_string_lossy().into_owned(), name.trim().to_owned()));
        }
    }
    None
}

/// Returns a warning if the host does not forward packets that arrive on the link of its IPv4 default route. It returns
/// `None` without such a route, and without networks.
fn of_uplink(networks: &BTreeMap<String, bool>) -> Result<Option<String>, Error> {
    let mut host = Netlink::open()?;
    let route = host.default_routes()?.into_iter().find(|route| route.dst.is_ipv4());
    let Some(index) = route.map(|route| route.index).filter(|_| !networks.is_empty()) else {
        return Ok(None);
    };
    let Link { name, forwards: Some(false), .. } = host.link_at(index)? else { return Ok(None) };
    let key = format!("net.ipv4.conf.{name}.forwarding");
    Ok(Some(format!("{key} is 0, so no answer from {name} reaches a pod: set it to 1")))
}

/// Returns warnings about rules of others that drop packets of pods. `has_ports` are the networks with published ports,
/// each with whether no rule accepts the packets to them.
fn of_rules(
    networks: &BTreeMap<String, bool>,
    has_ports: &BTreeMap<String, bool>,
) -> Result<Vec<String>, Error> {
    let (mut warnings, nft) = (Vec::new(), &mut Nft::new());
    let joined = |names: Vec<&str>| names.join(", ");
    let all = joined(networks.keys().map(String::as_str).collect());
    if !all.is_empty() {
        warnings.extend(forward::closed(nft)?.into_iter().map(|chain| {
            let line = if has_ports.is_empty() {
                String::new()
            } else {
                format!(" (for published ports: nft insert rule {chain} ct status dnat accept)")
            };
            format!(
                "{chain} drops what pods of {all} send: have a rule of it accept that; no plugin can{line}"
            )
        }));
    }
    let alone = networks.iter().filter(|(_, alone)| **alone);
    let unprotected = joined(alone.map(|(name, _)| name.as_str()).collect());
    if !unprotected.is_empty() {
        let also = match number("/proc/sys/net/bridge/bridge-nf-call-iptables") {
            Some(1) => ", also to each other (net.bridge.bridge-nf-call-iptables is 1)",
            _ => "",
        };
        warnings.extend(forward::shut(nft)?.into_iter().map(|chain| {
            format!("{chain} drops what pods of {unprotected} send{also}: let it pass there, or add the plugin {ACCEPTING}")
        }));
    }
    let refused =
        joined(has_ports.iter().filter(|(_, refused)| **refused).map(|(name, _)| name.as_str()).collect());
    if !refused.is_empty() {
        warnings.extend(forward::shut(nft)?.into_iter().map(|chain| {
            format!(
                "{chain} drops what comes for published ports of {refused}: set acceptPublished of {PUBLISHING}"
            )
        }));
    }
    if nft.is_supported()? && nft.has_table(Table::new(Family::Inet, "firewalld"))? {
        let conf = fs::read_to_string("/etc/firewalld/firewalld.conf").unwrap_or_default();
        if !has_ports.is_empty() && is_yes(&conf, "StrictForwardPorts") {
            warnings
                .push("firewalld drops what comes for published ports (StrictForwardPorts=yes)".to_owned());
        }
        if !unprotected.is_empty() && is_yes(&conf, "NftablesTableOwner") {
            warnings.push(format!(
                "firewalld alone changes its table (NftablesTableOwner=yes), and drops what pods of {unprotected} send: \
                 add the plugin {ACCEPTING}"
            ));
        }
    }
    Ok(warnings)
}

/// Returns whether firewalld.conf(5) sets this key to yes.
fn is_yes(conf: &str, key: &str) -> bool {
    let value = |line: &str| {
        let rest = line.trim().strip_prefix(key)?.trim_start();
        Some(rest.strip_prefix('=')?.trim().to_owned())
    };
    conf.lines().filter_map(value).next_back().is_some_and(|value| value.eq_ignore_ascii_case("yes"))
}

/// Returns warnings about nearly full tables of the kernel.
fn of_tables() -> Vec<String> {
    let conntrack = "/proc/sys/net/netfilter/nf_conntrack";
    let (now, most) = (number(&format!("{conntrack}_count")), number(&format!("{conntrack}_max")));
    let mut warnings: Vec<String> = full(now, most)
        .map(|how| {
            format!(
                "connection tracking is nearly full ({how}), and drops new connections when it is full: raise \
                 net.netfilter.nf_conntrack_max"
            )
        })
        .into_iter()
        .collect();
    for (family, stat) in [("ipv4", "arp_cache"), ("ipv6", "ndisc_cache")] {
        let text = fs::read_to_string(format!("/proc/net/stat/{stat}")).unwrap_or_default();
        let most = number(&format!("/proc/sys/net/{family}/neigh/default/gc_thresh3"));
        if let Some(how) = full(neighbours(&text), most) {
            warnings.push(format!(
                "the neighbour table of {family} is nearly full ({how}), and no new pod is reached when it is full: \
                 raise net.{family}.neigh.default.gc_thresh3"
            ));
        }
    }
    warnings
}

/// Returns the number of entries in a file of /proc/net/stat. It is hexadecimal, and the first in each line.
fn neighbours(text: &str) -> Option<u64> {
    u64::from_str_radix(text.lines().nth(1)?.split_whitespace().next()?, 16).ok()
}

/// Returns the text about a table that is full to [`FULL`] percent or more. It returns `None` for any other.
fn full(now: Option<u64>, most: Option<u64>) -> Option<String> {
    let (now, most) = now.zip(most)?;
    let is_full = most > 0 && now.saturating_mul(100) >= most.saturating_mul(FULL);
    is_full.then(|| format!("{now} of {most}"))
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tables_are_told_from_others() {
        assert_eq!(full(Some(95), Some(100)).as_deref(), Some("95 of 100"));
        assert_eq!(
            [full(Some(94), Some(100)), full(None, Some(100)), full(Some(5), Some(0))],
            [None, None, None]
        );
        assert_eq!(neighbours("entries  allocs\n0000001f  00\n0000001f  00\n"), Some(31));
        assert_eq!(neighbours("entries\n"), None);
    }

    #[test]
    fn the_last_setting_of_firewalld_counts() {
        assert!(is_yes("# StrictForwardPorts=no\nStrictForwardPorts=yes\n", "StrictForwardPorts"));
        assert!(!is_yes("StrictForwardPorts=yes\nStrictForwardPorts=no\n", "StrictForwardPorts"));
        assert!(!is_yes("#StrictForwardPorts=yes\n", "StrictForwardPorts"));
    }
}
