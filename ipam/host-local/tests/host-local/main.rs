//! host-local as a process, alone and with the reference's: Debian's containernetworking-plugins or `REFERENCE_DIR`.
//! host-local touches only its directory, so no namespace is needed.
#![cfg(test)]

mod disk;
mod killed;
mod reference;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use cnimble_tests::plugin_dir;

fn ours() -> PathBuf {
    plugin_dir().join("host-local")
}

/// One call: verb, container, CNI_ARGS.
#[derive(Debug, Clone)]
struct Step {
    verb: &'static str,
    id: String,
    args: String,
}

impl Step {
    fn new(verb: &'static str, id: &str, args: &str) -> Self {
        Step { verb, id: id.into(), args: args.into() }
    }
}

fn start(program: &Path, step: &Step, config: &Value) -> Child {
    let mut child = Command::new(program)
        .env_clear()
        .env("CNI_COMMAND", step.verb)
        .env("CNI_CONTAINERID", &step.id)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", "/nowhere")
        .env("CNI_PATH", program.parent().unwrap())
        .env("CNI_ARGS", &step.args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Killed processes don't read to the end.
    let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    child
}

fn run(program: &Path, step: &Step, config: &Value) -> Output {
    start(program, step, config).wait_with_output().unwrap()
}

fn config(dir: &Path, version: &str, ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = "host-local".into();
    ipam["dataDir"] = dir.to_str().unwrap().into();
    json!({ "cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam })
}

/// Without the lock: the reference's DEL makes one.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir.join("net")) else {
        return BTreeMap::new();
    };
    entries
        .map(Result::unwrap)
        // The reference passes over it.
        .filter(|entry| entry.file_name() != ".cnimble-index")
        .map(|entry| {
            let content = String::from_utf8(fs::read(entry.path()).unwrap()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        })
        .filter(|(name, _)| name != "lock")
        .collect()
}

fn leases(dir: &Path) -> BTreeMap<String, String> {
    files(dir).into_iter().filter(|(name, _)| !name.starts_with('l')).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
