//! A table of healthy set-ups. Each is traced with a probe, which must be answered, and without one, which must find no
//! fault.

mod in_vm;

use std::path::Path;

use cnimble_tests::traffic::Server;
use cnimble_tests::{Pod, need, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::healthy::assert_answered;
use super::{FAR, FAR6, Site, stations};

/// A set-up. The pods `web` and `db` are in the network that is described. The pod `third` is in another network.
struct Setup {
    name: &'static str,
    /// Lines of shell for the host and the router, before there are pods. RULES is the directory of rules of others.
    host: &'static str,
    router: &'static str,
    /// The plugins of the network.
    plugins: Value,
    /// The plugins of the network of the second interface of `web`. Null without one.
    second: Value,
    /// More keys of the network of `third`.
    third: Value,
    /// Whether the Go plugins lack a key of the set-up.
    needs_cnimble: bool,
    /// Whether the host has a second cable, `up1`, to the router.
    has_second_cable: bool,
    /// The receivers of what `web` sends, and those of what `third` sends.
    to: Vec<&'static str>,
    from_third: Vec<&'static str>,
}

impl Setup {
    /// Begins a set-up with receivers of both families.
    fn new(name: &'static str, plugins: Value) -> Self {
        let to = vec![
            FAR,
            FAR6,
            "gateway",
            "internet",
            "db",
            DB6,
            "third:9",
            "192.0.2.1:8080",
            "[fd00:7::1]:8080/udp",
        ];
        let from_third = vec!["web", WEB6, "db:9/udp"];
        Setup {
            name,
            host: "",
            router: "",
            plugins,
            second: Value::Null,
            third: json!({"ipMasq": false}),
            needs_cnimble: false,
            has_second_cable: false,
            to,
            from_third,
        }
    }

    fn host(self, host: &'static str) -> Self {
        Setup { host, ..self }
    }

    fn router(self, router: &'static str) -> Self {
        Setup { router, ..self }
    }

    fn second(self, second: Value) -> Self {
        Setup { second, ..self }
    }

    fn third(self, third: Value) -> Self {
        Setup { third, ..self }
    }

    fn needs_cnimble(self) -> Self {
        Setup { needs_cnimble: true, ..self }
    }

    fn second_cable(self) -> Self {
        Setup { has_second_cable: true, ..self }
    }

    fn to(self, to: &[&'static str]) -> Self {
        Setup { to: to.to_vec(), ..self }
    }

    fn answers_third(self, from_third: &[&'static str]) -> Self {
        Setup { from_third: from_third.to_vec(), ..self }
    }

    /// Makes the set-up and traces it. Returns what is wrong.
    fn faults(self, plugins: &'static Path) -> Vec<String> {
        let site = Site::with_plugins(plugins);
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/nodes/rules");
        site.node.host.shell(&self.host.replace("RULES", rules));
        site.router.shell(self.router);
        if self.has_second_cable {
            site.node.host.cable("up1", &site.router, "lan1");
            site.router.ip("address add 10.8.0.1/24 dev lan1");
            site.router.ip("address add fd00:8::1/64 dev lan1 nodad");
        }
        site.chain("net", self.plugins.clone());
        site.network("other", "br9", 9, &self.third);
        let web = site.add("net", "web");
        // A device goes into one pod, and a VLAN of a master exists once.
        let is_single = ["host-device", "vlan"].iter().any(|kind| self.plugins[0]["type"] == *kind);
        let _db = (!is_single).then(|| site.add("net", "db"));
        let _third = site.add("other", "third");
        if !self.second.is_null() {
            site.chain("second", self.second.clone());
            site.add_second(&web);
        }
        let _server = Server::start(&site.router, 8080, "far");
        let mut faults = Vec::new();
        for (from, receivers) in [("web", &self.to), ("third", &self.from_third)] {
            for to in receivers {
                let name = format!("{}: {from} to {to}", self.name);
                let looked = site.trace(&[from, to, "--no-probe"]);
                let traced = site.trace(&[from, to]);
                if looked.status == 6 {
                    faults.push(format!("{name}, without a probe: {:?}", stations(&looked, "stops")));
                }
                if let Err(text) = std::panic::catch_unwind(|| assert_answered(&traced)) {
                    faults.push(format!("{name}: {}", text.downcast_ref::<String>().unwrap()));
                }
            }
        }
        faults
    }
}

const DB6: &str = "fd00:214:1::3";
const WEB6: &str = "fd00:214:1::2";

/// The ranges of a network with this number, in which `web` has address 2 and `db` address 3.
pub(super) fn ranges(number: u8) -> Value {
    json!({"type": "host-local", "ranges": [
        [{"subnet": format!("10.214.{number}.0/24")}], [{"subnet": format!("fd00:214:{number}::/64")}],
    ]})
}

/// Ranges of the network outside, which has the router as gateway.
pub(super) fn outside(number: u8) -> Value {
    json!({"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": [
        [{"subnet": format!("10.{number}.0.0/24"), "rangeStart": format!("10.{number}.0.50"), "gateway": format!("10.{number}.0.1")}],
        [{"subnet": format!("fd00:{number}::/64"), "rangeStart": format!("fd00:{number}::50"), "gateway": format!("fd00:{number}::1")}],
    ]})
}

/// Returns a plugin with more keys.
pub(super) fn with(mut plugin: Value, mut more: Value) -> Value {
    plugin.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
    plugin
}

/// A bridge with gateways, default routes and masquerading, and more keys.
pub(super) fn bridge(more: Value) -> Value {
    let base = json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": ranges(1)});
    with(base, more)
}

/// A bridge of its own for the second interface of `web`.
pub(super) fn second_bridge() -> Value {
    json!({"type": "bridge", "bridge": "br2", "isGateway": true, "ipam": ranges(2)})
}

/// A plugin on the uplink, with pods that the router sees.
pub(super) fn on_uplink(kind: &str, more: Value) -> Value {
    with(json!({"type": kind, "master": "up0", "ipam": outside(7)}), more)
}

impl Site {
    /// Gives `web` the interface net1 in the network `second`.
    pub(super) fn add_second(&self, web: &Pod) {
        let args = ["add", "second", web.path(), "--container-id", "web", "--ifname", "net1"];
        self.node.cnimble(self.plugins, &args).run().success();
    }

    /// A network of these plugins. Those with leases get their directory.
    pub(super) fn chain(&self, name: &str, mut plugins: Value) {
        let dir = self.node.host.dir();
        for plugin in plugins.as_array_mut().unwrap() {
            if !plugin["ipam"].is_null() {
                plugin["ipam"]["dataDir"] = json!(self.node.host.data_dir());
            }
            if plugin["type"] == "tuning" || plugin["type"] == "host-device" {
                plugin["dataDir"] = json!(dir.join("plugins"));
            }
        }
        self.node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins}));
    }
}

fn assert_healthy(plugins: &'static Path, setups: Vec<Setup>) {
    let possible = setups.into_iter().filter(|setup| plugins == plugin_dir() || !setup.needs_cnimble);
    let faults: Vec<String> = possible.flat_map(|setup| setup.faults(plugins)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

const V4: &[&str] =
    &[FAR, "gateway", "internet", "10.7.0.2", "db", "third", "192.0.2.1:8080", "192.0.2.1:9/udp", "db:9"];
const V6: &[&str] =
    &[FAR6, "fd00:214:1::1", "fd00:7::2", "db", "[2001:db8::1]:8080", "[2001:db8::1]:9/udp", "db:9/udp"];
/// Receivers without the network's gateway on the host.
const NEIGHBOUR: &[&str] = &["db", DB6, "db:9", "[fd00:214:1::3]:9/udp"];
/// The router's routes to pods whose packets are not masqueraded.
pub(super) const ROUTES_BACK: &str =
    "ip route add 10.214.0.0/16 via 10.7.0.2; ip -6 route add fd00:214::/32 via fd00:7::2";

fn bridges() -> Vec<Setup> {
    let v4 = json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.214.1.0/24"}]]}});
    let v6 = json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:214:1::/64"}]]}});
    vec![
        Setup::new("IPv4", json!([bridge(v4)])).to(V4).answers_third(&["web", "web:9/udp"]),
        Setup::new("IPv6", json!([bridge(v6)])).to(V6).answers_third(&["web", "web:9/udp"]),
        Setup::new("both families", json!([bridge(json!({}))])),
        Setup::new("no gateway", json!([bridge(json!({"isDefaultGateway": false, "ipMasq": false}))]))
            .to(NEIGHBOUR)
            .answers_third(&[]),
        Setup::new("no masquerading", json!([bridge(json!({"ipMasq": false}))])).router(ROUTES_BACK),
        Setup::new("masquerading by iptables", json!([bridge(json!({"ipMasqBackend": "iptables"}))])),
        Setup::new(
            "no masquerading for the router",
            json!([bridge(json!({"ipMasqExclude": ["10.7.0.0/24"]}))]),
        )
        .needs_cnimble()
        .router(ROUTES_BACK),
        Setup::new("isolated ports", json!([bridge(json!({"portIsolation": true}))]))
            .to(&[FAR, FAR6, "gateway", "third:9"]),
        Setup::new("the MAC check", json!([bridge(json!({"macspoofchk": true}))])),
        Setup::new("a promiscuous bridge", json!([bridge(json!({"promiscMode": true}))])),
        Setup::new("hairpin", json!([bridge(json!({"hairpinMode": true}))])),
        Setup::new("an MTU", json!([bridge(json!({"mtu": 1400}))])),
        Setup::new("address detection", json!([bridge(json!({"enabledad": true}))])),
        Setup::new("a reverse-path filter", json!([bridge(json!({}))]))
            .host("for of in all default up0; do echo 1 >/proc/sys/net/ipv4/conf/$of/rp_filter; done"),
        Setup::new("rules of IP for bridges", json!([bridge(json!({}))]))
            .host("for of in ip ip6; do echo 1 >/proc/sys/net/bridge/bridge-nf-call-${of}tables; done"),
    ]
}

#[test]
fn bridges_are_healthy() {
    need!("ip", "nft");
    assert_healthy(plugin_dir(), bridges());
}

fn other_links() -> Vec<Setup> {
    let ptp = |more: Value| {
        with(
            json!({"type": "ptp", "ipam": with(ranges(1), json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}))}),
            more,
        )
    };
    let v4 = json!({"ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.214.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}});
    let v6 = json!({"ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:214:1::/64"}]], "routes": [{"dst": "::/0"}]}});
    let to_router: &[&str] =
        &[FAR, FAR6, "10.7.0.1", "192.0.2.1:8080", "[fd00:7::1]:8080/udp", "192.0.2.1:9"];
    let to_both: Vec<&str> = [to_router, &["10.7.0.51", "fd00:7::51", "db:9"]].concat();
    vec![
        Setup::new("ptp, IPv4", json!([ptp(v4)])).to(V4).answers_third(&["web", "web:9/udp"]),
        Setup::new("ptp, IPv6", json!([ptp(v6)])).to(V6).answers_third(&["web", "web:9/udp"]),
        Setup::new("ptp, both families", json!([ptp(json!({"ipMasq": true}))])),
        Setup::new("ptp without masquerading", json!([ptp(json!({}))])).router(ROUTES_BACK),
        Setup::new("ptp with an MTU", json!([ptp(json!({"ipMasq": true, "mtu": 1400}))])),
        Setup::new("macvlan", json!([on_uplink("macvlan", json!({}))])).to(&to_both).answers_third(&[]),
        Setup::new("macvlan, private", json!([on_uplink("macvlan", json!({"mode": "private"}))]))
            .to(to_router)
            .answers_third(&[]),
        Setup::new("macvlan, vepa", json!([on_uplink("macvlan", json!({"mode": "vepa"}))]))
            .to(to_router)
            .answers_third(&[]),
        Setup::new("macvlan with a shim", json!([on_uplink("macvlan", json!({"hostShim": true}))]))
            .needs_cnimble()
            .to(&to_both)
            .answers_third(&[]),
        Setup::new("host-device", json!([{"type": "host-device", "device": "up1", "ipam": outside(8)}]))
            .second_cable()
            .to(&[FAR, FAR6, "gateway", "192.0.2.1:8080"])
            .answers_third(&[]),
        Setup::new(
            "a bridge with an uplink",
            json!([{"type": "bridge", "bridge": "br0", "uplink": "up1", "ipam": outside(8)}]),
        )
        .needs_cnimble()
        .second_cable()
        .to(&[FAR, FAR6, "gateway", "db", "fd00:8::51", "192.0.2.1:8080"])
        .answers_third(&[]),
    ]
}

#[test]
fn other_links_are_healthy() {
    need!("ip", "nft");
    assert_healthy(plugin_dir(), other_links());
}

fn chains() -> Vec<Setup> {
    let plain = || bridge(json!({}));
    let chained = |plugin: Value| json!([plain(), plugin]);
    let second = |plugins: &[Value]| Value::Array([&[second_bridge()], plugins].concat());
    let to = &[FAR, FAR6, "db", "third:9", "10.214.2.1", "fd00:214:2::1", "10.7.0.1:8080/udp"];
    let from_third = &["web", WEB6, "10.214.2.2", "fd00:214:2::2", "10.214.2.2:9"];
    vec![
        Setup::new(
            "tuning",
            chained(json!({"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.rp_filter": "1"}, "mtu": 1400})),
        ),
        Setup::new("tuning, promiscuous", chained(json!({"type": "tuning", "promisc": true}))),
        Setup::new(
            "bandwidth",
            chained(json!({"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 80_000_000,
                           "egressRate": 80_000_000, "egressBurst": 80_000_000})),
        ),
        Setup::new("firewall", chained(json!({"type": "firewall"}))),
        Setup::new("firewall, iptables", chained(json!({"type": "firewall", "backend": "iptables"}))),
        Setup::new(
            "firewall, same bridge",
            chained(json!({"type": "firewall", "ingressPolicy": "same-bridge"})),
        )
        .answers_third(&[]),
        Setup::new("portmap", chained(json!({"type": "portmap", "backend": "nftables"}))),
        Setup::new("portmap, iptables", chained(json!({"type": "portmap", "backend": "iptables"}))),
        Setup::new("two networks", json!([plain()])).second(second(&[])).to(to).answers_third(&["web", WEB6]),
        // The second interface answers to the host's address, which masquerading gives to `third`.
        Setup::new("two networks, masqueraded", json!([plain()]))
            .host("echo 1 >/proc/sys/net/ipv4/conf/default/rp_filter")
            .second(second(&[]))
            .third(json!({"ipMasq": true}))
            .to(to)
            .answers_third(&["web", WEB6, "10.214.2.2", "10.214.2.2:9", "10.214.2.2:9/udp"]),
        Setup::new("sbr", json!([plain()]))
            .second(second(&[json!({"type": "sbr"})]))
            .to(to)
            .answers_third(from_third),
    ]
}

#[test]
fn chains_are_healthy() {
    need!("ip", "nft", "iptables-nft", "ip6tables-nft");
    assert_healthy(plugin_dir(), chains());
}

fn rules_of_others() -> Vec<Setup> {
    let firewall = || json!([bridge(json!({})), {"type": "firewall"}]);
    let plain = || json!([bridge(json!({}))]);
    let to = &[FAR, FAR6, "gateway", "db", DB6, "192.0.2.1:8080", "[fd00:7::1]:8080/udp"];
    vec![
        Setup::new("Docker", firewall()).host("iptables-nft-restore RULES/docker.rules").to(to).answers_third(&[]),
        Setup::new("ufw", firewall())
            .host("iptables-nft-restore RULES/ufw.rules; ip6tables-nft-restore RULES/ufw.rules6")
            .to(to)
            .answers_third(&[]),
        Setup::new("FORWARD drops", firewall())
            .host("iptables-nft-restore RULES/drop.rules; ip6tables-nft-restore RULES/drop.rules6")
            .to(to)
            .answers_third(&[]),
        Setup::new("FORWARD rejects", firewall())
            .host("iptables-nft-restore RULES/reject.rules; ip6tables-nft-restore RULES/reject.rules6")
            .to(to)
            .answers_third(&[]),
        Setup::new("kube-proxy", plain()).host("iptables-nft-restore RULES/kube-proxy.rules"),
        Setup::new("kube-proxy, nftables", plain()).host("nft -f RULES/kube-proxy.nft"),
        Setup::new("a legacy rule for others", plain())
            .host("iptables-legacy -A FORWARD -s 203.0.113.0/24 -j DROP; ip6tables-legacy -A FORWARD -s 2001:db8:9::/64 -j DROP"),
        Setup::new("a drop rule for others", plain()).host(
            "nft 'table inet own { chain forward { type filter hook forward priority 0; policy drop; \
             ct state established,related accept; iifname { br0, br9 } accept; }; }'",
        ),
    ]
}

#[test]
fn rules_of_others_are_healthy() {
    need!("ip", "nft", "iptables-nft-restore", "ip6tables-nft-restore");
    assert_healthy(plugin_dir(), rules_of_others());
}

#[test]
fn pods_of_the_go_plugins_are_healthy() {
    need_recent_go!(go, "ip", "nft", "iptables-nft-restore", "ip6tables-nft-restore");
    for setups in [bridges(), other_links(), chains(), rules_of_others()] {
        assert_healthy(go, setups);
    }
}
