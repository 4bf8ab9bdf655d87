//! Nodes of a cluster.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use cnimble_tests::{Host, plugin_dir};

use super::etcd::{self, Etcd};

/// A node of a cluster, with a name and its own directory.
#[derive(Clone)]
pub(super) struct Node<'h> {
    pub(super) host: &'h Host,
    pub(super) name: String,
    pub(super) config: Value,
    /// The file with the boot ID that its processes read, instead of the kernel's.
    pub(super) boot: Option<PathBuf>,
}

impl<'h> Node<'h> {
    pub(super) fn new(host: &'h Host, members: usize, name: &str, subnet: &str) -> Self {
        let (key, store) = etcd::config(host, members);
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "ptp",
            "ipam": {
                "type": "cluster-local", "ranges": [[{"subnet": subnet}]], "nodeName": name,
                "dataDir": host.dir().join(name), key: store
            }
        });
        Node { host, name: name.to_owned(), config, boot: None }
    }

    /// Returns the same node in another boot.
    pub(super) fn in_boot(&self, number: u32) -> Self {
        let file = self.host.dir().join(format!("boot{number}"));
        std::fs::write(&file, format!("{number:08x}-0000-4000-8000-000000000000\n")).unwrap();
        Node { boot: Some(file), ..self.clone() }
    }

    pub(super) fn with(mut self, key: &str, value: Value) -> Self {
        self.config["ipam"][key] = value;
        self
    }

    /// Returns the node with this time `offline`.
    pub(super) fn offline(&self, seconds: u32) -> Self {
        let mut node = self.clone();
        let key = if node.config["ipam"]["etcd"].is_null() { "kubernetes" } else { "etcd" };
        node.config["ipam"][key]["offline"] = seconds.into();
        node
    }

    /// Returns the node as its agent tends it, if the API server lists these nodes.
    pub(super) fn listed(&self, names: &[&str]) -> Self {
        let mut node = self.clone();
        node.config["nodes"] = json!(names);
        node
    }

    pub(super) fn store(&self) -> PathBuf {
        Path::new(self.config["ipam"]["dataDir"].as_str().unwrap()).join("net")
    }

    /// Returns a command that runs in the node's boot.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = self.host.command(program);
        // A kill of the group includes the program that a plugin starts.
        command.process_group(0);
        if let Some(boot) = self.boot.clone() {
            // SAFETY: unshare(2) and mount(2) are plain system calls, safe between fork and exec.
            unsafe { command.pre_exec(move || Ok(enter_boot(&boot)?)) };
        }
        command
    }

    pub(super) fn share(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.store().join(".cnimble-share")).unwrap()).unwrap()
    }

    pub(super) fn start(&self, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Child {
        self.start_in(plugin_dir(), verb, id, args, prev)
    }

    /// Starts the plugin of this directory, which may lack the program.
    pub(super) fn start_in(&self, dir: &Path, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Child {
        let mut config = self.config.clone();
        if let Some(ip) = prev {
            config["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [{"address": ip}]});
        }
        let mut command = self.command(&dir.join("cluster-local"));
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_CONTAINERID", id).env("CNI_IFNAME", "eth0");
        command.env("CNI_NETNS", "/nowhere").env("CNI_PATH", dir).env("CNI_ARGS", args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
        child
    }

    pub(super) fn run(&self, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Result<Value, Value> {
        let output = self.start(verb, id, args, prev).wait_with_output().unwrap();
        answer(&output)
    }

    pub(super) fn run_in(
        &self,
        dir: &Path,
        verb: &str,
        id: &str,
        args: &str,
        prev: Option<&str>,
    ) -> Result<Value, Value> {
        answer(&self.start_in(dir, verb, id, args, prev).wait_with_output().unwrap())
    }

    /// Runs ADD and returns the address with its prefix length.
    pub(super) fn add(&self, id: &str) -> Result<String, Value> {
        self.run("ADD", id, "", None).map(|result| address(&result))
    }

    #[track_caller]
    pub(super) fn added(&self, id: &str) -> String {
        self.add(id).unwrap_or_else(|err| panic!("ADD of {id} on {}: {err}", self.name))
    }

    /// Runs the program that speaks to the store with an operator's task.
    pub(super) fn operate(&self, task: &str) -> Result<Value, Value> {
        answer(&self.begin(task).wait_with_output().unwrap())
    }

    pub(super) fn begin(&self, task: &str) -> Child {
        let mut command = self.command(&plugin_dir().join("cluster-local-store"));
        command.args(task.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes()).unwrap();
        child
    }
}

/// Gives this process the boot ID in the file.
fn enter_boot(id: &Path) -> nix::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(id), "/proc/sys/kernel/random/boot_id", none, MsFlags::MS_BIND, none)
}

pub(super) fn answer(output: &Output) -> Result<Value, Value> {
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() { Ok(value) } else { Err(value) }
}

/// Panics unless the outcome is this error.
#[track_caller]
pub(super) fn refused<T>(outcome: Result<T, Value>, code: u32, text: &str) {
    let Err(err) = outcome else { panic!("no error, where code {code} was expected: {text}") };
    assert_eq!(err["code"], code, "{err}");
    assert!(err["msg"].as_str().unwrap().contains(text), "{err}");
}

/// Cuts an address off from all others.
pub(super) fn cut(host: &Host, ip: &str) {
    host.nft("add table ip cut");
    host.nft("add chain ip cut input { type filter hook input priority 0; }");
    host.nft(&format!("add rule ip cut input ip daddr {ip} drop"));
    host.nft(&format!("add rule ip cut input ip saddr {ip} drop"));
}

/// Undoes [`cut`].
pub(super) fn heal(host: &Host) {
    host.nft("delete table ip cut");
}

/// Returns the CNI_ARGS of a pod that wants this address, which may have a prefix length.
pub(super) fn wanted(ip: &str) -> String {
    format!("IP={}", ip.split('/').next().unwrap())
}

pub(super) fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

/// Starts etcd, and returns three nodes of an initialized network.
pub(super) fn cluster<'h>(host: &'h Host, members: usize, subnet: &str) -> (Etcd<'h>, Vec<Node<'h>>) {
    cluster_of(host, members, subnet, 26)
}

/// Same as `cluster`, with another size of blocks.
pub(super) fn cluster_of<'h>(
    host: &'h Host,
    members: usize,
    subnet: &str,
    block: u8,
) -> (Etcd<'h>, Vec<Node<'h>>) {
    let etcd = Etcd::start(host, members);
    let node = |name| Node::new(host, members, name, subnet).with("blockSize", block.into());
    let nodes: Vec<Node<'_>> = ["a", "b", "c"].map(node).into();
    nodes[0].operate("init new").unwrap();
    (etcd, nodes)
}

/// Asserts that each node's file has the addresses that etcd has for the node.
#[track_caller]
pub(super) fn assert_no_block_is_lost(nodes: &[Node<'_>]) {
    for node in nodes {
        node.operate("confirm").unwrap();
    }
    let claims = nodes[0].operate("blocks").unwrap();
    let claims: BTreeSet<(String, String)> = claims
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| (claim["first"].as_str().unwrap().into(), claim["node"].as_str().unwrap().into()))
        .collect();
    let mut shares = BTreeSet::new();
    for node in nodes {
        for owned in node.share()["owned"].as_array().unwrap() {
            assert!(shares.insert((owned["first"].as_str().unwrap().to_owned(), node.name.clone())));
        }
    }
    assert_eq!(claims, shares);
    let firsts: BTreeSet<&String> = shares.iter().map(|(first, _)| first).collect();
    assert_eq!(firsts.len(), shares.len(), "a block has two owners");
}
