//! The store of these tests: an API server, with the interface of the members of etcd.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use cnimble_tests::Host;

pub(super) use crate::server::Backup;

use crate::node;
use crate::server::CustomServer;

/// The address of the server.
const IP: &str = "127.0.0.11";

/// Returns the key and value of the configuration.
pub(super) fn config(host: &Host, _members: usize) -> (&'static str, Value) {
    ("kubernetes", json!({"kubeconfig": host.dir().join("kubeconfig")}))
}

/// Whether a node that has not heard of the server since a backup needs an agent to know that it was restored.
pub(super) const NEEDS_AGENTS: bool = true;

/// One API server, however many members the test asks for.
pub(super) struct Etcd<'h> {
    host: &'h Host,
    pub(super) server: CustomServer,
}

impl<'h> Etcd<'h> {
    pub(super) fn start(host: &'h Host, _members: usize) -> Self {
        let server = CustomServer::start(host, &format!("{IP}:2379"));
        server.kubeconfig(host.dir());
        Etcd { host, server }
    }

    pub(super) fn kill(&mut self, _n: usize) {
        self.server.kill();
    }

    pub(super) fn member(&mut self, _n: usize) {
        self.server.revive();
    }

    pub(super) fn settle(&self) {}

    pub(super) fn signal(&self, _n: usize, signal: Signal) {
        match signal {
            Signal::SIGSTOP => self.server.pause(),
            _ => self.server.revive(),
        }
    }

    /// Cuts the server off from its clients.
    pub(super) fn cut(&self, _n: usize) {
        node::cut(self.host, IP);
    }

    pub(super) fn heal(&self) {
        node::heal(self.host);
    }

    pub(super) fn backup(&self) -> Backup {
        self.server.backup()
    }

    pub(super) fn restore(&mut self, backup: &Backup) {
        self.server.restore(backup);
    }

    /// Removes all objects, whatever their finalizers are.
    pub(super) fn empty(&self) {
        for plural in ["ippools", "nodeclaims", "blocks"] {
            for object in self.server.objects(plural) {
                self.server.remove(plural, object);
            }
        }
    }

    /// Returns objects as etcd's keys and values, line by line.
    pub(super) fn get(&self, prefix: &str) -> String {
        let shown = |(key, value): &(String, Value)| format!("{key}\n{value}\n");
        let all = self.view().into_iter().map(|(key, value, _)| (key, value));
        all.filter(|(key, _)| key.starts_with(prefix)).map(|entry| shown(&entry)).collect()
    }

    /// Writes the content of an object that `get` shows with this key.
    #[track_caller]
    pub(super) fn put(&self, key: &str, value: &str) {
        let value: Value = serde_json::from_str(value).unwrap();
        let found = self.view().into_iter().find(|(known, ..)| known == key);
        let (_, _, (plural, mut object)) = found.unwrap_or_else(|| panic!("no object for {key}"));
        let part = if plural == "ippools" { "status" } else { "spec" };
        for (field, value) in value.as_object().unwrap() {
            object[part][field] = value.clone();
        }
        self.server.put(plural, object);
    }

    /// Returns etcd's keys, the values, and the objects behind them.
    fn view(&self) -> Vec<(String, Value, (&'static str, Value))> {
        const BASE: &str = "/cnimble/ipam/net";
        let mut view = Vec::new();
        for pool in self.server.objects("ippools") {
            view.push((format!("{BASE}/fence"), pool["status"].clone(), ("ippools", pool)));
        }
        let claims = self.server.objects("nodeclaims");
        for claim in &claims {
            let (spec, object) = (claim["spec"].clone(), ("nodeclaims", claim.clone()));
            let (name, instance) = (spec["name"].as_str().unwrap(), spec["instance"].as_str().unwrap());
            let is_later = |other: &Value| {
                other["spec"]["name"] == name
                    && other["spec"]["sequence"].as_u64() > spec["sequence"].as_u64()
            };
            if claims.iter().any(is_later) {
                view.push((format!("{BASE}/boots/{name}/{instance}"), spec, object));
                continue;
            }
            if spec["addresses"].as_array().is_some_and(|ips| !ips.is_empty()) {
                let host = json!({"ips": spec["addresses"]});
                view.push((format!("{BASE}/hosts/{name}"), host, object.clone()));
            }
            view.push((format!("{BASE}/nodes/{name}"), spec, object));
        }
        for block in self.server.objects("blocks") {
            let (spec, object) = (block["spec"].clone(), ("blocks", block.clone()));
            let digits = block["metadata"]["name"].as_str().unwrap().strip_prefix("net-").unwrap().to_owned();
            let kind = if spec["first"] == spec["last"] { "singles" } else { "blocks" };
            let node = spec["node"].as_str().unwrap();
            if spec["free"].is_null() {
                let list = format!("{BASE}/owned/{node}/{digits}");
                view.push((list, spec["instance"].clone(), object.clone()));
            }
            view.push((format!("{BASE}/{kind}/{digits}"), spec, object));
        }
        view
    }
}
