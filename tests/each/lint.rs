//! The linter reads configurations as the plugins do: both refuse the same ones. The test compares them with each
//! plugin's sample and with every row of its compat.json.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use cnimble_lint::{Document, File, Level, Rule, lint, page};
use cnimble_tests::{LIMIT, Role, Sample, plugin_dir, run_limited};

/// Returns the test configurations of a plugin, with their names.
fn configurations(sample: &Sample) -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = ["plugins", "ipam"].map(|dir| root.join(dir).join(&sample.plugin));
    let folder = folder.into_iter().find(|folder| folder.exists()).unwrap();
    // A plugin that the Go set lacks has no table.
    let table = std::fs::read(folder.join("compat.json")).unwrap_or_else(|_| br#"{"rows": []}"#.to_vec());
    let table: Value = serde_json::from_slice(&table).unwrap();
    let mut all = vec![("sample.json".to_owned(), sample.raw().clone())];
    for row in table["rows"].as_array().unwrap() {
        let mut config = table["base"].clone();
        merge(&mut config, &row["config"]);
        all.push((row["case"].as_str().unwrap().to_owned(), config));
    }
    for (_, config) in &mut all {
        config["cniVersion"] = "1.1.0".into();
        if sample.role == Role::Ipam {
            config["type"] = "bridge".into();
        }
    }
    let text = |(case, config): (String, Value)| {
        (case, serde_json::from_str(&config.to_string().replace("$DIR", "/run/cnimble-lint")).unwrap())
    };
    all.into_iter().map(text).collect()
}

fn merge(config: &mut Value, change: &Value) {
    let (Value::Object(old), Value::Object(change)) = (&mut *config, change) else {
        if !change.is_null() {
            *config = change.clone();
        }
        return;
    };
    for (key, value) in change {
        match (old.get_mut(key), value) {
            (_, Value::String(word)) if word == "$ABSENT" => drop(old.remove(key)),
            (Some(of @ Value::Object(_)), Value::Object(_)) => merge(of, value),
            _ => drop(old.insert(key.clone(), value.clone())),
        }
    }
}

/// Returns the reason why the plugin refuses its configuration, if it does.
fn refusal(plugin: &str, config: &Value) -> Option<String> {
    let mut command = Command::new(plugin_dir().join(plugin));
    command.env_clear().env("CNI_COMMAND", "STATUS").env("CNI_PATH", plugin_dir());
    let outcome = run_limited(&mut command, config.to_string().as_bytes(), LIMIT);
    let answer: Value = serde_json::from_slice(&outcome.stdout).ok()?;
    let refused = [2, 6, 7].map(Value::from).contains(&answer["code"]);
    refused.then(|| format!("{}; {}", answer["msg"], answer["details"]))
}

fn errors(config: &Value) -> Vec<String> {
    let file = File { path: "net.conf".to_owned(), text: config.to_string() };
    let document = Document::parse(file).unwrap();
    // The order of the chain does not concern the plugin.
    let own = lint(&document).into_iter().filter(|finding| finding.rule != Rule::ChainOrder);
    own.filter(|finding| finding.level == Level::Error).map(|finding| finding.message).collect()
}

#[test]
fn the_linter_refuses_what_plugins_refuse() {
    let mut wrong = Vec::new();
    let mut refused = BTreeSet::new();
    for sample in Sample::all() {
        for (case, config) in configurations(sample) {
            let plugin = if sample.role == Role::Ipam { "bridge" } else { &sample.plugin };
            let refusal = refusal(plugin, &config);
            let mut errors = errors(&config);
            // STATUS does not refuse these, and ADD does: an earlier plugin may have assigned addresses, and the addresses
            // that a pod asks for are read with the pod.
            errors
                .retain(|error| error != "ipvlan needs ipam.type" && !error.ends_with(": ADD can't give it"));
            if refusal.is_some() {
                refused.insert(sample.plugin.clone());
            }
            if refusal.is_some() == errors.is_empty() {
                wrong.push(format!("{}: {case}: plugin {refusal:?}, linter {errors:?}", sample.plugin));
            }
        }
    }
    assert!(refused.len() > 3, "too few configurations are refused: {refused:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_plugin_has_a_page_that_the_linter_knows() {
    for sample in Sample::all() {
        assert!(page(&sample.plugin).is_some(), "{} has no page", sample.plugin);
    }
    assert_eq!(
        errors(&json!({"cniVersion": "1.1.0", "name": "n", "type": "loopback"})),
        Vec::<String>::new()
    );
}
