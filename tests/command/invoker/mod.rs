//! Tests the command `cnimble` with real plugins in namespaces.

mod beside;
mod doctor;
mod events;
mod hand_over;
mod init;
mod interfaces;
mod libcni;
mod lifecycle;
mod list;
mod masters;
mod migrate;
mod names;
mod network;
mod plugin_files;
mod recorded;
mod stats;
mod strict;
mod surface;
mod trace;
mod tree;
mod typing;
mod verbs;
mod walk;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::{Host, LIMIT, Outcome, PATIENCE, command, run_limited, script, wait_until};

/// A node with a directory of networks and a cache.
struct Node {
    host: Host,
}

impl Node {
    fn new() -> Self {
        let node = Node { host: Host::new() };
        fs::create_dir(node.conf()).unwrap();
        node
    }

    fn conf(&self) -> PathBuf {
        self.host.dir().join("net.d")
    }

    fn cache(&self) -> PathBuf {
        self.host.dir().join("cache")
    }

    fn network(&self, name: &str, config: &Value) {
        fs::write(self.conf().join(format!("{name}.conflist")), config.to_string()).unwrap();
    }

    /// Creates a bridge network called `name`.
    fn bridge(&self, name: &str, version: &str) {
        self.bridge_with(name, version, "10.1.2.0/24");
    }

    fn bridge_with(&self, name: &str, version: &str, subnet: &str) {
        let config = json!({
            "cniVersion": version,
            "name": name,
            "plugins": [{
                "type": "bridge",
                "bridge": "br0",
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.host.data_dir(),
                    "ranges": [[{"subnet": subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        self.network(name, &config);
    }

    /// Returns `cnimble ARGS…` on this node, with the plugins of `plugins`.
    fn cnimble(&self, plugins: &Path, args: &[&str]) -> Run {
        let mut command = self.host.command(command());
        command.args(args).arg("--cache-dir").arg(self.cache());
        command.env("CNI_PATH", plugins).env("NETCONFPATH", self.conf());
        Run { command, stdin: Vec::new() }
    }

    /// Returns the addresses that host-local has given out.
    fn leases(&self) -> Vec<String> {
        names(&self.host.data_dir().join("net")).into_iter().filter(|name| name.starts_with("10.")).collect()
    }

    /// Returns the names of the cache's entries.
    fn entries(&self) -> Vec<String> {
        names(&self.cache().join("results"))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One run of the command.
struct Run {
    command: Command,
    stdin: Vec<u8>,
}

impl Run {
    fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs the command as the last arguments of `wrapper`, in the same environment.
    fn under(mut self, mut wrapper: Command) -> Self {
        wrapper.arg(self.command.get_program()).args(self.command.get_args());
        wrapper.envs(self.command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        self.command = wrapper;
        self
    }

    fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    fn json(mut self) -> Self {
        self.command.arg("--json");
        self
    }

    fn stdin(mut self, text: String) -> Self {
        self.stdin = text.into_bytes();
        self
    }

    fn run(mut self) -> Outcome {
        let output = run_limited(&mut self.command, &self.stdin, LIMIT);
        Outcome {
            what: format!("{:?}", self.command),
            status: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a clean-up of a dead pod until it `is_done`, and returns its last outcome.
///
/// Mount namespaces that other tests make meanwhile have a copy of the pod's mount. As long as one is there, the pod's
/// namespace is, too.
fn until_mounts_are_gone(run: impl Fn() -> Outcome, is_done: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut outcome = run();
    wait_until(PATIENCE, || {
        if !is_done(&outcome) {
            outcome = run();
        }
        is_done(&outcome)
    });
    outcome
}

/// Creates a directory with scripts as plugins.
fn scripts(dir: &Path, plugins: &[(&str, &str)]) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, lines) in plugins {
        script(&bin.join(name), &format!("#!/bin/sh\n{lines}\n"));
    }
    bin
}

const RESULT: &str = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}"#;
