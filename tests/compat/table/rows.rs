//! The rows in `compat.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use cnimble_tests::Sample;

/// The table of a plugin.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// The plugin, from the folder's name.
    #[serde(skip)]
    pub(super) plugin: String,
    /// The configuration that the rows change.
    pub(super) base: Value,
    /// The configuration of bridge before a chained plugin.
    #[serde(default)]
    pub(super) bridge: Value,
    /// The value of CNI_IFNAME.
    #[serde(default = "eth0")]
    pub(super) ifname: String,
    pub(super) rows: Vec<Row>,
}

/// An option, or one use of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Row {
    /// The keys as on the plugin's page.
    pub(super) keys: Vec<String>,
    /// The tested use of the keys.
    pub(super) case: String,
    /// Merged into the base configuration. `"$ABSENT"` removes a key.
    pub(super) config: Value,
    /// The value of CNI_ARGS.
    pub(super) args: String,
    /// Shell commands on the host and in the pod before ADD.
    pub(super) host: String,
    pub(super) pod: String,
    /// Shell commands on the host and in the pod after ADD. Their output is compared.
    pub(super) look: String,
    pub(super) look_in_pod: String,
    /// Whether the connections between pods, host and world are compared.
    pub(super) ways: bool,
    /// Whether a second pod of the same network, with the container `pod2`, is added and stays.
    pub(super) neighbour: bool,
    /// Whether the row needs a kernel with all features.
    pub(super) machine: bool,
    pub(super) verdict: Verdict,
    /// The parts of the picture that differ.
    pub(super) differs: Vec<String>,
    /// Describes what the Go plugin and ours do, and the reason.
    pub(super) note: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    #[default]
    Same,
    Better,
    Different,
}

impl Row {
    /// Returns true if and only if the row runs in the machine of `scripts/vm`.
    pub(super) fn in_machine(&self, table: &Table) -> bool {
        self.machine || Sample::of(&table.plugin).is_picky()
    }
}

impl Table {
    /// Returns the configuration of a row. `$DIR` is the test's directory.
    pub(super) fn config(&self, row: &Row, dir: &Path) -> Value {
        let mut config = self.base.clone();
        merge(&mut config, &row.config);
        in_dir(&config, dir)
    }
}

/// Replaces `$DIR` in all texts.
pub(super) fn in_dir(config: &Value, dir: &Path) -> Value {
    serde_json::from_str(&config.to_string().replace("$DIR", dir.to_str().unwrap())).unwrap()
}

fn eth0() -> String {
    "eth0".into()
}

fn merge(config: &mut Value, change: &Value) {
    let (Value::Object(config), Value::Object(change)) = (&mut *config, change) else {
        if !change.is_null() {
            *config = change.clone();
        }
        return;
    };
    for (key, value) in change {
        match (config.get_mut(key), value) {
            (_, Value::String(word)) if word == "$ABSENT" => drop(config.remove(key)),
            (Some(old @ Value::Object(_)), Value::Object(_)) => merge(old, value),
            _ => drop(config.insert(key.clone(), value.clone())),
        }
    }
}

/// Returns the folder of a plugin.
pub(super) fn folder(plugin: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = ["plugins", "ipam"].map(|dir| root.join(dir).join(plugin));
    found.into_iter().find(|path| path.exists()).unwrap()
}

/// Returns all tables, by the plugins' names.
pub(super) fn all() -> Vec<Table> {
    let read = |sample: &Sample| {
        let path = folder(&sample.plugin).join("compat.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let table: Table =
            serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        Table { plugin: sample.plugin.clone(), ..table }
    };
    // A plugin without a counterpart in Go has no table.
    let is_there = |sample: &&Sample| folder(&sample.plugin).join("compat.json").exists();
    Sample::all().iter().filter(is_there).map(read).collect()
}
