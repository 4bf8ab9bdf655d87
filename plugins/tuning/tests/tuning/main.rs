//! Tests of the plugin tuning, also beside the Go plugin.
#![cfg(test)]

mod refused;
mod settings;
mod verbs;

use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, configs};

/// A pod on a bridge, with tuning behind it.
struct Chain {
    host: Host,
    pod: Pod,
    att: Attachment,
    prev: Value,
}

impl Chain {
    fn new() -> Self {
        let (host, pod) = (Host::new(), Pod::new());
        let att = Attachment::new("one", &pod);
        let prev = Network::new(&host, configs::dual(&host)).added(&att);
        Chain { host, pod, att, prev }
    }

    fn net(&self, keys: &Value) -> Network<'_> {
        let mut config = json!({
            "cniVersion": configs::newest(), "name": "net64", "type": "tuning", "dataDir": self.dir(),
        });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&self.host, config)
    }

    fn dir(&self) -> PathBuf {
        self.host.dir().join("tuning")
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn add(&self, net: &Network<'_>) -> Value {
        net.call("ADD", &self.att, Some(&self.prev)).run().result()
    }

    fn mac(&self) -> String {
        self.pod.link("eth0")["address"].as_str().unwrap().to_owned()
    }
}

const MAC: &str = "02:11:22:33:44:55";
