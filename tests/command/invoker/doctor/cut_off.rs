//! Tests pods that are cut off by something that the doctor can't put back, and what it says of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_netlink::Netlink;
use cnimble_netlink::packet::{Socket, SocketPurpose};
use cnimble_os::files::begun;
use cnimble_tests::traffic::{Server, tcp, tcp_is_shut};
use cnimble_tests::{Outcome, Pod, need, need_go, plugin_dir};

use super::{Node, findings, kinds, veths};

/// A bridge with published ports. Its elements name no link, so they don't go with one.
fn network(node: &Node, subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "doc",
        "plugins": [
            {
                "type": "bridge", "bridge": "br1", "isDefaultGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": subnet}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Returns what a person reads.
fn text(node: &Node, args: &[&str]) -> Outcome {
    let dir = node.host.data_dir();
    let all = [&["doctor", "--grace", "0", "--data-dir", dir.to_str().unwrap()], args].concat();
    node.cnimble(plugin_dir(), &all).run()
}

#[test]
fn a_pod_without_its_interface_is_a_fault_that_only_its_runtime_repairs() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "10.213.41.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    let healthy = text(&node, &[]).success();
    assert!(
        healthy.text().ends_with("1 attachment lives or may live; the plugins' objects are whole\n"),
        "{}",
        healthy.describe()
    );
    // Without its record the pod is not compared.
    let (entry, aside) = (node.entry("doc", "one"), node.host.dir().join("entry"));
    std::fs::rename(&entry, &aside).unwrap();
    let unknown = text(&node, &[]).success().text();
    for part in [
        "not checked: 1 attachment that only a link or a lease shows: no cache entry of it was read\n",
        "the plugins' objects are whole as far as they were compared\n",
    ] {
        assert!(unknown.contains(part), "{part}: {unknown}");
    }
    std::fs::rename(&aside, &entry).unwrap();
    pod.ip("link del eth0");
    // CHECK and tree see it, too.
    let check = node.cnimble(plugin_dir(), &["check", "doc", pod.path(), "--container-id", "one"]).run();
    assert_eq!(check.status, 1, "{}", check.describe());
    let tree = node.cnimble(plugin_dir(), &["tree"]).json().run().success().text();
    assert!(tree.contains("eth0"), "{tree}");
    let found = findings(&node.doctor(&["--grace", "0"]), 6);
    assert_eq!(kinds(&found), ["pod-state found one"], "{found:#?}");
    assert_eq!(found[0]["why"], "its namespace is there, but has no eth0");
    let found = findings(&node.doctor(&["--grace", "0", "--repair", "--pods"]), 7);
    assert_eq!(kinds(&found), ["pod-state failed one"], "{found:#?}");
    let told = text(&node, &[]);
    assert_eq!(told.status, 6, "{}", told.describe());
    for part in [
        "  remedy  delete the pod and make it anew\n",
        "1 found, and nothing repaired: --repair can't repair that\n",
    ] {
        assert!(told.text().contains(part), "{part}: {}", told.describe());
    }
    for part in ["none of ours", "whole", "all is well"] {
        assert!(!told.text().contains(part), "{part}: {}", told.describe());
    }
    // GC is for pods that are gone.
    let dir = node.host.data_dir();
    let gc = ["gc", "doc", "--gone", "--grace", "0", "--data-dir", dir.to_str().unwrap()];
    let gc = node.cnimble(plugin_dir(), &gc).run().success();
    assert!(gc.stderr.contains("left alone: cache-entry"), "{}", gc.describe());
    // Beside something that it can repair.
    let second = Pod::new();
    let links = veths(&node.add(plugin_dir(), "doc", &second, "two", 8002));
    node.host.ip(&format!("link set {} nomaster", links[0]));
    second.ip("link set lo up");
    let told = text(&node, &[]);
    let last = "3 found, and nothing repaired: --repair repairs 2, no option repairs 1\n";
    assert!(told.status == 6 && told.text().ends_with(last), "{}", told.describe());
    node.cnimble(plugin_dir(), &["del", "doc", pod.path(), "--container-id", "one"]).run().success();
    let repaired = text(&node, &["--repair"]).success();
    assert!(
        repaired.text().ends_with("2 repaired; the plugins' objects are whole\n"),
        "{}",
        repaired.describe()
    );
}

#[test]
fn a_del_that_began_long_ago_is_a_fault() {
    need!("ip", "nft");
    let node = Node::new();
    node.network("doc", &network(&node, "10.213.42.0/24"));
    let pod = Pod::new();
    node.add(plugin_dir(), "doc", &pod, "one", 8001);
    let call = node.host.call("portmap").command("DEL").attachment("one", pod.path(), "eth0");
    call.config(&json!({"cniVersion": "1.0.0", "name": "doc", "type": "portmap"})).run().success();
    assert_eq!(kinds(&findings(&node.doctor(&[]), 0)), ["begun-del left one"]);
    let note = fs::read_dir(begun::DIR).unwrap().next().unwrap().unwrap().path();
    let earlier = std::time::SystemTime::now() - Duration::from_secs(301);
    fs::File::open(note).unwrap().set_modified(earlier).unwrap();
    assert_eq!(kinds(&findings(&node.doctor(&[]), 6)), ["begun-del left one"]);
    node.cnimble(plugin_dir(), &["del", "doc", pod.path(), "--container-id", "one"]).run().success();
    assert_eq!(findings(&node.doctor(&[]), 0), [] as [Value; 0]);
}

/// A pod of ours that a Go plugin's DEL has left half-way: the link and the lease are gone, and our rules and the
/// record stay. Then a pod of the Go plugins with the same port.
struct HalfRemoved {
    node: Node,
    first: Pod,
    second: Pod,
    address: IpAddr,
}

impl HalfRemoved {
    fn new(go: &std::path::Path, subnet: &str, change: fn(&Node)) -> Self {
        let node = Node::new();
        node.network("doc", &network(&node, subnet));
        let (first, second) = (Pod::new(), Pod::new());
        // As on a node that has had pods of the Go plugins. Of two chains at one hook, the later one sees a packet first.
        for iptables in ["iptables -t nat", "ip6tables -t nat"] {
            let chains = ["PREROUTING", "OUTPUT"].map(|chain| format!("{iptables} -A {chain} -j EARLIER"));
            node.host.shell(&format!("{iptables} -N EARLIER; {}", chains.join("; ")));
        }
        let result = node.add(plugin_dir(), "doc", &first, "one", 8001);
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        first.ip("link del eth0");
        fs::remove_file(node.host.data_dir().join("doc").join(address)).unwrap();
        change(&node);
        node.add(go, "doc", &second, "two", 8001);
        HalfRemoved { address: address.parse().unwrap(), node, first, second }
    }

    fn outcomes(&self, args: &[&str], status: i32) -> Vec<String> {
        kinds(&findings(&self.node.doctor(&[&["--grace", "0"], args].concat()), status))
    }
}

/// Gives the chains the priorities that they had in earlier versions: those of iptables' table nat, and not one more.
fn chains_of_an_earlier_version(node: &Node) {
    let rules = node.host.nft("list table inet cnimble");
    let earlier = rules
        .replace("priority dstnat + 1", "priority dstnat")
        .replace("priority srcnat + 1", "priority srcnat");
    let earlier = earlier.replace("hook output priority -99", "hook output priority -100");
    assert_ne!(earlier, rules);
    node.host.run_with("nft -f -", format!("delete table inet cnimble\n{earlier}").as_bytes()).success();
}

/// A chain of this version runs after the Go plugins', so the other pod has its port, and nothing is wrong with it.
#[test]
fn a_port_of_a_half_removed_pod_takes_nothing_from_a_pod_of_the_go_plugins() {
    need_go!(go, "ip", "nft", "iptables", "iptables-nft-save");
    let half = HalfRemoved::new(go, "10.213.45.0/24", |_| ());
    let _server = Server::start(&half.second, 80, "second");
    assert!(tcp(&half.node.host, "10.213.45.1:8001").is_ok_and(|answer| answer.starts_with("second")));
    assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one"]);
}

#[test]
fn a_port_of_a_half_removed_pod_goes_to_the_pod_that_lives() {
    need_go!(go, "ip", "nft", "iptables", "iptables-nft-save");
    the_port_goes_to_the_second_pod(go, "10.213.43.0/24", "10.213.43.1:8001");
}

#[test]
fn a_port_of_a_half_removed_pod_goes_to_the_pod_that_lives_with_ipv6() {
    need_go!(go, "ip", "nft", "ip6tables", "ip6tables-nft-save");
    the_port_goes_to_the_second_pod(go, "fd00:213:43::/64", "[fd00:213:43::1]:8001");
}

fn the_port_goes_to_the_second_pod(go: &std::path::Path, subnet: &str, port: &str) {
    let half = HalfRemoved::new(go, subnet, chains_of_an_earlier_version);
    let _server = Server::start(&half.second, 80, "second");
    assert!(tcp_is_shut(&half.node.host, port), "the first pod's rule stands in front");
    let found = findings(&half.node.doctor(&["--grace", "0"]), 6);
    assert_eq!(kinds(&found), ["pod-state found one", "rules found one"], "{found:#?}");
    let why = found.iter().find(|of| of["kind"] == "rules").unwrap()["why"].as_str().unwrap();
    let expected = format!(
        "it takes the packets for port 8001/tcp from container two, and leads them to {}, which no interface that was read has, \
         and nothing answers there",
        half.address
    );
    assert_eq!(why, expected);
    assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one", "rules repaired one"]);
    assert!(tcp(&half.node.host, port).is_ok_and(|answer| answer.starts_with("second")));
    assert_eq!(half.outcomes(&[], 6), ["pod-state found one"]);
    let del = ["del", "doc", half.first.path(), "--container-id", "one"];
    half.node.cnimble(plugin_dir(), &del).run().success();
    assert_eq!(half.outcomes(&[], 0), [] as [&str; 0]);
    assert!(tcp(&half.node.host, port).is_ok_and(|answer| answer.starts_with("second")));
}

fn of_rules(half: &HalfRemoved, status: i32) -> serde_json::Value {
    let found = findings(&half.node.doctor(&["--grace", "0"]), status);
    found.into_iter().find(|of| of["kind"] == "rules").unwrap()
}

/// Without a link that leads to the address nothing is asked, so nothing can have failed to answer.
#[test]
fn a_port_whose_address_no_link_leads_to_is_not_said_to_be_silent() {
    need_go!(go, "ip", "nft", "iptables", "iptables-nft-save");
    let half = HalfRemoved::new(go, "10.213.55.0/24", chains_of_an_earlier_version);
    half.node.host.ip("link set br1 down");
    let why = of_rules(&half, 6)["why"].to_string();
    assert!(
        why.contains("which no interface that was read has, and no link with a carrier leads there"),
        "{why}"
    );
}

/// The kernel asks no neighbour whose entry was written by hand.
#[test]
fn a_port_whose_address_can_not_be_asked_is_left_alone() {
    need_go!(go, "ip", "nft", "ip6tables", "ip6tables-nft-save");
    let half = HalfRemoved::new(go, "fd00:213:55::/64", chains_of_an_earlier_version);
    half.node.host.ip(&format!("neigh add {} lladdr 02:00:00:00:00:09 dev br1 nud permanent", half.address));
    let doubt = of_rules(&half, 6)["doubt"].to_string();
    let told = "which no interface that was read has; whether something answers there can't be asked";
    assert!(doubt.contains(told), "{doubt}");
}

/// A virtual machine in a pod can have an address that no interface has.
#[test]
fn a_port_whose_address_answers_stays() {
    need_go!(go, "ip", "nft", "iptables", "iptables-nft-save");
    let half = HalfRemoved::new(go, "10.213.44.0/24", chains_of_an_earlier_version);
    let machine = Pod::new();
    half.node.host.ip(&format!("link add vm0 type veth peer name tap0 netns {}", machine.path()));
    half.node.host.ip("link set vm0 up master br1");
    machine.ip("link set tap0 up");
    let IpAddr::V4(address) = half.address else { unreachable!() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| machine.within(|| answer_arp("tap0", address, &stop)));
        let before = half.node.host.nft("list map inet cnimble portmap4");
        assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one"]);
        assert_eq!(half.node.host.nft("list map inet cnimble portmap4"), before);
        stop.store(true, Ordering::Relaxed);
    });
    drop(machine);
    assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one", "rules repaired one"]);
}

/// The same with IPv6. The machine answers neighbor solicitations as a proxy, for an address that no interface has.
#[test]
fn a_port_whose_ipv6_address_answers_stays() {
    need_go!(go, "ip", "nft", "ip6tables", "ip6tables-nft-save");
    let half = HalfRemoved::new(go, "fd00:213:44::/64", chains_of_an_earlier_version);
    let machine = Pod::new();
    half.node.host.ip(&format!("link add vm0 type veth peer name tap0 netns {}", machine.path()));
    half.node.host.ip("link set vm0 up master br1");
    machine.ip("link set tap0 up");
    for key in ["ipv6/conf/tap0/forwarding", "ipv6/conf/tap0/proxy_ndp"] {
        machine.set_sysctl(key, "1");
    }
    machine.set_sysctl("ipv6/neigh/tap0/proxy_delay", "0");
    machine.ip(&format!("neigh add proxy {} dev tap0", half.address));
    let before = half.node.host.nft("list map inet cnimble portmap6");
    assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one"]);
    assert_eq!(half.node.host.nft("list map inet cnimble portmap6"), before);
    drop(machine);
    // The machine's kernel answers until the namespace is gone, with both ends of its pair.
    half.node.gone(&["vm0".to_owned()]);
    assert_eq!(half.outcomes(&["--repair"], 7), ["pod-state failed one", "rules repaired one"]);
}

/// Answers ARP requests for an address that no interface has, as a virtual machine does.
fn answer_arp(link: &str, address: Ipv4Addr, stop: &AtomicBool) {
    let found = Netlink::open().unwrap().find_link(link).unwrap().unwrap();
    let (socket, mac) = (Socket::open(SocketPurpose::Arp, found.index).unwrap(), found.mac.unwrap());
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        match socket.receive(&mut buffer) {
            Ok(Some((from, packet))) if packet.get(24..28) == Some(&address.octets()) => {
                let mut reply = vec![0, 1, 8, 0, 6, 4, 0, 2];
                reply.extend(mac.0);
                reply.extend(address.octets());
                reply.extend(&packet[8..18]);
                socket.send(from, &reply).unwrap();
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
