//! Runs `cnimble doctor --repair` behind each plugin of a DEL that podman or containerd makes. No rule of the pod may
//! come back.
//!
//! Tries two pods of each. `scripts/stress doctor` tries more.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_cri::{PortMapping, Protocol};
use cnimble_tests::{Cri, Node, Podman, command, plugin_dir};

/// The plugins of the network. A script stands for each.
const CHAIN: [&str; 3] = ["bridge", "portmap", "firewall"];

/// How many pods each runtime removes.
fn rounds() -> usize {
    std::env::var("CNIMBLE_LIVES").map_or(2, |count| count.parse().expect("CNIMBLE_LIVES: a number"))
}

/// A node with a doctor behind each plugin of a DEL.
struct Ward {
    node: Node,
    log: PathBuf,
    _plugins: tempfile::TempDir,
}

impl Ward {
    fn new() -> Self {
        let plugins = tempfile::Builder::new().prefix("cnimble-test-").tempdir().unwrap();
        let (own, log) = (plugin_dir().canonicalize().unwrap(), plugins.path().join("log"));
        for plugin in std::fs::read_dir(&own).unwrap().flatten() {
            let name = plugin.file_name().into_string().unwrap();
            let path = plugins.path().join(&name);
            if !CHAIN.contains(&name.as_str()) {
                symlink(plugin.path(), path).unwrap();
                continue;
            }
            let doctor = format!("{} doctor --repair --grace 0 --json", command().display());
            let script = format!(
                "#!/bin/sh\n{} || exit\nif [ $CNI_COMMAND = DEL ]; then {doctor} >>{log} 2>&1; fi\nexit 0\n",
                plugin.path().display(),
                log = log.display(),
            );
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let node = Node::under(&[], plugins.path());
        node.sh(
            "for dir in /usr/lib/cni /usr/libexec/cni; do [ ! -d $dir ] || mount -t tmpfs none $dir; done",
        );
        Ward { node, log, _plugins: plugins }
    }

    fn conflist(&self) -> String {
        let mut network = crate::network(&self.node, "1.0.0");
        let more =
            [json!({"type": "portmap", "capabilities": {"portMappings": true}}), json!({"type": "firewall"})];
        network["plugins"].as_array_mut().unwrap().extend(more);
        network.to_string()
    }

    fn rules(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.node.nft("-s list ruleset").lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Makes and removes pods. Afterwards the rules are those of the pods that stay.
    fn watch(&self, mut life: impl FnMut(usize)) {
        let before = self.rules();
        for round in 0..rounds() {
            life(round);
            assert_eq!(self.rules(), before, "round {round}: {}", self.said());
            self.assert_looked(round);
            assert_eq!(self.node.sh("ls /run/cnimble/begun-dels 2>/dev/null || true"), "", "round {round}");
        }
        cnimble_tests::announce("NOTE", &format!("{} pods, a doctor behind each of their plugins", rounds()));
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Asserts that the doctor came behind each plugin of a DEL, and changed nothing.
    fn assert_looked(&self, round: usize) {
        let said = self.said();
        let documents: Vec<Value> =
            serde_json::Deserializer::from_str(&said).into_iter().collect::<Result<_, _>>().expect(&said);
        let findings = |document: &Value| document["findings"].as_array().cloned().unwrap_or_default();
        let mut outcomes: Vec<Vec<String>> = documents
            .iter()
            .map(|document| {
                let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
                findings(document).iter().map(|of| text(&of["kind"]) + " " + &text(&of["outcome"])).collect()
            })
            .collect();
        // containerd calls DEL again when it removes the sandbox.
        outcomes.retain(|of| !of.is_empty());
        // Behind the last plugin the pod has no interface, and its record is still there.
        let expected = ["begun-del left", "begun-del left", "pod-state failed"];
        assert_eq!(outcomes, expected.map(|of| vec![of.to_owned()]), "round {round}: {said}");
        std::fs::remove_file(&self.log).unwrap();
    }
}

#[test]
fn doctor_between_any_two_plugins_of_podmans_del_leaves_no_rule() {
    need_runtime!("podman", "crun");
    let ward = Ward::new();
    ward.node.file("net.d/10-pods.conflist", &ward.conflist());
    let podman = Podman::new(&ward.node, &ward.node.dir().join("net.d").display().to_string(), "pods");
    podman.run("other", "--publish 8080:80");
    ward.watch(|_| {
        podman.run("one", "--publish 8081:80 --publish 8081:80/udp");
        podman.call("rm --force --time 0 one");
    });
    podman.call("rm --force --time 0 other");
}

#[test]
fn doctor_between_any_two_plugins_of_containerds_del_leaves_no_rule() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let ward = Ward::new();
    let cri = Cri::start(&ward.node, "pods", &ward.conflist(), "/opt/cni/bin");
    let port =
        |host_port| PortMapping { protocol: Protocol::Tcp, container_port: 80, host_port, host_ip: None };
    let other = cri.pod("shop", "other", &[port(8080)], &[]);
    ward.watch(|round| {
        let pod = cri.pod("shop", &format!("web-{round}"), &[port(8081)], &[]);
        cri.stop_and_remove(&pod.sandbox.id);
    });
    cri.stop_and_remove(&other.sandbox.id);
}
