//! Tests `cnimble run`: pods from manifests on a node, with real plugins.

mod company;
mod ending;
mod follow;
mod hostile;
mod kill;
mod kubelet;
mod many;
mod service;
mod sources;
mod trouble;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Node, PATIENCE, command, wait_until};

/// A node with a network for pods.
struct Cluster {
    node: Node,
    /// The directory in which `cnimble run` pins namespaces, and its socket.
    run_dir: PathBuf,
    socket: PathBuf,
}

/// `cnimble run` on a node.
struct Run<'c> {
    cluster: &'c Cluster,
    pid: String,
}

/// Returns a bridge network for pods with this subnet.
fn bridge(subnet: &str) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "pods",
        "plugins": [
            {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Returns a minimal manifest.
fn manifest(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/main"}]},
    })
}

impl Cluster {
    fn new(network: &Value) -> Self {
        let node = Node::new();
        let run_dir = node.dir().join("run");
        let cluster = Cluster { socket: run_dir.join("cnimble.sock"), run_dir, node };
        fs::create_dir(cluster.path("manifests")).unwrap();
        fs::create_dir(cluster.path("net.d")).unwrap();
        cluster.network(network);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.node.dir().join(name)
    }

    fn network(&self, network: &Value) {
        self.place("net.d/10-pods.conflist", &network.to_string());
    }

    /// Writes a file atomically.
    fn place(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    fn put(&self, name: &str, manifest: &Value) {
        self.place(&format!("manifests/{name}.json"), &manifest.to_string());
    }

    fn put_all(&self, names: impl Iterator<Item = String>) {
        names.for_each(|name| self.put(&name, &manifest(&name)));
    }

    /// Returns the command line with the test's directories.
    fn line(&self, args: &str) -> String {
        let dir = self.node.dir().display();
        format!(
            "CNI_PATH=/opt/cni/bin:{dir}/bin {} run --conf-dir {dir}/net.d --cache-dir /var/lib/cni \
             --state-dir {dir}/state --run-dir {} {args}",
            command().display(),
            self.run_dir.display()
        )
    }

    fn start(&self, args: &str) -> Run<'_> {
        self.start_with("", &format!("--manifests {} {args}", self.path("manifests").display()))
    }

    fn start_with(&self, env: &str, args: &str) -> Run<'_> {
        let log = self.path("log");
        let script = format!("{env} {} >>{} 2>&1 & echo $!", self.line(args), log.display());
        Run { cluster: self, pid: self.node.sh(&script) }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Returns the files in a directory on the node. A missing directory has none.
    fn files(&self, dir: &str) -> Vec<String> {
        let listed = self.node.sh(&format!("ls {dir} 2>/dev/null || true"));
        listed.lines().map(str::to_owned).collect()
    }

    /// Returns the leased addresses.
    fn leases(&self) -> Vec<String> {
        self.files("/var/lib/cni/networks/pods").into_iter().filter(|name| name.starts_with("10.")).collect()
    }

    /// Returns the names of the pods' namespaces, which are the sandbox IDs.
    fn namespaces(&self) -> Vec<String> {
        self.files(&self.run_dir.join("netns").display().to_string())
    }

    /// Returns the number of ports of the bridge.
    fn ports(&self) -> usize {
        let links = self.node.run("ip -o link show master br0");
        links.text().lines().count()
    }

    /// Returns the number of addresses in the set for masquerading.
    fn masqueraded(&self) -> usize {
        let rules = self.node.sh("nft list table inet cnimble 2>/dev/null || true");
        let of_masq = rules.split("set masq-").nth(1).unwrap_or_default();
        of_masq.split('}').next().unwrap_or_default().matches("id: ").count()
    }

    /// Asserts that each pod has its parts exactly once, and that there are no others.
    #[track_caller]
    fn assert_whole(&self, pods: &BTreeMap<String, Pod>) {
        let count = pods.len();
        let mut ips: Vec<String> = pods.values().map(|pod| pod.ip.clone()).collect();
        ips.sort();
        let mut leases = self.leases();
        leases.sort();
        assert_eq!(leases, ips, "leases");
        let mut sandboxes: Vec<String> = pods.values().map(|pod| pod.sandbox.clone()).collect();
        sandboxes.sort();
        let mut namespaces = self.namespaces();
        namespaces.sort();
        assert_eq!(namespaces, sandboxes, "namespaces");
        assert_eq!(self.ports(), count, "ports");
        assert_eq!(self.masqueraded(), count, "masqueraded addresses");
        let cached = self.files("/var/lib/cni/results");
        assert_eq!(cached.iter().filter(|name| name.starts_with("pods-")).count(), count, "{cached:?}");
    }

    /// Pings the gateway and another pod from each pod. Returns the pings without an answer.
    fn unanswered(&self, pods: &BTreeMap<String, Pod>) -> String {
        let all: Vec<&Pod> = pods.values().collect();
        let netns = self.run_dir.join("netns");
        let mut script = String::new();
        for (index, pod) in all.iter().enumerate() {
            let other = all[(index + 7) % all.len()];
            for to in [gateway(&pod.ip), other.ip.clone()] {
                let from = netns.join(&pod.sandbox);
                // Retries until an answer arrives. The first ping may be too early for the kernel.
                script.push_str(&format!(
                    "(n=0; until nsenter --net={} ping -n -q -c 1 -W 5 {to} >/dev/null; do n=$((n + 1)); \
                     [ $n -lt 20 ] || {{ echo {} to {to}; break; }}; done) &\n",
                    from.display(),
                    pod.ip
                ));
            }
            if index % 10 == 9 {
                script.push_str("wait\n");
            }
        }
        script.push_str("wait\n");
        self.node.sh(&script)
    }
}

/// Returns the first address of the pod's /24.
fn gateway(ip: &str) -> String {
    format!("{}.1", ip.rsplit_once('.').unwrap().0)
}

/// The address and sandbox of a Ready pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    ip: String,
    sandbox: String,
}

/// Returns the Ready pods.
fn ready(pods: &BTreeMap<String, Value>) -> BTreeMap<String, Pod> {
    let ready = pods.iter().filter(|(_, pod)| pod["phase"] == "Ready");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ready
        .map(|(name, pod)| (name.clone(), Pod { ip: text(&pod["ips"][0]), sandbox: text(&pod["sandbox"]) }))
        .collect()
}

impl Run<'_> {
    /// Returns the status line and the body of a page.
    fn page(&self, path: &str) -> Option<(String, String)> {
        get(&self.cluster.socket, path)
    }

    fn status(&self) -> Value {
        let page = self.page("/pods").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(&page).unwrap_or_default()
    }

    /// Returns all pods by name.
    fn pods(&self) -> BTreeMap<String, Value> {
        let status = self.status();
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        pods.into_iter().map(|pod| (pod["name"].as_str().unwrap().to_owned(), pod)).collect()
    }

    /// Returns the Ready pods.
    fn ready(&self) -> BTreeMap<String, Pod> {
        ready(&self.pods())
    }

    /// Waits until exactly `count` pods exist and all are Ready. It misses a change that keeps the number, so use
    /// `wait_for_names` for that.
    #[track_caller]
    fn wait_for(&self, count: usize) -> BTreeMap<String, Pod> {
        self.wait_for_all(|ready| ready.len() == count)
    }

    /// Waits until exactly these pods, sorted by name, exist and are Ready.
    #[track_caller]
    fn wait_for_names(&self, names: &[&str]) -> BTreeMap<String, Pod> {
        self.wait_for_all(|ready| ready.keys().eq(names))
    }

    /// Waits until all pods are Ready and `wanted` accepts them. Checks and returns the same reading.
    #[track_caller]
    fn wait_for_all(&self, wanted: impl Fn(&BTreeMap<String, Pod>) -> bool) -> BTreeMap<String, Pod> {
        let mut found = BTreeMap::new();
        let all = || {
            let pods = self.pods();
            found = ready(&pods);
            found.len() == pods.len() && wanted(&found)
        };
        assert!(wait_until(PATIENCE, all), "{:#}\n{}", self.status(), self.cluster.log());
        found
    }

    /// Waits until the pod has this reason.
    #[track_caller]
    fn wait_for_reason(&self, pod: &str, reason: &str) -> String {
        let has = || self.pods().get(pod).is_some_and(|pod| pod["reason"] == reason);
        assert!(wait_until(PATIENCE, has), "{reason}: {:#}\n{}", self.status(), self.cluster.log());
        self.pods()
            .get(pod)
            .map(|pod| pod["message"].as_str().unwrap_or_default().to_owned())
            .unwrap_or_default()
    }

    /// Returns the number of consecutive failures of a pod.
    fn failures(&self, pod: &str) -> u64 {
        self.pods().get(pod).and_then(|pod| pod["failures"].as_u64()).unwrap_or(0)
    }

    fn signal(&self, signal: &str) {
        self.cluster.node.sh(&format!("kill -{signal} {}", self.pid));
    }

    fn is_running(&self) -> bool {
        // A zombie remains until the node's first process reaps it.
        let stat = self.cluster.node.run(&format!("cut -d' ' -f3 /proc/{}/stat", self.pid));
        stat.status == 0 && stat.text().trim() != "Z" && !stat.text().trim().is_empty()
    }

    #[track_caller]
    fn wait_until_gone(&self) {
        assert!(wait_until(PATIENCE, || !self.is_running()), "{}", self.cluster.log());
    }

    #[track_caller]
    fn stop(&self) {
        self.signal("TERM");
        self.wait_until_gone();
    }
}

/// Sends a GET over a Unix socket. Returns status line and body.
fn get(socket: &std::path::Path, path: &str) -> Option<(String, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}
