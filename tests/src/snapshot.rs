//! Everything on a host that a plugin may change, to be compared before and after.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use regex_lite::Regex;
use serde_json::Value;

use crate::{Host, Ns, PATIENCE, announce, wait_until};

/// The state of a host (and, if wanted, of a pod) at one moment. Comparable; a difference
/// prints as lines with `-` and `+`.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    sections: BTreeMap<String, Vec<String>>,
}

/// Values that change by themselves: timers of bridges, states of new addresses, and the operational state, which
/// follows the flags UP and LOWER_UP later.
const RESTLESS: &[&str] = &[
    "operstate",
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "gc_timer",
    "topology_change",
    "topology_change_detected",
    "message_age_timer",
    "forward_delay_timer",
    "hold_timer",
    "multicast_querier",
    "tentative",
    "fdb_n_learned",
];

/// Files below /proc/sys/net that plugins write, for each interface…
const PER_LINK: &[(&str, &[&str])] = &[
    ("ipv4", &["forwarding", "arp_notify", "route_localnet", "rp_filter"]),
    ("ipv6", &["forwarding", "accept_ra", "accept_dad", "enhanced_dad", "disable_ipv6", "keep_addr_on_down"]),
];

/// … and once a namespace.
const PER_HOST: &[&str] = &["ipv4/ip_forward"];

impl Snapshot {
    /// The host and its lease directory.
    pub fn of(host: &Host) -> Self {
        let mut snapshot = Self::of_ns(host);
        snapshot.put("leases", leases(&host.data_dir()));
        snapshot
    }

    /// The host when its state has stopped moving: the kernel brings links up and routes in
    /// on its own time.
    pub fn settled(host: &Host) -> Self {
        let mut last = Self::of(host);
        wait_until(PATIENCE, || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let previous = std::mem::replace(&mut last, Self::of(host));
            previous == last
        });
        last
    }

    /// The links, addresses, routes, rules, packet filters and sysctls of a namespace. Waits until no link is at work
    /// (`at_work`).
    pub fn of_ns(ns: &Ns) -> Self {
        let mut snapshot = Snapshot { sections: BTreeMap::new() };
        let mut documents = batch(ns, "", &["addr", "route show table all", "rule"]);
        let mut busy = at_work(&documents[0]);
        wait_until(PATIENCE, || {
            if !busy.is_empty() {
                documents = batch(ns, "", &["addr", "route show table all", "rule"]);
                busy = at_work(&documents[0]);
            }
            busy.is_empty()
        });
        if !busy.is_empty() {
            announce("NOTE", &format!("these links don't come to rest: {}", busy.join(", ")));
        }
        let six = batch(ns, "-6", &["rule"]);
        let sections = ["link", "route", "rule 4", "rule 6"];
        for (section, document) in sections.into_iter().zip(documents.iter().chain(&six)) {
            snapshot.put_json(section, document);
        }
        // The kernel makes them with a namespace's first VRF, and keeps them (ip-vrf(8)).
        for section in ["rule 4", "rule 6"] {
            let rules = snapshot.sections.entry(section.to_owned()).or_default();
            rules.retain(|rule| !(rule.contains("\"l3mdev\"") && rule.contains("\"protocol\":\"kernel\"")));
        }
        let ruleset = ns.nft("-s list ruleset");
        snapshot.put("nft", lines(&ruleset));
        if !ruleset.trim().is_empty() {
            // xtables rules show only there in full.
            snapshot.put("iptables-nft", save(ns, "iptables-nft-save"));
            snapshot.put("ip6tables-nft", save(ns, "ip6tables-nft-save"));
        }
        // Looking at a legacy table makes it, so only where one is in use already.
        for (file, command) in
            [("ip_tables_names", "iptables-legacy-save"), ("ip6_tables_names", "ip6tables-legacy-save")]
        {
            let path = format!("/proc/thread-self/net/{file}");
            let tables = ns.within(|| std::fs::read_to_string(&path).unwrap_or_default());
            if !tables.is_empty() {
                snapshot.put(command, save(ns, command));
            }
        }
        snapshot.put("sysctl", ns.within(sysctls));
        snapshot
    }

    /// The same without a section, such as `link`, `route`, `rule 4` or `nft`.
    #[must_use]
    pub fn without(mut self, section: &str) -> Self {
        self.sections.remove(section);
        self
    }

    /// The same without the lines that contain `text`.
    #[must_use]
    pub fn without_lines(mut self, text: &str) -> Self {
        for lines in self.sections.values_mut() {
            lines.retain(|line| !line.contains(text));
        }
        self
    }

    /// The same without what is another on every node: MACs, what IPv6 makes of them, numbers of interfaces.
    #[must_use]
    pub fn without_chance(mut self) -> Self {
        let chance =
            Regex::new("([0-9a-f]{1,2}:){5}[0-9a-f]{1,2}|fe80::[0-9a-f:]*[0-9a-f]|\"ifindex\":[0-9]+")
                .unwrap();
        for line in self.sections.values_mut().flatten() {
            *line = chance.replace_all(line, "*").into_owned();
        }
        self
    }

    /// The lines of either.
    #[must_use]
    pub fn or(mut self, other: Snapshot) -> Self {
        for (section, lines) in other.sections {
            let own = self.sections.entry(section).or_default();
            own.extend(lines.into_iter().filter(|line| !own.contains(line)).collect::<Vec<_>>());
        }
        self
    }

    /// The lines of both.
    #[must_use]
    pub fn and(mut self, other: &Snapshot) -> Self {
        for (section, lines) in &mut self.sections {
            let others = other.sections.get(section);
            lines.retain(|line| others.is_some_and(|others| others.contains(line)));
        }
        self.sections.retain(|_, lines| !lines.is_empty());
        self
    }

    /// The lines that contain `text`, each with its section.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (section, lines) in &self.sections {
            for line in lines.iter().filter(|line| line.contains(text)) {
                found.push(format!("{section}: {line}"));
            }
        }
        found
    }

    /// As [`lines_with`](Self::lines_with), but only where `word` is not a part of a longer
    /// name, number or address.
    pub fn mentions(&self, word: &str) -> Vec<String> {
        let mut found = self.lines_with(word);
        let part = |letter: char| letter.is_ascii_alphanumeric() || ".:-_".contains(letter);
        found.retain(|line| {
            line.match_indices(word).any(|(start, _)| {
                let before = line[..start].chars().next_back();
                let mut after = line[start + word.len()..].chars();
                !before.is_some_and(part) && !after.next().is_some_and(part)
            })
        });
        found
    }

    /// The differences of `later`. Empty without any.
    pub fn diff(&self, later: &Snapshot) -> String {
        let mut text = String::new();
        let nothing = Vec::new();
        let mut names: Vec<&String> = self.sections.keys().chain(later.sections.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let old = self.sections.get(name).unwrap_or(&nothing);
            let new = later.sections.get(name).unwrap_or(&nothing);
            for line in old.iter().filter(|line| !new.contains(line)) {
                let _ = writeln!(text, "  {name} - {line}");
            }
            for line in new.iter().filter(|line| !old.contains(line)) {
                let _ = writeln!(text, "  {name} + {line}");
            }
            if text.is_empty() && old != new {
                let _ = writeln!(text, "  {name}: another order or number of lines");
            }
        }
        text
    }

    /// Nothing is different in `later`.
    ///
    /// # Panics
    /// Panics with the difference.
    #[track_caller]
    pub fn assert_same(&self, later: &Snapshot, when: &str) {
        let diff = self.diff(later);
        assert!(diff.is_empty(), "{when}: the host is not as before:\n{diff}");
    }

    fn put(&mut self, section: &str, lines: Vec<String>) {
        // Nothing is nothing, whether there was something to look into or not.
        if !lines.is_empty() {
            self.sections.insert(section.into(), lines);
        }
    }

    fn put_json(&mut self, section: &str, value: &Value) {
        let mut value = value.clone();
        calm(&mut value);
        let mut entries = value.as_array().cloned().unwrap_or_default();
        // The kernel derives its local table from the addresses, some time later.
        entries.retain(|entry| !(entry["table"] == "local" && entry["protocol"] == "kernel"));
        self.put(section, entries.iter().map(Value::to_string).collect());
    }
}

impl std::fmt::Display for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (section, lines) in &self.sections {
            for line in lines {
                writeln!(f, "{section}: {line}")?;
            }
        }
        Ok(())
    }
}

/// The files below a directory, with mode and content; empty if it isn't there.
pub fn leases(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    walk(dir, dir, &mut lines);
    lines.sort();
    lines
}

fn walk(top: &Path, dir: &Path, lines: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue; // gone since
        };
        let name = path.strip_prefix(top).unwrap().display().to_string();
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_dir() {
            lines.push(format!("{name}/ {mode:o}"));
            walk(top, &path, lines);
        } else {
            let content = std::fs::read(&path).unwrap_or_default();
            lines.push(format!("{name} {mode:o} {:?}", String::from_utf8_lossy(&content)));
        }
    }
}

/// The answers of several `ip -j` commands from one process.
fn batch(ns: &Ns, family: &str, commands: &[&str]) -> Vec<Value> {
    let outcome = ns.run_with(&format!("ip -d -j {family} -batch -"), commands.join("\n").as_bytes());
    let text = outcome.success().text();
    // A command with nothing to tell prints an empty list, or nothing but a newline.
    let documents: Vec<Value> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("ip -j: {err}: {line}")))
        .collect();
    assert_eq!(documents.len(), commands.len(), "ip -j {commands:?}: {text}");
    documents
}

/// The links with pending work of the kernel. It sees a carrier at once. Up to a second later the operational state
/// changes, a bridge's port begins to forward, and link-local addresses appear. A tentative address has no route yet.
fn at_work(links: &Value) -> Vec<String> {
    let is_at_work = |link: &&Value| {
        let has = |flag: &str| link["flags"].as_array().is_some_and(|flags| flags.iter().any(|f| f == flag));
        let carrier = has("UP") && has("LOWER_UP");
        // Of lo, and of a bridge that has never been without a carrier, it is unknown for ever.
        let late = (link["operstate"] == "UP") != carrier && link["operstate"] != "UNKNOWN";
        let addrs = link["addr_info"].as_array();
        let tentative = addrs.is_some_and(|addrs| addrs.iter().any(|addr| addr["tentative"] == true));
        late || (carrier && tentative)
    };
    let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
    links.as_array().into_iter().flatten().filter(is_at_work).map(name).collect()
}

fn calm(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !RESTLESS.contains(&key.as_str()));
            map.values_mut().for_each(calm);
        }
        Value::Array(list) => {
            // A route's flag and a link's; IPv6 learns of a carrier when it likes.
            list.retain(|entry| entry != "linkdown" && entry != "NO-CARRIER");
            list.iter_mut().for_each(calm);
        }
        _ => {}
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// The output of an iptables-save without comments and counters.
fn save(ns: &Ns, command: &str) -> Vec<String> {
    let outcome = ns.run(command);
    let text = outcome.text();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(" [").next().unwrap_or_default().to_owned())
        .collect()
}

/// On a thread in the namespace.
fn sysctls() -> Vec<String> {
    let net = Path::new("/proc/sys/net");
    let mut lines = Vec::new();
    let mut look = |name: String| {
        if let Ok(value) = std::fs::read_to_string(net.join(&name)) {
            lines.push(format!("{name} = {}", value.trim()));
        }
    };
    for name in PER_HOST {
        look((*name).to_owned());
    }
    for (family, names) in PER_LINK {
        let Ok(links) = std::fs::read_dir(net.join(family).join("conf")) else {
            continue;
        };
        for link in links {
            let link = link.unwrap().file_name();
            for name in *names {
                look(format!("{family}/conf/{}/{name}", link.to_string_lossy()));
            }
        }
    }
    lines.sort();
    lines
}
