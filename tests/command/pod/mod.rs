//! Tests `cnimble pod` with real plugins: it creates and removes pods' networks like a kubelet.

mod bad;
mod conflists;
mod crash;
mod life;
mod truth;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::{Host, LIMIT, Outcome, PATIENCE, command, plugin_dir, run_limited, script, wait_until};

/// A node with its own directories. Pinned namespaces of a failing test are removed with it.
struct Node {
    host: Host,
    plugins: PathBuf,
}

impl Node {
    fn new() -> Self {
        let node = Node { host: Host::hasty(), plugins: plugin_dir().to_owned() };
        for dir in ["net.d", "pods"] {
            fs::create_dir(node.path(dir)).unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.dir().join(name)
    }

    /// Writes a file into the configuration directory atomically.
    fn conflist(&self, file: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("net.d").join(file)).unwrap();
    }

    /// Creates a bridge network for pods with this subnet.
    fn network(&self, subnet: &str) {
        self.conflist("10-pods.conflist", &self.bridge("pods", subnet).to_string());
    }

    fn bridge(&self, name: &str, subnet: &str) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": name,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    "ipMasq": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": self.host.data_dir(),
                        "ranges": [[{"subnet": subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        })
    }

    /// Writes a manifest and returns its path.
    fn pod(&self, name: &str, more: &str) -> String {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n{more}"
        );
        let path = self.path("pods").join(format!("{name}.yaml"));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns `cnimble pod ARGS…` for this node.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.host.command(command());
        command.arg("pod").args(args);
        let split = args.iter().position(|arg| *arg == "--");
        if let Some(split) = split {
            command = self.host.command(cnimble_tests::command());
            command.arg("pod").args(&args[..split]);
            self.options(&mut command);
            command.args(&args[split..]);
        } else {
            self.options(&mut command);
        }
        command.env("CNI_PATH", &self.plugins).env("NETCONFPATH", self.path("net.d"));
        command
    }

    fn options(&self, command: &mut Command) {
        command.arg("--state-dir").arg(self.path("state")).arg("--run-dir").arg(self.path("run"));
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let output = run_limited(&mut self.command(args), b"", LIMIT);
        Outcome {
            what: format!("cnimble pod {}", args.join(" ")),
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs the command, which must succeed. Returns its output.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        self.run(args).success().text()
    }

    /// Returns the pods in the output of `ls`.
    #[track_caller]
    fn pods(&self) -> Vec<Value> {
        let listing: Value = serde_json::from_str(&self.ok(&["ls", "--json"])).unwrap();
        listing["pods"].as_array().unwrap().clone()
    }

    /// Returns the first address of a pod.
    #[track_caller]
    fn ip(&self, pod: &str) -> String {
        let pods = self.pods();
        let found = pods.iter().find(|of| of["name"] == pod).unwrap_or_else(|| panic!("no {pod}: {pods:?}"));
        found["ips"][0].as_str().unwrap_or_else(|| panic!("no address: {found}")).to_owned()
    }

    /// Returns whether `to` answers a ping from the pod before the time limit.
    fn pings(&self, from: &str, to: &str) -> bool {
        wait_until(PATIENCE, || self.run(&["exec", from, "--", "ping", "-nc1", "-W2", to]).status == 0)
    }

    /// Returns the addresses that host-local has given out in a network.
    fn leases(&self, network: &str) -> Vec<String> {
        leases(&self.host.data_dir().join(network))
    }

    /// Asserts that nothing of a pod remains.
    #[track_caller]
    fn is_clean(&self) {
        let names = |dir: &str| -> Vec<String> {
            let Ok(entries) = fs::read_dir(self.path(dir)) else { return Vec::new() };
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        for dir in ["state/sandboxes", "state/cni/results", "run/netns", "run/pods"] {
            assert_eq!(names(dir), Vec::<String>::new(), "{dir}");
        }
        assert_eq!(self.leases("pods"), Vec::<String>::new());
        let veths: Vec<String> =
            self.host.links().into_iter().filter(|name| name != "lo" && name != "cni0").collect();
        assert_eq!(veths, Vec::<String>::new());
        // Elements of sets and maps belong to pods. Chains and rules may stay.
        let rules = self.host.nft("list ruleset");
        assert!(!rules.contains("elements"), "{rules}");
    }

    /// Asserts that there are exactly as many addresses, ports and pins as pods.
    #[track_caller]
    fn has_exactly(&self, count: usize) {
        let pods = self.pods();
        assert_eq!(pods.len(), count, "{pods:?}");
        for pod in &pods {
            assert_eq!(pod["state"], "Ready", "{pod}");
        }
        assert_eq!(self.leases("pods").len(), count);
        assert_eq!(fs::read_dir(self.path("run/netns")).unwrap().count(), count);
        let links = self.host.ip_json("link show master cni0");
        assert_eq!(links.as_array().unwrap().len(), count, "{links}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Ok(entries) = fs::read_dir(self.path("run/netns")) else { return };
        for entry in entries.flatten() {
            let _ = nix::mount::umount2(&entry.path(), nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Returns the addresses in a lease directory.
fn leases(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

/// Creates a directory with the real plugins, and adds scripts or replaces plugins with scripts.
fn with_scripts(node: &mut Node, scripts: &[(&str, &str)]) {
    let bin = node.path("bin");
    fs::create_dir_all(&bin).unwrap();
    for entry in fs::read_dir(plugin_dir()).unwrap().flatten() {
        std::os::unix::fs::symlink(entry.path().canonicalize().unwrap(), bin.join(entry.file_name()))
            .unwrap();
    }
    for (name, lines) in scripts {
        script(&bin.join(name), &format!("#!/bin/sh\n{VERSIONS}\n{lines}\n"));
    }
    node.plugins = bin;
}

/// The shell code of a script that answers VERSION.
const VERSIONS: &str = r#"[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'; exit 0; }"#;
