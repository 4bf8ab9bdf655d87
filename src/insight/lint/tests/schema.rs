//! Tests that the published schemas are those of the pages, and that valid configurations satisfy them.
#![cfg(test)]

use std::path::{Path, PathBuf};

use serde_json::Value;

use cnimble_lint::{Key, pages, schema};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Returns the parts of `value` that the schema refuses. It supports only the keywords that the schemas use.
fn refused(schema: &Value, value: &Value, all: &Value, at: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let empty = serde_json::Map::new();
    let words = schema.as_object().unwrap_or(&empty);
    for (word, rule) in words {
        let bad = match word.as_str() {
            "$schema" | "title" | "description" | "default" | "$defs" | "then" | "patternProperties" => false,
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    other => panic!("type {other}"),
                };
                !rule.as_array().map_or_else(|| is(rule), |list| list.iter().any(is))
            }
            "const" => value != rule,
            "enum" => !rule.as_array().unwrap().contains(value),
            "minimum" => value.as_i64().is_some_and(|number| number < rule.as_i64().unwrap()),
            "maximum" => value.as_i64().is_some_and(|number| number > rule.as_i64().unwrap()),
            "minLength" | "maxLength" | "minItems" => {
                let bound = rule.as_u64().unwrap() as usize;
                let size = value.as_str().map(|text| text.chars().count()).or(value.as_array().map(Vec::len));
                size.is_some_and(|size| if word.starts_with("min") { size < bound } else { size > bound })
            }
            "pattern" => {
                let pattern = regex_lite::Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_some_and(|text| !pattern.is_match(text))
            }
            "required" => {
                let keys = rule.as_array().unwrap().iter().map(|key| key.as_str().unwrap());
                value.as_object().is_some_and(|object| keys.into_iter().any(|key| !object.contains_key(key)))
            }
            "properties" => {
                for (key, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        wrong.extend(refused(rule, value, all, &format!("{at}.{key}")));
                    }
                }
                false
            }
            "additionalProperties" => {
                let known = |key: &str| {
                    let patterns = words.get("patternProperties").and_then(Value::as_object);
                    words.get("properties").is_some_and(|known| known.get(key).is_some())
                        || patterns.is_some_and(|all| {
                            all.keys().any(|pattern| regex_lite::Regex::new(pattern).unwrap().is_match(key))
                        })
                };
                for (key, value) in value.as_object().unwrap_or(&empty).iter().filter(|(key, _)| !known(key))
                {
                    match rule {
                        Value::Bool(false) => wrong.push(format!("{at}.{key}: additional")),
                        rule => wrong.extend(refused(rule, value, all, &format!("{at}.{key}"))),
                    }
                }
                false
            }
            "items" => {
                for (n, value) in value.as_array().into_iter().flatten().enumerate() {
                    wrong.extend(refused(rule, value, all, &format!("{at}[{n}]")));
                }
                false
            }
            "allOf" => {
                for rule in rule.as_array().unwrap() {
                    wrong.extend(refused(rule, value, all, at));
                }
                false
            }
            "anyOf" => rule.as_array().unwrap().iter().all(|rule| !refused(rule, value, all, at).is_empty()),
            "if" => {
                if refused(rule, value, all, at).is_empty() {
                    wrong.extend(refused(&words["then"], value, all, at));
                }
                false
            }
            "$ref" => {
                let of = all.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                wrong.extend(refused(of, value, all, at));
                false
            }
            other => panic!("{other} is no word of our schemas"),
        };
        if bad {
            wrong.push(format!("{at}: {word} {rule}"));
        }
    }
    wrong
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn listed(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Editors fetch this file by its address. `cnimble schema` prints the others.
#[test]
fn the_published_schema_is_current() {
    let path = root().join("docs/schema/network.json");
    let text = cnimble_cni::json::to_pretty(&schema::of_network()) + "\n";
    if std::env::var_os("CNIMBLE_WRITE_PAGE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(published == text, "{}: run the test with CNIMBLE_WRITE_PAGE=1", path.display());
}

#[test]
fn each_plugin_has_a_schema_that_its_sample_satisfies() {
    for page in pages() {
        let schema = schema::of_plugin(page.name).unwrap();
        let path = ["plugins", "ipam"].map(|top| root().join(top).join(page.name).join("sample.json"));
        let path = path.iter().find(|path| path.exists()).unwrap();
        let wrong = refused(&schema, &json(path)["config"], &schema, "");
        assert!(wrong.is_empty(), "{}: {wrong:?}", page.name);
    }
}

#[test]
fn samples_examples_and_the_corpus_satisfy_the_schema() {
    let schema = schema::of_network();
    let mut wrong = Vec::new();
    let mut tell = |path: &Path, value: &Value| {
        wrong.extend(
            refused(&schema, value, &schema, "").iter().map(|why| format!("{}{why}", path.display())),
        );
    };
    let mut count = 0;
    for dir in ["plugins", "ipam"] {
        for folder in listed(&root().join(dir)).iter().filter(|folder| folder.join("sample.json").exists()) {
            let path = folder.join("sample.json");
            let mut config = json(&path)["config"].clone();
            if dir == "ipam" {
                config["type"] = "bridge".into();
            }
            tell(&path, &config);
            count += 1;
        }
    }
    for path in listed(&root().join("examples/net.d"))
        .iter()
        .chain(&listed(&root().join("src/insight/lint/corpus/good")))
    {
        // Plugins ignore the case of keys, and treat null as a missing key. A schema cannot express that.
        if !path.ends_with("case-and-null.conflist") {
            tell(path, &json(path));
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests the faults that a schema can detect in one file.
#[test]
fn the_schema_refuses_misspelt_keys_wrong_types_and_values() {
    let schema = schema::of_network();
    for name in [
        "typo-isGatway",
        "typo-in-ipam",
        "typo-in-range",
        "key-of-another-plugin",
        "version-unknown",
        "name-missing",
        "name-bad",
        "type-missing",
        "plugins-empty",
        "plugins-object",
        "bool-as-text",
        "number-as-text",
        "mode-unknown",
        "ranges-not-nested",
        "route-without-dst",
        "subnet-without-length",
        "vlan-too-large",
        "vlan-without-master",
        "master-too-long",
        "policy-unknown",
        "capability-as-list",
        "sysctl-number",
        "dns-as-text",
    ] {
        let path = root().join("src/insight/lint/corpus/broken").join(format!("{name}.conflist"));
        assert!(!refused(&schema, &json(&path), &schema, "").is_empty(), "{name} is let through");
    }
}

/// Tests that the words of every page are known, and that its examples have the described form.
#[test]
fn the_words_of_every_page_are_understood() {
    let mut wrong = Vec::new();
    for page in pages() {
        let schema = schema::of_plugin(page.name).unwrap();
        for key in &page.keys {
            if !cnimble_lint::understood(page, key) {
                wrong.push(format!(
                    "{}'s README.md: the type {:?} of {} isn't known",
                    page.name, key.kind, key.path
                ));
            }
            let Some(of) = below(&schema, key) else { continue };
            let Ok(example) = serde_json::from_str::<Value>(key.example) else { continue };
            // If several keys share a row, the example may be of a key around them.
            if page.keys.iter().filter(|other| other.example == key.example).count() == 1 {
                wrong.extend(refused(of, &example, &schema, key.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the schema of a key that is not in a list.
fn below<'a>(schema: &'a Value, key: &Key) -> Option<&'a Value> {
    key.path.split('.').try_fold(schema, |schema, part| schema.get("properties")?.get(part))
}
