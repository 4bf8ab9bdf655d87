//! Tests `cnimble trace` on a node with a network outside. A ping verifies each fault: it fails with the fault, and passes
//! without.

mod doctor;
mod faults;
mod firewalld;
mod healthy;
mod hostile;
mod inwards;
mod killed;
mod links;
mod names;
mod nat;
mod setups;
mod size;
mod tracking;
mod unknown;

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Ns, Outcome, Pod, plugin_dir};

use super::Node;

/// An address behind the host's default route.
const FAR: &str = "192.0.2.1";
/// The same for IPv6.
const FAR6: &str = "2001:db8::1";

/// Lines of shell that keep the packet rules of the host in files with the beginning SAVED, and that restore them. nft
/// can't read what it prints of rules by iptables.
const SAVE_RULES: &str = "iptables-nft-save >SAVED.4; ip6tables-nft-save >SAVED.6; \
    for table in inet\\ cnimble ip\\ cni_hostport ip6\\ cni_hostport inet\\ cni_plugins_masquerade; do \
    nft list table $table 2>/dev/null || :; done >SAVED";
const RESTORE_RULES: &str = "nft -f SAVED; iptables-nft-restore SAVED.4; ip6tables-nft-restore SAVED.6";

/// A node with the uplink `up0` to a router, and pods on the bridge `br0`.
struct Site {
    node: Node,
    router: Ns,
    /// The directory of the plugins that make the pods.
    plugins: &'static Path,
}

impl Site {
    fn new() -> Self {
        Site::with_plugins(plugin_dir())
    }

    fn with_plugins(plugins: &'static Path) -> Self {
        let node = Node::new();
        let router = Ns::new();
        for ns in [&*node.host, &router] {
            ns.set_sysctl("ipv6/conf/default/accept_dad", "0");
        }
        node.host.cable("up0", &router, "lan0");
        node.host.ip("address add 10.7.0.2/24 dev up0");
        node.host.ip("address add fd00:7::2/64 dev up0 nodad");
        router.ip("address add 10.7.0.1/24 dev lan0");
        router.ip("address add fd00:7::1/64 dev lan0 nodad");
        router.ip(&format!("address add {FAR}/32 dev lo"));
        router.ip(&format!("address add {FAR6}/128 dev lo"));
        node.host.ip("route add default via 10.7.0.1");
        node.host.ip("-6 route add default via fd00:7::1");
        Site { node, router, plugins }
    }

    /// A bridge network of both families with masquerading.
    fn network(&self, name: &str, bridge: &str, number: u8, more: &Value) {
        let mut plugin = json!({
            "type": "bridge", "bridge": bridge, "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "dataDir": self.node.host.data_dir(), "ranges": [
                [{"subnet": format!("10.214.{number}.0/24")}], [{"subnet": format!("fd00:214:{number}::/64")}],
            ]},
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            plugin[key] = value.clone();
        }
        let config = json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]});
        self.node.network(name, &config);
    }

    fn add(&self, network: &str, id: &str) -> Pod {
        let pod = Pod::new();
        self.node.cnimble(self.plugins, &["add", network, pod.path(), "--container-id", id]).run().success();
        pod
    }

    /// The host's end of a pod's `eth0`.
    fn end(&self, pod: &Ns) -> String {
        let index = &pod.link("eth0")["link_index"];
        let links = self.node.host.ip_json("link show type veth");
        let is_its = |link: &&Value| link["ifindex"] == *index;
        links.as_array().unwrap().iter().find(is_its).unwrap()["ifname"].as_str().unwrap().to_owned()
    }

    fn trace(&self, args: &[&str]) -> Outcome {
        let args: Vec<&str> = [&["trace", "--json"], args].concat();
        self.node.cnimble(plugin_dir(), &args).run()
    }
}

fn document(outcome: &Outcome) -> Value {
    serde_json::from_slice(&outcome.stdout).unwrap_or_else(|err| panic!("{err}: {}", outcome.describe()))
}

/// The stations with this verdict, as `way place station: text`.
fn stations(outcome: &Outcome, verdict: &str) -> Vec<String> {
    let document = document(outcome);
    let stations = document["stations"].as_array().unwrap().iter();
    let text = |of: &Value| {
        let part = |key: &str| of[key].as_str().unwrap().to_owned();
        format!("{} {} {}: {}", part("way"), part("place"), part("station"), part("text"))
    };
    stations.filter(|of| of["verdict"] == verdict).map(text).collect()
}
