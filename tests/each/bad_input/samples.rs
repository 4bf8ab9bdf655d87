//! The keys of each plugin's sample, with values of another type.

use serde_json::{Value, json};

use cnimble_tests::{Role, Sample};

use super::Table;

/// The keys that every plugin has, which `document` tests.
const COMMON: &[&str] = &["cniVersion", "name", "type"];

pub(super) fn types(table: &mut Table) {
    for sample in Sample::all() {
        let config = sample.raw();
        keys(table, sample, "", config);
        // The keys inside belong to the IPAM plugin.
        if sample.role == Role::Ipam {
            keys(table, sample, "/ipam", &config["ipam"]);
        }
    }
}

fn keys(table: &mut Table, sample: &'static Sample, parent: &str, config: &Value) {
    for (key, value) in config.as_object().unwrap().iter().filter(|(key, _)| !COMMON.contains(&key.as_str()))
    {
        let wrong = if value.is_object() { json!("text") } else { json!({"of": "another type"}) };
        table.key(&format!("{parent}/{key}"), wrong, 7, key).of(&sample.plugin);
    }
}
