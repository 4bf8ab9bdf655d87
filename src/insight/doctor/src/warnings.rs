//! Conditions of the host that stop pods, or will. They are warnings, because nothing of ours can be repaired.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cnimble_cni::capability::PortMapping;
use cnimble_cni::{Error, json};
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::Known;
use cnimble_liveness::node::Node;
use cnimble_netlink::nft::{Family, Nft, Table};
use cnimble_rules::forward;
use cnimble_rules::objects::configured::{self, ACCEPTING};

/// Programs that occupy a port for the pod that it is published for (podman, Docker).
const HOLDERS: [&str; 3] = ["conmon", "docker-proxy", "rootlessport"];

/// Files in /proc, each with the protocol and the state of an open socket: LISTEN, or unconnected (net/tcp_states.h).
const SOCKETS: [(&str, &str, &str); 4] =
    [("tcp", "tcp", "0A"), ("tcp6", "tcp", "0A"), ("udp", "udp", "07"), ("udp6", "udp", "07")];

/// The percentage from which on a table counts as full.
const FULL: u64 = 95;

pub(super) fn warnings(node: &Node) -> Vec<String> {
    let living: Vec<&Known> = node.entries.iter().filter(|known| known.verdict == Verdict::Lives).collect();
    let published: Vec<(&Known, PortMapping)> =
        living.iter().flat_map(|known| ports(known).into_iter().map(move |port| (*known, port))).collect();
    let mut warnings = listeners(&published);
    match of_rules(&networks(&living), !published.is_empty()) {
        Ok(found) => warnings.extend(found),
        Err(err) => log::warn!("the host's packet rules were not looked at: {err}"),
    }
    warnings.extend(of_tables());
    warnings
}

fn ports(known: &Known) -> Vec<PortMapping> {
    let ports = known.entry.capability_args.get("portMappings");
    ports.and_then(|ports| json::from_value(ports, "portMappings").ok()).unwrap_or_default()
}

/// The networks with pods that send by way of the host, each with whether a pod has no plugin that makes the host's
/// rules accept its packets. Pods of one network may have been added with different configurations.
fn networks(living: &[&Known]) -> BTreeMap<String, bool> {
    let mut networks = BTreeMap::new();
    let lists = living.iter().filter_map(|known| known.entry.network_list().ok());
    for list in lists.filter(configured::meet_rules) {
        *networks.entry(list.name.clone()).or_default() |= configured::need_others(&list);
    }
    networks
}

/// A socket of the host that waits for what comes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listener {
    protocol: &'static str,
    ip: IpAddr,
    port: u16,
    inode: String,
}

impl Listener {
    fn takes(&self, mapping: &PortMapping) -> bool {
        let same = |ip: IpAddr| ip.is_unspecified() || self.ip.is_unspecified() || ip == self.ip;
        self.port == mapping.host_port
            && self.protocol == mapping.protocol
            && mapping.host_ip.is_none_or(same)
    }
}

fn listeners(published: &[(&Known, PortMapping)]) -> Vec<String> {
    if published.is_empty() {
        return Vec::new();
    }
    let mut open = Vec::new();
    for (file, protocol, state) in SOCKETS {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        open.extend(text.lines().filter_map(|line| listener(protocol, line, state)));
    }
    let mut warnings = Vec::new();
    for (known, mapping) in published {
        let Some(of) = open.iter().find(|of| of.takes(mapping)) else { continue };
        let process = match process(&of.inode) {
            Some((_, name)) if HOLDERS.contains(&name.as_str()) => continue,
            Some((pid, name)) => format!("process {pid} ({name})"),
            None => "a process".to_owned(),
        };
        let (port, protocol, id) = (of.port, of.protocol, &known.entry.container_id);
        warnings.push(format!(
            "{process} listens on port {port}/{protocol}, which is published for container {id} and leads there"
        ));
    }
    warnings
}

/// Reads a line of a file of sockets (proc_pid_net(5)).
fn listener(protocol: &'static str, line: &str, wanted: &str) -> Option<Listener> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = words.as_slice() else { return None };
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (*state == wanted).then_some(Listener { protocol, ip: address(ip)?, port, inode: (*inode).to_owned() })
}

/// An address as /proc prints it: words of 32 bits in the byte order of the machine.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |part: &str| u32::from_str_radix(part, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(hex)?).into()),
        32 => {
            let mut bytes = Vec::new();
            for at in [0, 8, 16, 24] {
                bytes.extend(word(hex.get(at..at + 8)?)?);
            }
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical())
        }
        _ => None,
    }
}

/// The ID and the name of a process that has the socket open.
fn process(inode: &str) -> Option<(String, String)> {
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

/// Rules of others that drop what pods send.
fn of_rules(networks: &BTreeMap<String, bool>, has_ports: bool) -> Result<Vec<String>, Error> {
    let (mut warnings, nft) = (Vec::new(), &mut Nft::new());
    let joined = |names: Vec<&str>| names.join(", ");
    let all = joined(networks.keys().map(String::as_str).collect());
    if !all.is_empty() {
        warnings.extend(forward::closed(nft)?.into_iter().map(|chain| {
            format!("{chain} drops what pods of {all} send: have a rule of it accept that; no plugin can")
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
    if nft.is_supported()? && nft.has_table(Table::new(Family::Inet, "firewalld"))? {
        let conf = fs::read_to_string("/etc/firewalld/firewalld.conf").unwrap_or_default();
        if has_ports && is_yes(&conf, "StrictForwardPorts") {
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

/// Whether firewalld.conf(5) sets this key to yes.
fn is_yes(conf: &str, key: &str) -> bool {
    let value = |line: &str| {
        let rest = line.trim().strip_prefix(key)?.trim_start();
        Some(rest.strip_prefix('=')?.trim().to_owned())
    };
    conf.lines().filter_map(value).next_back().is_some_and(|value| value.eq_ignore_ascii_case("yes"))
}

fn of_tables() -> Vec<String> {
    let conntrack = "/proc/sys/net/netfilter/nf_conntrack";
    let (now, most) = (number(&format!("{conntrack}_count")), number(&format!("{conntrack}_max")));
    let mut warnings: Vec<String> = full(now, most)
        .map(|how| {
            format!("connection tracking is full ({how}), and new connections are dropped: raise net.netfilter.nf_conntrack_max")
        })
        .into_iter()
        .collect();
    for (family, stat) in [("ipv4", "arp_cache"), ("ipv6", "ndisc_cache")] {
        let text = fs::read_to_string(format!("/proc/net/stat/{stat}")).unwrap_or_default();
        let most = number(&format!("/proc/sys/net/{family}/neigh/default/gc_thresh3"));
        if let Some(how) = full(neighbours(&text), most) {
            warnings.push(format!(
                "the neighbour table of {family} is full ({how}), and pods are not reached: raise \
                 net.{family}.neigh.default.gc_thresh3"
            ));
        }
    }
    warnings
}

/// The entries that a file of /proc/net/stat tells: hexadecimal, the first of each line.
fn neighbours(text: &str) -> Option<u64> {
    u64::from_str_radix(text.lines().nth(1)?.split_whitespace().next()?, 16).ok()
}

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
    fn sockets_that_listen_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let found = listener("tcp", line, "0A").unwrap();
        assert_eq!(
            (found.ip, found.port, found.inode.as_str()),
            ("127.0.0.1".parse().unwrap(), 8080, "4711")
        );
        assert_eq!(listener("tcp", line, "01"), None);
        assert_eq!(listener("tcp", "  sl  local_address rem_address   st", "0A"), None);
        assert_eq!(address("0000000000000000FFFF00000100007F"), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(address(&"0".repeat(32)), Some(Ipv6Addr::UNSPECIFIED.into()));
    }

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
