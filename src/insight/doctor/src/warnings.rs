//! Conditions of the host that stop pods, or will. They are warnings and no findings, because they are nothing that
//! cnimble has made.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use cnimble_cni::Error;
use cnimble_cni::capability::PortMapping;
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::{JudgedEntry, published_ports};
use cnimble_liveness::node::Node;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;
use cnimble_netlink::listeners::Listener;
use cnimble_netlink::nft::{Family, Nft, Table};
use cnimble_os::files::IfPresent as _;
use cnimble_rules::drops::ReadTables;
use cnimble_rules::forward::{self, ForwardChain};
use cnimble_rules::objects::configured::{self, ACCEPTING, PUBLISHING};
use ipnetwork::IpNetwork;

/// Programs that keep a port occupied for the pod to which it leads (podman, Docker).
const HOLDERS: [&str; 3] = ["conmon", "docker-proxy", "rootlessport"];

/// The percentage from which on a table counts as full.
const FULL: u64 = 95;

/// Returns the warnings as texts. A text about what can't be read goes to `unchecked`.
pub(super) fn warnings(node: &Node, unchecked: &mut Vec<String>) -> Vec<String> {
    let living: Vec<&JudgedEntry> =
        node.entries.iter().filter(|known| known.verdict == Verdict::Lives).collect();
    let mut published: Vec<(&JudgedEntry, Vec<PortMapping>)> =
        living.iter().map(|known| (*known, published_ports(&known.entry))).collect();
    published.retain(|(_, ports)| !ports.is_empty());
    let mut warnings = listeners(&published, unchecked);
    let networks = networks(&living, &published);
    match of_uplink(&networks) {
        Ok(found) => warnings.extend(found),
        Err(err) => unchecked.push(format!("whether the host's uplink forwards: {err}")),
    }
    match of_rules(&networks) {
        Ok(found) => warnings.extend(found),
        Err(err) => unchecked.push(format!("packet rules of others that drop: {err}")),
    }
    warnings.extend(of_tables());
    warnings
}

/// The needs of a network's living pods. Pods of one network may have been added with different configurations, so each
/// field tells whether one of the pods has the need.
#[derive(Debug, Default)]
struct Needs {
    /// A pod has an IPv4 address.
    ipv4: bool,
    /// A pod has an IPv6 address.
    ipv6: bool,
    /// The packets of a pod pass the host's rules.
    forwarding: bool,
    /// A pod has no plugin that makes the host's rules accept its packets.
    accepting: bool,
    /// A pod has published ports.
    published: bool,
    /// A pod has published ports, and no rule of cnimble accepts the packets to them.
    accepting_published: bool,
}

impl Needs {
    /// Returns whether packets of these pods pass through the chain.
    fn meet(&self, chain: &ForwardChain) -> bool {
        self.ipv4 && chain.meets(true) || self.ipv6 && chain.meets(false)
    }
}

/// Returns the needs of each network. `published` are the pods with published ports, out of `living`.
fn networks(
    living: &[&JudgedEntry],
    published: &[(&JudgedEntry, Vec<PortMapping>)],
) -> BTreeMap<String, Needs> {
    let mut networks = BTreeMap::<String, Needs>::new();
    for known in living {
        let Ok(list) = known.entry.network_list() else { continue };
        let needs = networks.entry(list.name.clone()).or_default();
        needs.ipv4 |= known.addrs().iter().any(IpAddr::is_ipv4);
        needs.ipv6 |= known.addrs().iter().any(IpAddr::is_ipv6);
        if configured::meet_rules(&list) {
            needs.forwarding = true;
            needs.accepting |= configured::need_others(&list);
        }
        if published.iter().any(|(of, _)| std::ptr::eq(*of, *known)) {
            needs.published = true;
            needs.accepting_published |= !configured::accepts_published(&list);
        }
    }
    networks
}

/// Returns the names of the networks of which this holds, for a sentence. It returns `None` if it holds for none.
fn named(networks: &BTreeMap<String, Needs>, holds: impl Fn(&Needs) -> bool) -> Option<String> {
    let names: Vec<&str> =
        networks.iter().filter(|(_, needs)| holds(needs)).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() { None } else { Some(names.join(", ")) }
}

/// Returns warnings about processes that listen on published ports. A text about the listeners that can't be read goes
/// to `unchecked`.
fn listeners(published: &[(&JudgedEntry, Vec<PortMapping>)], unchecked: &mut Vec<String>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (known, ports) in published {
        let result = known.entry.cni_result().ok().flatten().unwrap_or_default();
        let addrs = result.ips.iter().map(|ip| ip.address).collect();
        let id = &known.entry.container_id;
        match shadowed(ports, addrs) {
            Ok(texts) => {
                let texts = texts.into_iter();
                warnings.extend(texts.map(|text| format!("{text}, which is published for container {id}")));
            }
            Err(err) => {
                unchecked.push(format!("processes that listen on published ports of container {id}: {err}"));
            }
        }
    }
    warnings
}

/// Returns texts about the processes of the host that listen on published ports of a pod with these addresses.
///
/// # Errors
/// Fails if the kernel's list of listeners can't be read.
pub fn shadowed(ports: &[PortMapping], addrs: Vec<IpNetwork>) -> Result<Vec<String>, Error> {
    let found = configured::shadowed_by(ports, addrs)?;
    Ok(found.iter().filter_map(|(mapping, listener)| text_of(mapping, listener)).collect())
}

/// Returns the text about a process that listens on a published port. It returns `None` for a program that only holds
/// the port.
fn text_of(mapping: &configured::Mapping, listener: &Listener) -> Option<String> {
    let process = match process(listener.inode) {
        Some((_, name)) if HOLDERS.contains(&name.as_str()) => return None,
        Some((pid, name)) => format!("process {pid} ({name})"),
        None => "a process".to_owned(),
    };
    Some(format!("{process} listens on port {}/{}", listener.port, mapping.protocol))
}

/// Returns the ID and the name of a process that has the socket open. It returns `None` if none is found, or /proc
/// hides it.
fn process(inode: u32) -> Option<(String, String)> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(mut open) = fs::read_dir(process.path().join("fd")) else { continue };
        if open.any(|file| file.is_ok_and(|file| leads_to(&file.path(), &wanted))) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((process.file_name().to_string_lossy().into_owned(), name.trim().to_owned()));
        }
    }
    None
}

/// Returns a warning if the host does not forward packets that arrive on the link of its IPv4 default route. It returns
/// `None` without such a route, and if no pod needs it.
fn of_uplink(networks: &BTreeMap<String, Needs>) -> Result<Option<String>, Error> {
    if named(networks, |of| of.forwarding && of.ipv4).is_none() {
        return Ok(None);
    }
    let mut host = Netlink::open()?;
    let route = host.default_routes()?.into_iter().find(|route| route.dst.is_ipv4());
    let Some(index) = route.map(|route| route.index) else { return Ok(None) };
    let Link { name, forwards: Some(false), .. } = host.link_at(index)? else { return Ok(None) };
    // sysctl(8) takes a dot in the name of a link for a separator.
    let key = format!("net.ipv4.conf.{}.forwarding", name.replace('.', "/"));
    Ok(Some(format!(
        "{key} is 0, so no IPv4 answer that comes in by {name} is forwarded to a pod: set it to 1"
    )))
}

/// Returns warnings about rules of others that drop packets of pods.
fn of_rules(networks: &BTreeMap<String, Needs>) -> Result<Vec<String>, Error> {
    let (mut warnings, nft) = (Vec::new(), &mut Nft::new());
    if named(networks, |of| of.forwarding).is_some() {
        for chain in forward::closed(nft, &mut ReadTables::default())? {
            let Some(names) = named(networks, |of| of.forwarding && of.meet(&chain)) else { continue };
            let ForwardChain { text, .. } = &chain;
            let line = match named(networks, |of| of.published && of.meet(&chain)) {
                Some(_) => format!(" (for published ports: nft insert rule {text} ct status dnat accept)"),
                None => String::new(),
            };
            warnings.push(format!(
                "{text} drops what pods of {names} send: have a rule of it accept that; no plugin can{line}"
            ));
        }
    }
    if named(networks, |of| of.accepting || of.accepting_published).is_some() {
        for chain in forward::shut(nft)? {
            let ForwardChain { text, .. } = &chain;
            if let Some(names) = named(networks, |of| of.accepting && of.meet(&chain)) {
                let also = to_each_other(&chain);
                warnings.push(format!(
                    "{text} drops what pods of {names} send{also}: let it pass there, or add the plugin {ACCEPTING}"
                ));
            }
            if let Some(names) = named(networks, |of| of.accepting_published && of.meet(&chain)) {
                warnings.push(format!(
                    "{text} drops what comes for published ports of {names}: set acceptPublished of {PUBLISHING}"
                ));
            }
        }
    }
    if nft.is_supported()? && nft.has_table(Table::new(Family::Inet, "firewalld"))? {
        let path = Path::new("/etc/firewalld/firewalld.conf");
        let conf = fs::read_to_string(path).if_present().map_err(|err| Error::io("read", path, &err))?;
        let conf = conf.unwrap_or_default();
        if named(networks, |of| of.published).is_some() && is_yes(&conf, "StrictForwardPorts") {
            warnings.push(
                "firewalld.conf says StrictForwardPorts=yes, by which firewalld may drop what comes for published ports"
                    .to_owned(),
            );
        }
        if let Some(names) = named(networks, |of| of.accepting)
            && is_yes(&conf, "NftablesTableOwner")
        {
            warnings.push(format!(
                "firewalld.conf says NftablesTableOwner=yes, by which firewalld alone changes its table; it may drop \
                 what pods of {names} send: add the plugin {ACCEPTING}"
            ));
        }
    }
    Ok(warnings)
}

/// Returns whether the link in /proc leads to this target.
fn leads_to(link: &Path, target: &str) -> bool {
    fs::read_link(link).is_ok_and(|found| found == Path::new(target))
}

/// Returns the part of a sentence that says that pods of one bridge do not reach each other either. It is empty if the
/// kernel does not hand bridged frames to iptables.
fn to_each_other(chain: &ForwardChain) -> String {
    let switches = [(true, "bridge-nf-call-iptables"), (false, "bridge-nf-call-ip6tables")];
    for (ipv4, key) in switches {
        if chain.meets(ipv4) && number(&format!("/proc/sys/net/bridge/{key}")) == Some(1) {
            return format!(", also to each other (net.bridge.{key} is 1)");
        }
    }
    String::new()
}

/// Whether firewalld.conf(5) sets this key to yes.
fn is_yes(conf: &str, key: &str) -> bool {
    let mut values = conf.lines().filter_map(|line| value_of(line, key));
    values.next_back().is_some_and(|value| value.eq_ignore_ascii_case("yes"))
}

/// Returns the value of the key in this line of firewalld.conf(5).
fn value_of<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let rest = line.trim().strip_prefix(key)?.trim_start();
    Some(rest.strip_prefix('=')?.trim())
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
                "the neighbour table of {family} is nearly full ({how}), and a new pod may not be reached when it is \
                 full: raise net.{family}.neigh.default.gc_thresh3"
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
