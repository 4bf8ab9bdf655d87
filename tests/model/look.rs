//! Reads the kernel and the files as facts, one line each, without anything that changes by itself. Each fact names its
//! owner by the container's ID, the host's end or an address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cnimble_tests::{Host, Ns, Pod, leases};
use serde_json::Value;

pub(crate) type Facts = BTreeSet<String>;

/// Reads a host, its files and the pods for which `of_interest` returns true.
pub(crate) fn look(host: &Host, pods: &[Pod], of_interest: impl Fn(usize) -> bool) -> Facts {
    let mut facts = Facts::new();
    links(host, "link", &mut facts);
    for (number, pod) in pods.iter().enumerate().filter(|(number, _)| of_interest(*number)) {
        links(pod, &format!("pod{number}"), &mut facts);
    }
    rules(host, &mut facts);
    files(&host.dir().join("networks"), "lease", &mut facts);
    files(&host.dir().join("tuning"), "tuning", &mut facts);
    host.within(|| {
        for link in std::fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten() {
            let name = link.file_name().into_string().unwrap();
            let value = std::fs::read_to_string(link.path().join("route_localnet")).unwrap_or_default();
            // An interface that is removed at this moment has none.
            if !["0", ""].contains(&value.trim()) {
                facts.insert(format!("sysctl route_localnet of {name}: {}", value.trim()));
            }
        }
    });
    facts
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// Collects links with their addresses, routes and rules.
fn links(ns: &Ns, place: &str, facts: &mut Facts) {
    let commands = b"addr\nroute show table all\n-6 route show table all\nrule\n-6 rule\n";
    let outcome = ns.run_with("ip -d -j -force -batch -", commands).text();
    let documents: Vec<Value> = outcome.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let entries = documents.iter().flat_map(|document| document.as_array().into_iter().flatten());
    for entry in entries {
        if entry.get("linkinfo").is_some() || entry.get("addr_info").is_some() {
            let addrs: BTreeSet<String> = entry["addr_info"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|addr| addr["scope"] != "link")
                .map(|addr| format!("{}/{}", text(addr, "local"), addr["prefixlen"]))
                .collect();
            let up = entry["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
            facts.insert(format!(
                "{place} {} kind={} master={} mtu={} up={up} mac={} alias=({}) addresses={addrs:?}",
                text(entry, "ifname"),
                text(&entry["linkinfo"], "info_kind"),
                text(entry, "master"),
                entry["mtu"],
                text(entry, "address"),
                text(entry, "ifalias"),
            ));
        } else if entry.get("priority").is_some() {
            if entry.get("protocol").is_some_and(|protocol| protocol != "kernel") {
                facts.insert(format!(
                    "{place}-rule from {} lookup {} protocol {}",
                    text(entry, "src"),
                    text(entry, "table"),
                    text(entry, "protocol"),
                ));
            }
        } else if entry.get("dst").is_some() {
            // Routes that the kernel derives from addresses appear after some time.
            let of_kernel = text(entry, "protocol") == "kernel";
            let dst = text(entry, "dst");
            if !of_kernel && !dst.starts_with("fe80:") && !dst.starts_with("ff00:") {
                facts.insert(format!(
                    "{place}-route {dst} via {} dev {} table {}",
                    text(entry, "gateway"),
                    text(entry, "dev"),
                    text(entry, "table"),
                ));
            }
        }
    }
}

/// Collects tables, and the elements and rules that name an owner.
fn rules(host: &Host, facts: &mut Facts) {
    let document: Value = serde_json::from_str(&host.nft("-j list ruleset")).unwrap();
    let mut xtables = BTreeSet::new();
    for object in document["nftables"].as_array().into_iter().flatten() {
        let at = |of: &Value| format!("{} {}", text(of, "family"), text(of, "table"));
        if let Some(table) = object.get("table") {
            facts.insert(format!("table {} {}", text(table, "family"), text(table, "name")));
        }
        if let Some(set) = object.get("set").or_else(|| object.get("map")) {
            for element in set["elem"].as_array().into_iter().flatten() {
                facts.insert(format!("nft {} {}: {element}", at(set), text(set, "name")));
            }
        }
        if let Some(rule) = object.get("rule") {
            let is_xt = rule["expr"].to_string().contains("\"xt\"");
            let comment = text(rule, "comment");
            if is_xt {
                xtables.insert(text(rule, "family").to_owned());
            } else if !comment.is_empty() {
                facts.insert(format!("nft {} {}: {} {comment}", at(rule), text(rule, "chain"), rule["expr"]));
            }
        }
    }
    for (family, command) in [("ip", "iptables-nft-save"), ("ip6", "ip6tables-nft-save")] {
        if xtables.contains(family) {
            let text = host.sh(command);
            facts.extend(
                text.lines().filter(|line| line.starts_with("-A")).map(|line| format!("{command} {line}")),
            );
        }
    }
}

/// Collects files, except for locks, indexes and the last addresses.
fn files(dir: &Path, what: &str, facts: &mut Facts) {
    for line in leases(dir) {
        let name = line.split(' ').next().unwrap_or_default();
        let memory = ["lock", "last_reserved_ip.", ".cnimble-index"];
        if !name.ends_with('/') && !memory.iter().any(|memory| name.contains(memory)) {
            facts.insert(format!("{what} {}", line.replace("\\r\\n", " ")));
        }
    }
}

/// Returns true if `word` is in `text`, and not as a part of a longer word. An address is one word.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    stands_alone(text, word, |letter| letter.is_ascii_alphanumeric() || letter == ':')
}

/// Returns true if a port is in a rule, in JSON (`"right":8001`) or in a list (`tcp . 8001 : …`).
pub(crate) fn has_port(text: &str, port: u16) -> bool {
    stands_alone(text, &port.to_string(), |letter| letter.is_ascii_alphanumeric())
}

fn stands_alone(text: &str, word: &str, belongs: impl Fn(char) -> bool) -> bool {
    let part = |letter: Option<char>| letter.is_some_and(&belongs);
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

/// Returns the addresses that a network has leased, each with the content of its file.
pub(crate) fn leased<'f>(
    facts: &'f Facts,
    network: &str,
) -> impl Iterator<Item = (IpAddr, &'f str)> + use<'f> {
    let prefix = format!("lease {network}/");
    facts.iter().filter_map(move |fact| {
        let (ip, content) = fact.strip_prefix(&prefix)?.split_once(' ')?;
        Some((ip.parse().ok()?, content))
    })
}

/// Returns true if the fact is a packet rule.
pub(crate) fn is_rule(fact: &str) -> bool {
    fact.starts_with("nft ") || fact.starts_with("ip")
}

/// Returns true if the fact is about a link, its addresses, routes or rules.
pub(crate) fn is_of_link(fact: &str) -> bool {
    fact.starts_with("link") || fact.starts_with("pod")
}

/// Returns the index of the pod in a fact about a pod, and the rest of the fact.
pub(crate) fn split_pod(fact: &str) -> Option<(usize, &str)> {
    let rest = fact.strip_prefix("pod")?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (place, rest) = rest.split_at(end);
    Some((place.parse().ok()?, rest))
}

/// Returns the index of the pod in a fact about a pod.
pub(crate) fn pod_of(fact: &str) -> Option<usize> {
    split_pod(fact).map(|(pod, _)| pod)
}

/// Returns true if the fact is about this interface of a pod.
pub(crate) fn is_in(fact: &str, pod: usize, ifname: &str) -> bool {
    pod_of(fact) == Some(pod) && has_word(fact, ifname)
}

/// Returns true if the fact is of this kind and about a pod.
pub(crate) fn is_in_pod(fact: &str, kind: &str) -> bool {
    split_pod(fact).is_some_and(|(_, rest)| rest.starts_with(kind))
}

/// Returns true if the fact must have an owner.
pub(crate) fn is_of_somebody(fact: &str) -> bool {
    let is_id = |word: &str| {
        let number = word.strip_prefix("ctr").and_then(|rest| rest.strip_suffix('x'));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut words = fact.split(|letter: char| !letter.is_ascii_alphanumeric());
    let of_gateway = fact.starts_with("link br") || fact.starts_with("sysctl ");
    words.any(is_id)
        || fact.starts_with("lease ")
        || fact.starts_with("tuning ")
        || fact.starts_with("pod")
        || fact.starts_with("link-route ")
        || (fact.starts_with("link ") && !of_gateway)
}
