//! The verbs, on real directories: a [`Node`] is a data directory and a configuration. They need no namespace, and
//! rarely root. `tests/host-local/` compares them with the reference's.

mod add;
mod boot;
mod damage;
mod index;
mod keep;
mod lock;
mod properties;
mod read;
mod remove;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_cni::{CniResult, Error, PluginConfig};
use cnimble_plugin::{Call, Command, Plugin, run};

use super::HostLocal;

struct Node {
    dir: tempfile::TempDir,
    ipam: Value,
    extra: Value,
}

impl Node {
    fn new(ipam: Value) -> Self {
        Node { dir: tempfile::tempdir().unwrap(), ipam, extra: json!({}) }
    }

    fn small() -> Self {
        Node::new(json!({ "subnet": "10.0.0.0/29" }))
    }

    fn call(&self, command: Command, id: &str, ifname: &str) -> Call {
        call(&self.dir.path().join("a/b"), &self.ipam, &self.extra, command, id, ifname)
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("a/b/net")
    }

    fn add(&self, id: &str) -> Result<Vec<String>, Error> {
        HostLocal.add(&self.call(Command::Add, id, "eth0")).map(|result| addresses(&result))
    }

    fn del(&self, id: &str) {
        HostLocal.del(&self.call(Command::Del, id, "eth0")).unwrap();
    }

    fn put(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.store()).unwrap();
        fs::write(self.store().join(name), content).unwrap();
    }

    fn mark(&self, name: &str, mark: &str) {
        cnimble_leases::boot::set_mark(&fs::File::open(self.store().join(name)).unwrap(), mark.as_bytes());
    }

    /// Name, mode and content below the data directory.
    fn snapshot(&self) -> BTreeSet<String> {
        fn walk(dir: &Path, into: &mut BTreeSet<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                let mode = meta.permissions().mode();
                into.insert(format!("{} {mode:o} {:?}", path.display(), String::from_utf8_lossy(&content)));
                if meta.is_dir() {
                    walk(&path, into);
                }
            }
        }
        let mut all = BTreeSet::new();
        walk(self.dir.path(), &mut all);
        all
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.store()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn leases(&self) -> Vec<String> {
        self.names()
            .into_iter()
            .filter(|name| !name.starts_with('l') && name != cnimble_leases::INDEX)
            .collect()
    }

    fn status(&self) -> Result<(), Error> {
        HostLocal.status(&self.call(Command::Status, "", ""))
    }

    fn check(&self, id: &str) -> Result<(), Error> {
        run(&HostLocal, &self.call(Command::Check, id, "eth0"), Command::Check)
    }

    fn gc(&self) -> Result<(), Error> {
        run(&HostLocal, &self.call(Command::Gc, "", ""), Command::Gc)
    }
}

fn call(data_dir: &Path, ipam: &Value, extra: &Value, command: Command, id: &str, ifname: &str) -> Call {
    let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam });
    document["ipam"]["type"] = "host-local".into();
    document["ipam"]["dataDir"] = data_dir.to_str().unwrap().into();
    let object = document.as_object_mut().unwrap();
    object.extend(extra.as_object().unwrap().clone());
    let stdin = document.to_string().into_bytes();
    let mut call = Call::new(command, PluginConfig::parse(&stdin).unwrap(), stdin);
    (call.container_id, call.netns, call.ifname) = (id.into(), "/none".into(), ifname.into());
    call
}

fn addresses(result: &CniResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.ip().to_string()).collect()
}
