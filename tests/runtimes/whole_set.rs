//! Tests a node without any Go plugin. A pod has three interfaces in different networks: a bridge and two macvlans. The
//! macvlans have addresses by DHCP and routing by source address.

use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;

use serde_json::{Value, json};

use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{
    Background, Node, Ns, PATIENCE, Pod, Podman, command, need_recent_go, plugin_dir, wait_until,
};

use crate::{assert_clean, network, node, outside};

/// An address behind each of the pod's interfaces. Each time it belongs to another host.
const FAR: &str = "198.51.100.1";
const PORT: u16 = 7007;
/// The pod's interfaces, and the host with that address behind each.
const WAYS: [(&str, &str); 3] = [("eth0", "outside"), ("net1", "lan1"), ("net2", "lan2")];

macro_rules! need_macvlan {
    () => {
        if cnimble_tests::vm::lacks("macvlan") {
            cnimble_tests::skip!("this kernel has no interfaces of the kind macvlan");
        }
    };
}

/// A foreign network beside the node.
struct Segment {
    _ns: Ns,
    _far: Server,
    _dhcp: Option<Background>,
}

impl Segment {
    /// Gives the far address to `ns`. Its interface to the node has the network `net`.
    fn outside(ns: Ns, name: &'static str, interface: &str, net: &str) -> Self {
        ns.ip(&format!("address add {FAR}/32 dev lo"));
        // Answers take the path of the request.
        ns.ip(&format!("route replace {net}.0/24 dev {interface} src {FAR}"));
        let server = Server::udp(&ns, PORT, name);
        Segment { _ns: ns, _far: server, _dhcp: None }
    }

    /// Creates a segment behind the node's interface `uplink`, with a DHCP server that is the router.
    fn behind(node: &Node, uplink: &str, name: &'static str, net: &str) -> Self {
        let ns = Ns::new();
        ns.set_sysctl("ipv6/conf/default/accept_dad", "0");
        node.cable(uplink, &ns, "lan0");
        ns.ip(&format!("address add {net}.1/24 dev lan0"));
        let mut dnsmasq = ns.command("dnsmasq");
        dnsmasq.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--port=0",
            "--no-ping",
            "--user=root",
        ]);
        dnsmasq.args(["--pid-file=", "--leasefile-ro", "--dhcp-authoritative", "--interface=lan0"]);
        dnsmasq.arg("--bind-dynamic").arg(format!("--dhcp-range={net}.10,{net}.99,2m"));
        dnsmasq.stdin(Stdio::null()).stderr(Stdio::null());
        let dnsmasq = Background::start(&mut dnsmasq);
        Segment { _dhcp: Some(dnsmasq), ..Segment::outside(ns, name, "lan0", net) }
    }
}

/// Returns the network of an uplink: macvlan with addresses by DHCP and routing by source address.
fn lan(name: &str, uplink: &str, version: &str) -> Value {
    let macvlan = json!({"type": "macvlan", "master": uplink, "ipam": {"type": "dhcp"}});
    json!({"cniVersion": version, "name": name, "plugins": [macvlan, {"type": "sbr"}]})
}

/// A node with the three networks and the segments behind them.
struct Site {
    node: Node,
    _segments: [Segment; 3],
}

impl Site {
    fn new(version: &str) -> Self {
        let node = node();
        let outside = Segment::outside(outside(&node), "outside", "eth0", "192.0.2");
        let [one, two] = [("uplink1", "lan1", "10.61.0"), ("uplink2", "lan2", "10.62.0")]
            .map(|(uplink, name, net)| Segment::behind(&node, uplink, name, net));
        node.ip(&format!("route add {FAR} via 192.0.2.2"));
        node.file("net.d/10-pods.conflist", &network(&node, version).to_string());
        node.file("net.d/20-lan1.conflist", &lan("lan1", "uplink1", version).to_string());
        node.file("net.d/30-lan2.conflist", &lan("lan2", "uplink2", version).to_string());
        Site { node, _segments: [outside, one, two] }
    }

    /// Runs `cnimble ARGS…` for an interface of this name.
    fn cnimble(&self, ifname: &str, args: &str) -> String {
        let conf = self.node.dir().join("net.d");
        let command = command().canonicalize().unwrap();
        self.node.sh(&format!(
            "CNI_PATH=/opt/cni/bin NETCONFPATH={} CNI_IFNAME={ifname} {} {args}",
            conf.display(),
            command.display()
        ))
    }

    /// Asserts that packets from an interface's address leave by that interface.
    #[track_caller]
    fn each_leaves_by_its_own(&self, pod: &Pod) {
        for (ifname, who) in WAYS {
            let address = address(pod, ifname);
            let socket = pod.within(|| UdpSocket::bind(format!("{address}:0")).unwrap());
            let far = SocketAddr::new(FAR.parse().unwrap(), PORT);
            let answer = traffic::ask(&socket, far).unwrap_or_else(|| panic!("no answer to {ifname}"));
            // Only the bridge's network masquerades.
            let seen = if ifname == "eth0" { "192.0.2.1" } else { &address };
            assert_eq!(answer, format!("{who} {seen}"), "from {ifname}");
        }
    }

    /// Asserts that no lease remains and that the lease daemon has ended.
    #[track_caller]
    fn is_clean(&self) {
        let socket = self.node.path("/run/cnimble/dhcp.sock");
        assert!(wait_until(PATIENCE, || !socket.exists()), "the lease daemon goes on");
        let leases = std::fs::read_dir(self.node.path("/run/cnimble/dhcp.leases")).unwrap();
        let leases: Vec<_> = leases.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(leases, ["lock"]);
        for uplink in ["uplink1", "uplink2"] {
            self.node.ip(&format!("link del {uplink}"));
        }
        assert_clean(&self.node);
    }
}

/// Returns the only IPv4 address of an interface, without its prefix length.
#[track_caller]
fn address(pod: &Pod, ifname: &str) -> String {
    let mut all = pod.addrs(ifname);
    all.retain(|address| !address.contains(':'));
    assert_eq!(all.len(), 1, "{ifname} has {all:?}");
    all[0].split('/').next().unwrap().to_owned()
}

/// Returns the source addresses in the pod's rules.
fn rules(pod: &Pod) -> Vec<String> {
    let all = pod.ip("rule show");
    let from = all.lines().filter_map(|line| line.split_once("from ")?.1.split(' ').next());
    from.filter(|from| *from != "all").map(str::to_owned).collect()
}

#[test]
fn every_go_plugin_has_one_of_ours() {
    need_recent_go!(go);
    let names = |dir: &std::path::Path| {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.filter(|name| !name.to_str().unwrap().starts_with('.')).collect();
        names.sort();
        names
    };
    let ours = names(plugin_dir());
    let lacking: Vec<_> = names(go).into_iter().filter(|name| !ours.contains(name)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}

#[test]
fn a_pod_has_three_interfaces_without_a_go_plugin() {
    cnimble_tests::need!("ip", "nft", "unshare", "nsenter", "dnsmasq");
    need_macvlan!();
    let site = Site::new("1.1.0");
    let attachments = [("pods", "eth0"), ("lan1", "net1"), ("lan2", "net2")];
    site.node.sh("ip netns add pod");
    let pod = site.node.netns("/run/netns/pod");
    for (network, ifname) in attachments {
        site.cnimble(ifname, &format!("status {network}"));
        site.cnimble(ifname, &format!("add {network} pod"));
    }
    assert_eq!(pod.links(), ["eth0", "lo", "net1", "net2"]);
    site.each_leaves_by_its_own(&pod);
    assert_eq!(rules(&pod).len(), 2, "{}", pod.ip("rule show"));

    // GC keeps listed attachments and removes others.
    let clean = |network: &str| {
        let id = site.node.sh("ls /var/lib/cni/results | sed -n 's/^pods-\\(.*\\)-eth0$/\\1/p'");
        site.cnimble("net1", &format!("gc {network} --valid {id}/net1"));
    };
    clean("lan1");
    for (network, ifname) in attachments {
        site.cnimble(ifname, &format!("check {network} pod"));
    }
    site.each_leaves_by_its_own(&pod);
    clean("lan2");
    assert_eq!(pod.links(), ["eth0", "lo", "net1"]);
    assert_eq!(rules(&pod), [address(&pod, "net1")]);
    site.cnimble("net2", "add lan2 pod");
    site.each_leaves_by_its_own(&pod);

    for (network, ifname) in attachments {
        site.cnimble(ifname, &format!("del {network} pod"));
    }
    assert_eq!((pod.links(), rules(&pod)), (vec!["lo".to_owned()], Vec::new()));
    site.is_clean();
}

#[test]
fn podman_gives_a_container_three_networks() {
    need_runtime!("podman", "crun", "dnsmasq");
    need_macvlan!();
    let site = Site::new("0.4.0");
    let podman = Podman::new(&site.node, &site.node.dir().join("net.d").display().to_string(), "pods");
    let networks = "--network pods:interface_name=eth0 --network lan1:interface_name=net1 \
                    --network lan2:interface_name=net2";
    podman.run("one", networks);
    site.each_leaves_by_its_own(&podman.netns("one"));
    podman.call("restart --time 5 one");
    site.each_leaves_by_its_own(&podman.netns("one"));
    podman.call("rm --force --time 5 one");
    site.is_clean();
}
