//! Which capabilities(7) each verb needs: found out by taking one after the other away, and by
//! leaving it no others. docs/SECURITY.md has the table.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Call, Host, Network, Pod, announce, configs, leases, missing, need, skip};

/// Those that a network plugin could conceivably need.
const CANDIDATES: &[&str] = &[
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "net_admin",
    "net_bind_service",
    "net_raw",
    "setpcap",
    "sys_admin",
    "sys_module",
    "sys_resource",
];

const VERBS: &[&str] = &["ADD", "DEL", "CHECK", "GC", "STATUS"];

/// A plugin with its configuration; those of a chain get bridge's result.
fn plugins(host: &Host) -> Vec<(&'static str, Value)> {
    let mut bridge = configs::dual(host);
    bridge["ipMasq"] = true.into();
    bridge["macspoofchk"] = true.into();
    let mut ptp = configs::dual(host);
    ptp["type"] = "ptp".into();
    ptp["name"] = "ptp".into();
    ptp["ipam"]["ranges"] = json!([[{"subnet": "10.1.3.0/24"}]]);
    ptp["ipam"]["routes"] = json!([]);
    let chained = |more: Value| {
        let mut config = json!({"cniVersion": "1.1.0", "name": "net64"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    vec![
        (
            "bandwidth",
            chained(json!({"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 80000,
            "egressRate": 8000000, "egressBurst": 80000})),
        ),
        ("bridge", bridge),
        ("firewall", chained(json!({"type": "firewall", "backend": "nftables"}))),
        ("host-local", configs::ipam(host)),
        ("loopback", configs::loopback()),
        (
            "portmap",
            chained(json!({"type": "portmap", "backend": "nftables", "snat": true,
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}})),
        ),
        ("ptp", ptp),
        (
            "static",
            json!({"cniVersion": "1.1.0", "name": "net64", "type": "static",
            "ipam": {"type": "static", "addresses": [{"address": "10.1.9.2/24"}]}}),
        ),
        (
            "tuning",
            chained(json!({"type": "tuning", "mtu": 1400, "dataDir": host.dir().join("tuning"),
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})),
        ),
    ]
}

/// A node with a pod on a bridge, for the plugins of a chain.
struct Stage {
    host: Host,
    pod: Pod,
    prev: Value,
}

impl Stage {
    fn new() -> Self {
        let (host, pod) = (Host::hasty(), Pod::new());
        let prev = Network::new(&host, configs::dual(&host)).added(&Attachment::new("base", &pod));
        Stage { host, pod, prev }
    }

    fn call(&self, plugin: &str, config: &Value, verb: &str, prev: &Value) -> Call<'_> {
        let mut config = config.clone();
        let alone = ["bridge", "ptp", "loopback", "host-local", "static"].contains(&plugin);
        match verb {
            "GC" => {
                config["cni.dev/valid-attachments"] = json!([{"containerID": "base", "ifname": "eth0"}]);
            }
            "ADD" if alone => {}
            "STATUS" => {}
            _ => config["prevResult"] = prev.clone(),
        }
        let ifname = if plugin == "loopback" {
            "lo"
        } else if alone {
            "eth1"
        } else {
            "eth0"
        };
        let id = if alone { "c1" } else { "base" };
        self.host.call(plugin).command(verb).attachment(id, self.pod.path(), ifname).config(&config)
    }

    /// What there is on the host of an attachment.
    fn traces(&self) -> Vec<String> {
        let mut found = self.host.links();
        found.extend(leases(&self.host.data_dir()).into_iter().filter(|line| line.contains("c1\\r")));
        found
            .extend(leases(&self.host.dir().join("tuning")).into_iter().filter(|line| line.contains("json")));
        found.push(format!("mtu {}", self.pod.link("eth0")["mtu"]));
        let rules = self.host.nft("list ruleset");
        found.extend(rules.lines().filter(|line| line.contains("id: ")).map(str::to_owned));
        found
    }

    /// Whether a verb does its work with these privileges; afterwards all is as before.
    fn works(&self, plugin: &str, config: &Value, verb: &str, privileges: &str) -> bool {
        let clean = self.traces();
        let full = |verb: &str, prev: &Value| self.call(plugin, config, verb, prev).run();
        let mut prev = self.prev.clone();
        if ["DEL", "CHECK", "GC"].contains(&verb) {
            let added = full("ADD", &prev).result();
            prev = added;
        }
        let call = self.call(plugin, config, verb, &prev);
        let bounding = format!("--bounding-set={privileges}");
        let wrapper = ["setpriv", "--inh-caps=-all", &bounding];
        let outcome = call.under(&wrapper).run();
        let mut good = outcome.status == 0;
        if verb == "DEL" {
            good &= self.traces() == clean;
        }
        full("DEL", &prev).success();
        // What a DEL without the privileges has left.
        self.pod.ip("link set eth0 mtu 1500");
        if plugin == "bandwidth" {
            // Its qdisc goes with the veth, which stays here.
            for link in self.host.links().iter().filter(|link| link.starts_with("veth")) {
                self.host.run(&format!("tc qdisc del dev {link} root"));
                self.host.run(&format!("tc qdisc del dev {link} ingress"));
            }
        }
        good
    }
}

#[test]
fn every_verb_needs_what_the_table_says() {
    need!("ip", "nft");
    if let Some(why) = missing(&["setpriv"]) {
        skip!("{why}");
    }
    let stage = Stage::new();
    let told = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SECURITY.md")).unwrap();
    let mut wrong = Vec::new();
    for (plugin, config) in plugins(&stage.host) {
        let mut cells = Vec::new();
        for verb in VERBS {
            assert!(stage.works(plugin, &config, verb, "+all"), "{plugin} {verb} doesn't work at all");
            let needed: Vec<&str> = CANDIDATES
                .iter()
                .filter(|one| !stage.works(plugin, &config, verb, &format!("+all,-{one}")))
                .copied()
                .collect();
            let only: String = needed.iter().map(|one| format!(",+{one}")).collect();
            // The pods of these tests are in /proc/PID/fd, into which not everybody may look.
            if !stage.works(plugin, &config, verb, &format!("-all,+sys_ptrace{only}")) {
                wrong.push(format!("{plugin} {verb} doesn't work with {needed:?} alone"));
            }
            cells.push(if needed.is_empty() { "none".to_owned() } else { needed.join(", ") });
        }
        let row = format!("| {plugin} | {} |", cells.join(" | "));
        announce("NOTE", &row);
        if !told.contains(&row) {
            wrong.push(format!("docs/SECURITY.md lacks the row: {row}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
