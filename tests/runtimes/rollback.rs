//! Changes a containerd node from the Go plugins to cnimble and back, while pods with ports live and serve requests.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Cri, Node, Ns, command, copy, go_to_meet, plugin_dir, skip};

use cnimble_cri::PortMapping;

use crate::cri::port;
use crate::outside;

/// The number of pods that live through each change.
const PODS: u16 = 10;
const OUT: u16 = 7000;

fn conflist() -> String {
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.9.0/24"}], [{"subnet": "fd00:88:9::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    let bridge = json!({
        "type": "bridge", "bridge": "br-pods", "isGateway": true, "ipMasq": true, "macspoofchk": true, "ipam": ipam,
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let firewall = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    let plugins = [bridge, portmap, firewall];
    json!({"cniVersion": "1.0.0", "name": "rollback", "plugins": plugins}).to_string()
}

/// A pod that answers on a port of the node.
struct Pod {
    id: String,
    ns: Ns,
    name: &'static str,
    port: u16,
    _server: Server,
}

impl Pod {
    fn run(cri: &Cri<'_>, name: String, host_port: u16) -> Self {
        let ports = [false, true].map(|udp| PortMapping { container_port: 81, ..port(udp, host_port, "") });
        let (id, ns) = cri.run(&name, &ports, &[]);
        let name: &'static str = name.leak();
        Pod { _server: Server::start(&ns, 81, name), id, ns, name, port: host_port }
    }

    /// Returns a fault of the paths from outside, from the node, over IPv6, or to the outside.
    fn problem(&self, node: &Ns, outside: &Ns) -> Option<String> {
        let ways = [
            (outside, format!("192.0.2.1:{}", self.port), format!("{} 192.0.2.2", self.name)),
            (outside, format!("[2001:db8:2::1]:{}", self.port), format!("{} 2001:db8:2::2", self.name)),
            (node, format!("127.0.0.1:{}", self.port), self.name.to_owned()),
            (&self.ns, format!("192.0.2.2:{OUT}"), "outside 192.0.2.1".to_owned()),
            (&self.ns, format!("[2001:db8:2::2]:{OUT}"), "outside 2001:db8:2::1".to_owned()),
        ];
        ways.into_iter().find_map(|(from, to, expected)| match tcp(from, &to) {
            Ok(answer) if answer.starts_with(&expected) => None,
            answer => Some(format!("{} at {to}: {answer:?} instead of {expected}", self.name)),
        })
    }
}

/// Runs `work` while threads send requests to all pods. Returns the faults.
fn meanwhile(pods: &[Pod], node: &Ns, outside: &Ns, work: impl FnOnce()) -> Vec<String> {
    let (done, rounds, problems) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let talk = || {
            while !done.load(Ordering::Relaxed) {
                let found: Vec<String> = pods.iter().filter_map(|pod| pod.problem(node, outside)).collect();
                problems.lock().unwrap().extend(found);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = [scope.spawn(talk), scope.spawn(talk)];
        // Both threads have begun, and continue for a round afterwards.
        let wait = |rounds_more: usize| {
            let until = rounds.load(Ordering::Relaxed) + rounds_more;
            while rounds.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
        };
        wait(1);
        work();
        wait(3);
        done.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    problems.into_inner().unwrap()
}

/// Returns the lines of pods in rules and leases, from any plugins.
fn of_pods(node: &Node) -> Vec<String> {
    let rules = node.sh(
        "for table in nat filter; do iptables-save -t $table; ip6tables-save -t $table; done; nft list ruleset bridge; \
         nft list tables inet",
    );
    let marks = ["CNI-DN-", "id: ", "id: \\\"", "10.88.9.", "fd00:88:9::", "cni-br-iface", "cnimble"];
    let mut left: Vec<String> = rules
        .lines()
        .filter(|line| marks.iter().any(|mark| line.contains(mark)))
        .map(str::to_owned)
        .collect();
    let files =
        node.sh("ls -A /var/lib/cni/networks/rollback /var/lib/cni/results /run/cnimble 2>/dev/null || true");
    left.extend(
        files
            .lines()
            .filter(|line| line.contains("10.88.9.") || line.contains("fd00:88:9:"))
            .map(str::to_owned),
    );
    left.extend(
        files
            .lines()
            .filter(|line| line.contains("cnimble") || line.contains("rollback-"))
            .map(str::to_owned),
    );
    left.retain(|line| !line.ends_with(':'));
    left
}

#[test]
fn a_node_changes_to_ours_and_back_while_pods_with_ports_live() {
    need_runtime!("containerd", "ctr", "runc", "curl", "sha256sum", "iptables-save", "bash");
    let go = match go_to_meet() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let node = Node::new();
    let outside = outside(&node);
    let _out = Server::start(&outside, OUT, "outside");
    // No packet may leave without masquerading. A client would only retry and hide the fault.
    outside.shell(
        "nft add table inet watch; nft add chain inet watch in '{ type filter hook prerouting priority -300; }'; \
         nft add rule inet watch in ip saddr 10.88.9.0/24 counter drop; \
         nft add rule inet watch in ip6 saddr fd00:88:9::/64 tcp flags syn counter drop",
    );
    let dir = node.dir().display().to_string();
    let bin = format!("{dir}/bin");
    node.sh(&format!("mkdir {bin} {dir}/release && cp -L {}/* {bin}/", go.display()));
    copy(&plugin_dir().join("bridge"), Path::new(&format!("{dir}/release/cnimble-plugins")));
    copy(command(), Path::new(&format!("{dir}/release/cnimble")));
    let script =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install")).canonicalize().unwrap();
    let install = |options: &str| {
        let line =
            format!("bash {} {options} --prefix {dir}/prefix --from {dir}/release {bin}", script.display());
        node.sh(&line)
    };
    let before = node.sh(&format!("cd {bin} && sha256sum *"));
    let cri = Cri::start(&node, "rollback", &conflist(), &bin);
    let here: &Ns = &node;

    let theirs: Vec<Pod> = (0..PODS).map(|n| Pod::run(&cri, format!("theirs-{n}"), 8100 + n)).collect();
    let problems = meanwhile(&theirs, here, &outside, || drop(install("")));
    assert!(problems.is_empty(), "to ours: {problems:#?}");
    let ours: Vec<Pod> = (0..PODS).map(|n| Pod::run(&cri, format!("ours-{n}"), 8200 + n)).collect();
    assert!(node.nft("list ruleset").contains("table inet cnimble"));
    let problems = meanwhile(&ours, here, &outside, || {
        for pod in &theirs {
            cri.stop_and_remove(&pod.id);
        }
    });
    assert!(problems.is_empty(), "while theirs go: {problems:#?}");
    for pod in &theirs {
        let left: Vec<String> = of_pods(&node).into_iter().filter(|line| line.contains(&pod.id)).collect();
        assert!(left.is_empty(), "of theirs: {left:#?}");
    }

    let problems = meanwhile(&ours, here, &outside, || drop(install("--uninstall")));
    assert!(problems.is_empty(), "back: {problems:#?}");
    assert_eq!(node.sh(&format!("cd {bin} && sha256sum *")), before);
    assert_eq!(
        node.sh(&format!(
            "ls -A {bin} | grep cnimble || true; ls {dir}/prefix/bin; ls -A /run/cnimble 2>/dev/null || true"
        )),
        ""
    );
    assert!(!node.nft("list ruleset").contains("cnimble"));
    // The next pod can use a port of cnimble's at once, even while the others live.
    let (first, rest) = ours.split_first().unwrap();
    cri.stop_and_remove(&first.id);
    let next = Pod::run(&cri, "next".to_owned(), first.port);
    assert_eq!(next.problem(here, &outside), None);
    let next = [next];
    let problems = meanwhile(&next, here, &outside, || {
        for pod in rest {
            cri.stop_and_remove(&pod.id);
        }
    });
    assert!(problems.is_empty(), "while ours go: {problems:#?}");
    for pod in &next {
        cri.stop_and_remove(&pod.id);
    }
    assert_eq!(of_pods(&node), [] as [&str; 0]);
    assert_eq!(node.links(), ["br-pods", "lo", "uplink"]);
    let unmasqueraded = outside.nft("list table inet watch");
    assert_eq!(unmasqueraded.matches("counter packets 0 bytes 0").count(), 2, "{unmasqueraded}");
}
