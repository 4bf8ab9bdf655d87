//! The effects of a set of plugins for a row, in parts that can be compared with those of another set.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use regex_lite::Regex;
use serde_json::Value;

use cnimble_tests::{Attachment, Network, Ns, Outcome, leases};

use super::rows::{Row, Table, in_dir};
use super::site::Site;

/// The parts by name. Placeholders replace the names of veth pairs, random hardware addresses and paths of the test, as
/// these differ in every run.
pub(super) struct Picture {
    parts: BTreeMap<&'static str, String>,
}

impl Picture {
    /// Runs ADD, CHECK and DEL of the row's configuration with the plugins in a directory.
    pub(super) fn of(table: &Table, row: &Row, plugins: &Path, patience: Duration) -> Self {
        let site = Site::new();
        let host = &site.host;
        let dir = host.dir().to_str().unwrap();
        host.shell(&row.host.replace("$DIR", dir));
        site.pod.shell(&row.pod);
        let att = Attachment::new("pod1", &site.pod).ifname(&table.ifname).args(&row.args);
        let net = Network::by(plugins, host, table.config(row, host.dir()));
        let before = left(&site);
        let bridge = (!table.bridge.is_null()).then(|| {
            let mut config = in_dir(&table.bridge, host.dir());
            config["name"] = net.config["name"].clone();
            config["cniVersion"] = net.config["cniVersion"].clone();
            Network::by(plugins, host, config)
        });
        // Only the tested plugin gets CNI_ARGS.
        let prev = bridge.as_ref().map(|bridge| bridge.added(&att.clone().args("")));
        let add = net.call("ADD", &att, prev.as_ref()).run();
        let mut picture = Picture { parts: BTreeMap::new() };
        picture.put("ADD", ended(&add));
        let result = (add.status == 0).then(|| add.try_result().unwrap_or_default());
        if let Some(result) = &result {
            let others = if row.neighbour { neighbour(&site, bridge.as_ref(), &net) } else { Vec::new() };
            picture.put("result", serde_json::to_string_pretty(result).unwrap());
            picture.look(&site, row);
            if row.ways {
                picture.put("traffic", site.ways(&addresses(result), &others, patience));
            }
            picture.put("CHECK", ended(&net.check(&att, result)));
        }
        picture.put("DEL", ended(&net.del(&att, result.as_ref())));
        if let Some(bridge) = &bridge {
            bridge.deleted(&att.clone().args(""), prev.as_ref());
        }
        let after = left(&site);
        picture.put(
            "left",
            after
                .lines()
                .filter(|line| !before.contains(line))
                .fold(String::new(), |text, line| text + line + "\n"),
        );
        picture.normalize(&site);
        picture
    }

    /// Returns the parts that differ.
    pub(super) fn differs(&self, other: &Picture) -> Vec<&'static str> {
        let names = self.parts.keys().chain(other.parts.keys());
        // If one of the ADDs failed, there is nothing else to compare.
        let both = [self, other].iter().all(|picture| picture.parts["ADD"] == "ok");
        let names = names.filter(|name| both || ["ADD", "DEL", "left"].contains(name));
        let mut found: Vec<_> =
            names.filter(|name| self.parts.get(*name) != other.parts.get(*name)).copied().collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the lines that differ: `-` for the Go plugins, `+` for ours.
    pub(super) fn diff(&self, ours: &Picture) -> String {
        let mut text = String::new();
        for name in self.differs(ours) {
            let part = |picture: &Picture| picture.parts.get(name).cloned().unwrap_or_default();
            let (old, new) = (part(self), part(ours));
            for line in old.lines().filter(|line| !new.lines().any(|other| other == *line)) {
                let _ = writeln!(text, "    {name} - {line}");
            }
            for line in new.lines().filter(|line| !old.lines().any(|other| other == *line)) {
                let _ = writeln!(text, "    {name} + {line}");
            }
        }
        text
    }

    fn look(&mut self, site: &Site, row: &Row) {
        self.put("pod's links", links(&site.pod, true));
        self.put("pod's addresses", addrs(&site.pod));
        self.put("pod's routes", routes(&site.pod));
        self.put("host's links", links(&site.host, false));
        self.put("host's addresses", addrs(&site.host));
        self.put("host's routes", routes(&site.host));
        let forwarding = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];
        self.put("forwarding", forwarding.map(|key| format!("{key} {}\n", site.host.sysctl(key))).concat());
        for (part, ns, script) in
            [("host's settings", &*site.host, &row.look), ("pod's settings", &site.pod, &row.look_in_pod)]
        {
            if !script.is_empty() {
                self.put(part, ns.shell(&script.replace("$DIR", site.host.dir().to_str().unwrap())));
            }
        }
    }

    fn put(&mut self, part: &'static str, text: String) {
        self.parts.insert(part, text);
    }

    fn normalize(&mut self, site: &Site) {
        let veth = Regex::new("veth[0-9a-f]{8,}").unwrap();
        // The rows request addresses with the prefix 02:00:5e.
        let mac = Regex::new("([0-9a-f]{2}:){5}[0-9a-f]{2}").unwrap();
        for text in self.parts.values_mut() {
            let plain =
                text.replace(site.pod.path(), "NETNS").replace(site.host.dir().to_str().unwrap(), "DIR");
            let plain = veth.replace_all(&plain, "VETH");
            let known = |found: &regex_lite::Captures<'_>| {
                let found = &found[0];
                if found.starts_with("02:00:5e") { found.to_owned() } else { "MAC".to_owned() }
            };
            *text = mac.replace_all(&plain, known).into_owned();
        }
    }
}

/// Returns `ok`, or the code of the error.
fn ended(outcome: &Outcome) -> String {
    match outcome.status {
        0 => "ok".into(),
        _ => outcome.try_error().map_or_else(|_| "no answer".into(), |err| format!("error {}", err.code)),
    }
}

/// Calls ADD for the second pod, and returns its addresses.
fn neighbour(site: &Site, bridge: Option<&Network<'_>>, net: &Network<'_>) -> Vec<String> {
    let att = Attachment::new("pod2", &site.neighbour);
    // A port of the host leads to only one pod.
    let mut net = net.clone();
    if let Some(runtime) = net.config["runtimeConfig"].as_object_mut() {
        runtime.remove("portMappings");
    }
    let prev = bridge.map(|bridge| bridge.added(&att));
    addresses(&net.call("ADD", &att, prev.as_ref()).run().result())
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| Some(ip["address"].as_str()?.split('/').next()?.to_owned())).collect()
}

/// Returns the links except lo and the uplink, with the settings of plugins.
fn links(ns: &Ns, with_queue: bool) -> String {
    let mut lines = Vec::new();
    for link in ns.ip_json("link show").as_array().unwrap() {
        let name = link["ifname"].as_str().unwrap();
        if name == "uplink" {
            continue;
        }
        let mut line = format!("{name} {}", link["linkinfo"]["info_kind"].as_str().unwrap_or("-"));
        for key in ["mtu", "master", "address", "promiscuity", "allmulti"] {
            let _ = write!(line, " {key} {}", link[key]);
        }
        if with_queue {
            let _ = write!(line, " txqlen {}", link["txqlen"]);
        }
        for flag in ["UP", "LOWER_UP", "PROMISC", "ALLMULTI", "NOARP"] {
            // The carrier of other kinds depends on their ports and users.
            if flag == "LOWER_UP" && link["linkinfo"]["info_kind"] != "veth" {
                continue;
            }
            if link["flags"].as_array().unwrap().iter().any(|set| set == flag) {
                let _ = write!(line, " {flag}");
            }
        }
        for (section, keys) in [
            ("info_slave_data", ["hairpin", "isolated", "learning", "flood"].as_slice()),
            (
                "info_data",
                &[
                    "mode",
                    "flags",
                    "id",
                    "protocol",
                    "vlan_filtering",
                    "vlan_default_pvid",
                    "table",
                    "type",
                    "user",
                    "group",
                    "multi_queue",
                ],
            ),
        ] {
            for key in keys {
                let value = &link["linkinfo"][section][*key];
                if !value.is_null() {
                    let _ = write!(line, " {key} {value}");
                }
            }
        }
        lines.push(line);
    }
    lines.sort();
    lines.join("\n")
}

/// Returns the addresses that the kernel has not created itself.
fn addrs(ns: &Ns) -> String {
    let mut lines = Vec::new();
    for link in ns.ip_json("addr show").as_array().unwrap() {
        for addr in link["addr_info"].as_array().into_iter().flatten().filter(|addr| addr["scope"] != "link")
        {
            let broadcast = addr["broadcast"].as_str().unwrap_or("none");
            lines.push(format!(
                "{} {}/{} broadcast {broadcast}",
                link["ifname"], addr["local"], addr["prefixlen"]
            ));
        }
    }
    lines.sort();
    lines.join("\n")
}

/// Returns the routes and rules that the kernel has not created itself.
fn routes(ns: &Ns) -> String {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        for route in ns.ip_json(&format!("{family} route show table all")).as_array().unwrap() {
            let dst = route["dst"].as_str().unwrap_or_default();
            let own = route["table"] == "local" || (route["type"] == "local" && dst.starts_with("fe80:"));
            if own || ["fe80::/64", "ff00::/8", "multicast"].contains(&dst) {
                continue;
            }
            let mut line = family.to_owned();
            for key in ["type", "dst", "gateway", "dev", "table", "scope", "prefsrc", "metric", "metrics"] {
                if !route[key].is_null() {
                    let _ = write!(line, " {key} {}", route[key]);
                }
            }
            lines.push(line);
        }
        for rule in ns.ip_json(&format!("{family} rule show")).as_array().unwrap() {
            if !["local", "main", "default"].contains(&rule["table"].as_str().unwrap_or_default()) {
                lines.push(format!("{family} rule {rule}"));
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

/// Returns the possible remains of a pod on a host, one a line.
fn left(site: &Site) -> String {
    let host = &site.host;
    let mut lines: Vec<String> = host.links().iter().map(|name| format!("link {name}")).collect();
    lines.extend(site.pod.links().iter().map(|name| format!("link in the pod {name}")));
    lines.extend(routes(host).lines().map(|line| format!("route {line}")));
    // The index is a file of ours that no other program reads.
    let files = leases(&host.data_dir()).into_iter().filter(|line| !line.contains(".cnimble-index"));
    lines.extend(files.map(|line| format!("lease {line}")));
    let rules = host.run("nft list ruleset").text();
    lines.extend(rules.lines().filter(|line| line.contains("pod1")).map(|_| "a rule of the pod".into()));
    lines.dedup();
    lines.join("\n")
}
