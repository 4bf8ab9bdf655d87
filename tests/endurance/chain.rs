//! A network of several plugins, called one after the other as by a runtime.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Outcome, Sample, go_plugins, plugin_dir};

/// A plugin of a network.
pub(crate) enum Part {
    Fixed(Value),
    Sample(&'static Sample),
}

/// A network with its plugins in order.
pub(crate) struct Chain<'h> {
    pub(crate) host: &'h Host,
    pub(crate) name: &'static str,
    pub(crate) plugins: Vec<Part>,
}

/// The set of plugins that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    Ours,
    Go,
}

impl Set {
    fn dir(self) -> &'static Path {
        match self {
            Set::Ours => plugin_dir(),
            Set::Go => go_plugins().expect("looked for before"),
        }
    }
}

impl<'h> Chain<'h> {
    /// Uses the version that both sets support, and for GC the first one with that verb.
    fn networks(&self, set: Set, verb: &str, port: u16) -> Vec<Network<'h>> {
        let version = if verb == "GC" { "1.1.0" } else { "1.0.0" };
        let with = |part: &Part| {
            let mut config = match part {
                Part::Fixed(config) => config.clone(),
                Part::Sample(sample) => sample.numbered(self.host, u64::from(port)),
            };
            config["cniVersion"] = json!(version);
            config["name"] = json!(self.name);
            if let (Part::Fixed(_), "portmap") = (part, config["type"].as_str().unwrap()) {
                let mapping = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
                config["runtimeConfig"] = json!({ "portMappings": mapping });
            }
            Network::by(set.dir(), self.host, config)
        };
        self.plugins.iter().map(with).collect()
    }

    /// Calls ADD of all plugins. If one fails, calls DEL of all.
    pub(crate) fn add(&self, set: Set, attachment: &Attachment, port: u16) -> Result<Value, String> {
        let mut result = None;
        for network in self.networks(set, "ADD", port) {
            let outcome = network.call("ADD", attachment, result.as_ref()).run();
            if outcome.status != 0 {
                let failed = outcome.describe();
                self.del(set, attachment, port, None).map_err(|err| format!("{failed}\nand then {err}"))?;
                return Err(failed);
            }
            result = Some(outcome.result());
        }
        Ok(result.unwrap())
    }

    pub(crate) fn check(
        &self,
        set: Set,
        attachment: &Attachment,
        port: u16,
        result: &Value,
    ) -> Result<(), String> {
        let networks = self.networks(set, "CHECK", port);
        networks.iter().try_for_each(|network| good(&network.check(attachment, result)))
    }

    /// Calls DEL of all plugins, the last one first.
    pub(crate) fn del(
        &self,
        set: Set,
        attachment: &Attachment,
        port: u16,
        result: Option<&Value>,
    ) -> Result<(), String> {
        let networks = self.networks(set, "DEL", port);
        networks.iter().rev().try_for_each(|network| good(&network.del(attachment, result)))
    }

    pub(crate) fn gc(&self, valid: &[Value]) -> Result<(), String> {
        let networks = self.networks(Set::Ours, "GC", 0);
        networks.iter().try_for_each(|network| good(&network.gc(Some(json!(valid)))))
    }
}

fn good(outcome: &Outcome) -> Result<(), String> {
    if outcome.status == 0 { Ok(()) } else { Err(outcome.describe()) }
}
