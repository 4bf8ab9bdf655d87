//! cluster-local with a real etcd. No address has two owners, even with faults of etcd, the plugin and
//! the nodes.
#![cfg(test)]

mod agent;
mod boots;
mod chaos;
mod etcd;
mod fences;
mod hangs;
mod late;
mod local;
mod operator;
mod pages;
mod pools;
mod restored;
mod routes;
mod site;
mod trust;
mod vanished;
mod watch;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use cnimble_tests::{Host, plugin_dir};

use etcd::{Etcd, url};

/// A node of a cluster, with a name and its own directory.
#[derive(Clone)]
struct Node<'h> {
    host: &'h Host,
    name: String,
    config: Value,
    /// The file with the boot ID that its processes read, instead of the kernel's.
    boot: Option<PathBuf>,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host, members: usize, name: &str, subnet: &str) -> Self {
        let urls: Vec<String> = (0..members).map(url).collect();
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "ptp",
            "ipam": {
                "type": "cluster-local", "ranges": [[{"subnet": subnet}]], "nodeName": name,
                "dataDir": host.dir().join(name), "etcd": {"endpoints": urls}
            }
        });
        Node { host, name: name.to_owned(), config, boot: None }
    }

    /// Returns the same node in another boot.
    fn in_boot(&self, number: u32) -> Self {
        let file = self.host.dir().join(format!("boot{number}"));
        std::fs::write(&file, format!("{number:08x}-0000-4000-8000-000000000000\n")).unwrap();
        Node { boot: Some(file), ..self.clone() }
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.config["ipam"][key] = value;
        self
    }

    fn store(&self) -> PathBuf {
        Path::new(self.config["ipam"]["dataDir"].as_str().unwrap()).join("net")
    }

    /// Returns a command that runs in the node's boot.
    fn command(&self, program: &Path) -> Command {
        let Some(boot) = &self.boot else { return self.host.command(program) };
        let mut command = self.host.command("/usr/bin/unshare");
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id; exec \"$@\"";
        command.args(["--mount", "sh", "-ec", script]).arg(boot).arg(program);
        command
    }

    fn share(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.store().join(".cnimble-share")).unwrap()).unwrap()
    }

    fn start(&self, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Child {
        self.start_in(plugin_dir(), verb, id, args, prev)
    }

    /// Starts the plugin of this directory, which may lack the program.
    fn start_in(&self, dir: &Path, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Child {
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

    fn run(&self, verb: &str, id: &str, args: &str, prev: Option<&str>) -> Result<Value, Value> {
        let output = self.start(verb, id, args, prev).wait_with_output().unwrap();
        answer(&output)
    }

    fn run_in(
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
    fn add(&self, id: &str) -> Result<String, Value> {
        self.run("ADD", id, "", None).map(|result| address(&result))
    }

    #[track_caller]
    fn added(&self, id: &str) -> String {
        self.add(id).unwrap_or_else(|err| panic!("ADD of {id} on {}: {err}", self.name))
    }

    /// Runs the program that speaks to etcd with an operator's task.
    fn operate(&self, task: &str) -> Result<Value, Value> {
        answer(&self.begin(task).wait_with_output().unwrap())
    }

    fn begin(&self, task: &str) -> Child {
        let mut command = self.command(&plugin_dir().join("cluster-local-etcd"));
        command.args(task.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes()).unwrap();
        child
    }
}

fn answer(output: &Output) -> Result<Value, Value> {
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() { Ok(value) } else { Err(value) }
}

/// Panics unless the outcome is this error.
#[track_caller]
fn refused<T>(outcome: Result<T, Value>, code: u32, text: &str) {
    let Err(err) = outcome else { panic!("no error, where code {code} was expected: {text}") };
    assert_eq!(err["code"], code, "{err}");
    assert!(err["msg"].as_str().unwrap().contains(text), "{err}");
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

/// Starts etcd, and returns three nodes of an initialized network.
fn cluster<'h>(host: &'h Host, members: usize, subnet: &str) -> (Etcd<'h>, Vec<Node<'h>>) {
    cluster_of(host, members, subnet, 26)
}

/// Same as `cluster`, with another size of blocks.
fn cluster_of<'h>(host: &'h Host, members: usize, subnet: &str, block: u8) -> (Etcd<'h>, Vec<Node<'h>>) {
    let etcd = Etcd::start(host, members);
    let node = |name| Node::new(host, members, name, subnet).with("blockSize", block.into());
    let nodes: Vec<Node<'_>> = ["a", "b", "c"].map(node).into();
    nodes[0].operate("init").unwrap();
    (etcd, nodes)
}

/// Asserts that each node's file has the addresses that etcd has for the node.
#[track_caller]
fn assert_no_block_is_lost(nodes: &[Node<'_>]) {
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
