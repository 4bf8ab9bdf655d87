//! Tests `cnimble serve`: CRI for pod sandboxes, with real plugins.

mod activated;
mod bad;
mod calls;
mod kill;
mod many;
mod network;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_cri::{Client, CriError, PodConfig, Sandbox, SandboxStatus, blocking, wire};
use cnimble_tests::{Node, Outcome, PATIENCE, command, script, wait_until};

/// A node with a network for pods, on which CRI is served.
struct Shop {
    node: Node,
    socket: PathBuf,
}

/// The server on a node.
struct Serve<'s> {
    shop: &'s Shop,
    pid: String,
}

/// Returns a bridge network with this subnet, and `more` plugins after it.
fn bridge(subnet: &str, more: &[Value]) -> Value {
    let mut plugins = vec![
        json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
               "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]}}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
    ];
    plugins.extend_from_slice(more);
    json!({"cniVersion": "1.1.0", "name": "pods", "plugins": plugins})
}

/// Returns a minimal pod.
fn pod(name: &str) -> PodConfig {
    PodConfig {
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        uid: format!("uid-{name}"),
        ..PodConfig::default()
    }
}

/// The shell code of a script that answers VERSION.
const VERSIONS: &str = r#"[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}'; exit 0; }"#;

impl Shop {
    fn new(network: &Value) -> Self {
        let node = Node::new();
        let shop = Shop { socket: node.dir().join("cri.sock"), node };
        for dir in ["net.d", "bin"] {
            fs::create_dir(shop.path(dir)).unwrap();
        }
        shop.network(network);
        shop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.node.dir().join(name)
    }

    fn network(&self, network: &Value) {
        fs::write(self.path("new"), network.to_string()).unwrap();
        fs::rename(self.path("new"), self.path("net.d/10-pods.conflist")).unwrap();
    }

    /// Writes a script as a plugin, which returns the previous result.
    fn plugin(&self, name: &str, lines: &str) {
        let pass =
            r#"python3 -c 'import json,sys; print(json.dumps(json.load(sys.stdin).get("prevResult")))'"#;
        let text = format!("#!/bin/sh\n{VERSIONS}\n{lines}\n[ \"$CNI_COMMAND\" != ADD ] || {pass}\n");
        script(&self.path(&format!("bin/{name}")), &text);
    }

    fn line(&self) -> String {
        let dir = self.node.dir().display();
        format!(
            "CNI_PATH=/opt/cni/bin:{dir}/bin {} serve --conf-dir {dir}/net.d --cache-dir /var/lib/cni \
             --state-dir {dir}/state --run-dir {dir}/run --cri {dir}/cri.sock ",
            command().display(),
        )
    }

    fn start(&self) -> Serve<'_> {
        let log = self.path("log");
        let pid = self.node.sh(&format!("{} >>{} 2>&1 & echo $!", self.line(), log.display()));
        let serve = Serve { shop: self, pid: pid.trim().to_owned() };
        let up = || self.ask(|client| async move { Ok(client.version().name.clone()) }).is_ok();
        assert!(wait_until(PATIENCE, up), "{}", self.log());
        serve
    }

    /// Runs a second server with another file in place of `file`. It must not start.
    fn second(&self, file: &str, other: &str) -> Outcome {
        let dir = self.node.dir().display();
        self.node.run(&self.line().replace(&format!("{dir}/{file} "), &format!("{dir}/{other} ")))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn ask<T, F>(&self, work: impl FnOnce(Client) -> F + Send) -> Result<T, CriError>
    where
        T: Send,
        F: Future<Output = Result<T, CriError>>,
    {
        blocking(&self.socket, work)
    }

    #[track_caller]
    fn ok<T, F>(&self, work: impl FnOnce(Client) -> F + Send) -> T
    where
        T: Send,
        F: Future<Output = Result<T, CriError>>,
    {
        self.ask(work).unwrap_or_else(|why| panic!("{why}\n{}", self.log()))
    }

    /// Runs a pod and returns its sandbox.
    #[track_caller]
    fn run(&self, config: PodConfig) -> SandboxStatus {
        self.ok(|client| async move {
            let id = client.run(config, "").await?;
            client.sandbox(&id).await
        })
    }

    #[track_caller]
    fn list(&self) -> Vec<Sandbox> {
        self.ok(|client| async move { client.sandboxes().await })
    }

    /// Returns the number of sandboxes that pass a filter.
    #[track_caller]
    fn filtered(&self, filter: wire::PodSandboxFilter) -> usize {
        let request = wire::ListPodSandboxRequest { filter: Some(filter) };
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let list: wire::ListPodSandboxResponse =
            self.ok(|client| async move { client.ask(path, request).await });
        list.items.len()
    }

    /// Returns the names of files in a directory on the node.
    fn files(&self, dir: &str) -> BTreeSet<String> {
        let listed = self.node.sh(&format!("ls {dir} 2>/dev/null || true"));
        listed.lines().map(str::to_owned).collect()
    }

    fn leases(&self) -> BTreeSet<String> {
        self.files("/var/lib/cni/networks/pods")
            .into_iter()
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            .collect()
    }

    fn namespaces(&self) -> BTreeSet<String> {
        self.files(&self.path("run/netns").display().to_string())
    }

    /// Returns the difference between the Ready sandboxes and the objects on the node, if there is one.
    fn differences(&self) -> Option<String> {
        let ready: Vec<Sandbox> = self.list().into_iter().filter(|of| of.ready).collect();
        let ids: BTreeSet<String> = ready.iter().map(|of| of.id.clone()).collect();
        let statuses = self.ok(|client| {
            let ids = ids.clone();
            async move {
                let mut found = Vec::new();
                for id in ids {
                    found.push(client.sandbox(&id).await?);
                }
                Ok(found)
            }
        });
        let ips: BTreeSet<String> = statuses.iter().flat_map(|of| &of.ips).map(ToString::to_string).collect();
        let ports = self.node.run("ip -o link show master br0").text().lines().count();
        let results = self.files("/var/lib/cni/results").into_iter();
        let results = results.filter(|name| name.starts_with("pods-")).count();
        let same = self.leases() == ips
            && self.namespaces() == ids
            && ips.len() == ids.len()
            && ports == ids.len()
            && results == ids.len();
        (!same).then(|| {
            format!(
                "{} ready, leases {:?}, addresses {ips:?}, {} namespaces, {ports} ports, {results} results",
                ids.len(),
                self.leases(),
                self.namespaces().len(),
            )
        })
    }

    #[track_caller]
    fn is_whole(&self) {
        let mut differences = None;
        let whole = wait_until(PATIENCE, || {
            differences = self.differences();
            differences.is_none()
        });
        assert!(whole, "{}\n{}", differences.unwrap_or_default(), self.log());
    }

    /// Stops and removes all sandboxes. Asserts that nothing remains.
    #[track_caller]
    fn clear(&self) {
        for sandbox in self.list() {
            self.ok(|client| async move {
                client.stop(&sandbox.id).await?;
                client.remove(&sandbox.id).await
            });
        }
        self.is_clean();
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.list(), []);
        assert!(self.differences().is_none(), "{:?}\n{}", self.differences(), self.log());
        // The last record is removed with its directory, unless a kill intervenes.
        let records = format!("find {} -name '*.json'", self.path("state/sandboxes").display());
        assert_eq!(self.node.sh(&records), "");
        for dir in ["run/pods", "run/netns"] {
            assert_eq!(self.files(&self.path(dir).display().to_string()), BTreeSet::new(), "{dir}");
        }
        let rules = self.node.sh("nft list ruleset");
        assert!(!rules.contains("elements"), "{rules}");
    }
}

impl Serve<'_> {
    fn signal(&self, signal: &str) {
        self.shop.node.sh(&format!("kill -{signal} {}", self.pid));
    }

    fn is_running(&self) -> bool {
        // A zombie remains until the node's first process reaps it.
        let stat = self.shop.node.run(&format!("cut -d' ' -f3 /proc/{}/stat", self.pid));
        stat.status == 0 && !matches!(stat.text().trim(), "Z" | "")
    }

    #[track_caller]
    fn wait_until_gone(&self) {
        assert!(wait_until(PATIENCE, || !self.is_running()), "{}", self.shop.log());
    }

    #[track_caller]
    fn stop(self) {
        self.signal("TERM");
        self.wait_until_gone();
    }
}
