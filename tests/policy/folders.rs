//! Checks the contents of plugins' folders, and references to plugins elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::{root, sources};

/// Returns the folders of plugins, with their names.
fn folders() -> Vec<(PathBuf, String)> {
    let found = ["plugins", "ipam"].into_iter().flat_map(|dir| std::fs::read_dir(root().join(dir)).unwrap());
    let named = found.map(|entry| entry.unwrap()).map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        (entry.path(), name)
    });
    named.filter(|(path, name)| path.is_dir() && name != "multicall").collect()
}

#[test]
fn a_plugins_folder_has_all_that_is_asked_of_one() {
    let linked = std::fs::read_to_string(root().join("plugins/multicall/Cargo.toml")).unwrap();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for (path, name) in folders() {
        let of = |file: &str| {
            let path = path.join(file);
            std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
        };
        assert!(of("Cargo.toml").contains(&format!("name = \"cnimble-{name}\"")), "{name}'s Cargo.toml");
        assert!(
            linked.contains(&format!("\ncnimble-{name} = ")),
            "plugins/multicall/Cargo.toml lacks {name}"
        );
        let sample: Value = serde_json::from_str(&of("sample.json")).unwrap();
        assert_eq!(sample["config"]["type"], name.as_str(), "{name}'s sample.json");
        assert!(of("README.md").starts_with(&format!("# {name}\n")), "{name}'s README.md");
        assert!(of(&format!("tests/{name}/main.rs")).contains("#![cfg(test)]"), "{name}'s tests");
        assert!(readme.contains(&format!("\n- [{name}](")), "README.md's list lacks {name}");
    }
}

/// Returns the first cells of the rows in a page's tables of keys.
fn cells_of_keys(page: &str) -> impl Iterator<Item = &str> {
    // A table of keys has five columns.
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() >= 6);
    rows.filter_map(|line| line.split('|').nth(1))
}

/// Returns the keys in a page's tables, without the mark of those that the Go plugins lack.
fn keys_of_page(page: &str) -> BTreeSet<String> {
    let keys = cells_of_keys(page).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    keys.map(str::to_owned).collect()
}

/// Returns only the keys with that mark.
fn keys_that_go_lacks(page: &str) -> BTreeSet<String> {
    let keys = cells_of_keys(page).flat_map(|cell| cell.split(','));
    let marked = keys.filter_map(|key| key.trim().strip_suffix('†'));
    marked.map(|key| key.trim_matches('`').to_owned()).collect()
}

/// Returns the keys that the change log names for a plugin: those of list entries that begin with the plugin's name.
fn keys_of_log(log: &str, plugin: &str) -> BTreeSet<String> {
    let entries = log.split("\n- ").skip(1).map(|entry| entry.split("\n\n").next().unwrap());
    let about = entries.filter(|entry| {
        let head = entry.split(':').next().unwrap();
        head.split([',', ' ', '\n']).any(|word| word == plugin)
    });
    about.flat_map(|entry| entry.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Users learn of a new key from the change log.
#[test]
fn the_change_log_names_each_key_that_the_go_plugins_lack() {
    let log = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let mut due = Vec::new();
    for (path, name) in folders() {
        let page = std::fs::read_to_string(path.join("README.md")).unwrap();
        for key in keys_that_go_lacks(&page).difference(&keys_of_log(&log, &name)) {
            due.push(format!("CHANGELOG.md lacks {name}'s key {key}: add it to the entry `- {name}: `"));
        }
    }
    assert!(due.is_empty(), "{}", due.join("\n"));
}

#[test]
fn keys_are_found_in_the_change_log() {
    let log = "# Log\n\n- vlan: `one`,\n  `two`\n- vrf, vlan: `three`\n- vrf: vlan `four`\n\nMore: `five`\n";
    assert_eq!(keys_of_log(log, "vlan"), ["one", "two", "three"].map(str::to_owned).into());
}

/// A new key is due in several files. CONTRIBUTING.md, "Adding a key", lists those that no test can ask for.
#[test]
fn each_key_of_a_plugin_is_compared_with_the_go_plugin() {
    let mut due = Vec::new();
    for (path, name) in folders() {
        let page = std::fs::read_to_string(path.join("README.md")).unwrap();
        // No Go plugin is to be compared with, if there is no such file.
        let Ok(rows) = std::fs::read_to_string(path.join("compat.json")) else { continue };
        let rows: Value = serde_json::from_str(&rows).unwrap();
        let rows = rows["rows"].as_array().unwrap().iter();
        let compared: BTreeSet<&str> =
            rows.flat_map(|row| row["keys"].as_array().unwrap()).filter_map(Value::as_str).collect();
        for key in keys_of_page(&page).iter().filter(|key| !compared.contains(key.as_str())) {
            due.push(format!(
                "{name}'s key {key} has no row in compat.json: add one, and write the page COMPATIBILITY.md"
            ));
        }
    }
    assert!(due.is_empty(), "{}", due.join("\n"));
}

#[test]
fn keys_are_found_in_tables() {
    let page = "| Key | Type |\n| `mtu`, `vlan`† | integer | none | 1 | Sets it. |\n| `one` | two |\n";
    assert_eq!(keys_of_page(page), BTreeSet::from(["mtu".to_owned(), "vlan".to_owned()]));
    assert_eq!(keys_that_go_lacks(page), BTreeSet::from(["vlan".to_owned()]));
}

/// Plugin names that are also kinds of links or common words.
const WORDS: &[&str] = &["bridge", "dummy", "ipvlan", "macvlan", "static", "tap", "vlan", "vrf"];

/// Returns the code of a source, without comments and without tests at its end.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns true if the code names a plugin: as a string, or as a word that has no other meaning.
fn is_named(code: &str, plugin: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words = |name: &str| {
        code.match_indices(name).any(|(at, _)| {
            let (before, behind) = (code[..at].chars().next_back(), code[at + name.len()..].chars().next());
            !before.is_some_and(is_part) && !behind.is_some_and(is_part)
        })
    };
    code.contains(&format!("\"{plugin}\""))
        || code.contains(&format!("plugin {plugin}"))
        || !WORDS.contains(&plugin) && (words(plugin) || words(&plugin.replace('-', "_")))
}

#[test]
fn plugins_are_found_where_they_are_named() {
    for text in ["x == \"bridge\"", "use rules::portmap;", "the plugin vlan", "fn f(host_local: u8)"] {
        let named = ["bridge", "portmap", "vlan", "host-local"].iter().filter(|name| is_named(text, name));
        assert_eq!(named.count(), 1, "{text}");
    }
    let other = code("/// Of portmap.\nlet bridge = \"the bridge\";\n#[cfg(test)]\nmod tests { \"ptp\" }");
    assert!(!["portmap", "bridge", "ptp"].iter().any(|name| is_named(&other, name)), "{other}");
}

/// `src/host/rules/src/objects` declares the objects that a plugin creates. The doctor knows only kinds of objects.
#[test]
fn the_doctor_names_no_plugin() {
    let mut files = Vec::new();
    sources(&root().join("src/insight/doctor/src"), &mut files);
    files.retain(|file| !file.ends_with("tests.rs"));
    assert!(files.len() > 10);
    let mut named = Vec::new();
    for file in files {
        let code = code(&std::fs::read_to_string(&file).unwrap());
        let found = folders().into_iter().filter(|(_, name)| is_named(&code, name));
        named.extend(found.map(|(_, name)| format!("{} names {name}", file.display())));
    }
    assert!(named.is_empty(), "{}", named.join("\n"));
}

/// Returns the keys that a source's structs with `Deserialize` read.
fn keys_read(source: &str) -> BTreeSet<String> {
    fields_read(source).into_iter().map(|(key, _)| key).collect()
}

/// The same with the types of their fields.
fn fields_read(source: &str) -> BTreeSet<(String, String)> {
    let mut keys = BTreeSet::new();
    let (mut derived, mut camel, mut renamed, mut within) = (false, false, None, None);
    for line in source.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some(end) = within {
            if code.starts_with("#[serde(") {
                renamed = code.split_once("rename = \"").map(|(_, rest)| rest.split('"').next().unwrap());
            } else if code.starts_with('}') && indent == end {
                (within, derived, camel) = (None, false, false);
            } else if let Some((field, kind)) = code.split_once(": ").filter(|_| !code.starts_with("//")) {
                let field = field.rsplit(' ').next().unwrap();
                let name = if camel { camel_case(field) } else { field.to_owned() };
                let kind = kind.trim_end_matches(',').to_owned();
                keys.insert((renamed.take().map_or(name, str::to_owned), kind));
            }
        } else if code.starts_with("#[derive(") {
            (derived, camel) = (code.contains("Deserialize"), false);
        } else if code.starts_with("#[serde(") {
            camel |= code.contains("rename_all = \"camelCase\"");
        } else if derived && code.contains("struct ") && code.ends_with('{') {
            within = Some(indent);
        } else if derived && !code.starts_with(['/', '#']) {
            derived = false;
        }
    }
    keys
}

/// Returns the JSON type that a field's type reads, or `None` for a struct of ours.
fn class_of_field(kind: &str) -> Option<&'static str> {
    let kind = kind.strip_prefix("Option<").map_or(kind, |of| of.trim_end_matches('>'));
    Some(match kind {
        "bool" => "bool",
        "u8" | "u16" | "u32" | "u64" | "i64" => "number",
        "String" | "IpAddr" | "IpNetwork" => "text",
        _ if kind.starts_with("Vec<") => "list",
        _ if kind.starts_with("BTreeMap<") => "object",
        _ => return None,
    })
}

/// Returns the JSON type of the words in a page's column *type*, or `None` for a reference.
fn class_of_words(words: &str) -> Option<&'static str> {
    Some(match words.split([' ', ':']).next().unwrap().trim_end_matches('s') {
        "boolean" => "bool",
        "integer" => "number",
        "string" | "interface" | "addre" | "network" | "MAC" => "text",
        "list" | "route" => "list",
        "object" => "object",
        _ => return None,
    })
}

/// Converts a name as serde does.
fn camel_case(field: &str) -> String {
    let mut parts = field.split('_');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |name, part| name + &part[..1].to_uppercase() + &part[1..])
}

#[test]
fn keys_are_read_from_the_source() {
    let source = "#[derive(Debug, Deserialize)]\n#[serde(default, rename_all = \"camelCase\")]\nstruct A {\n    \
                  /// Not: this.\n    tx_q_len: u32,\n    #[serde(rename = \"minID\")]\n    pub(crate) min: u8,\n}\n\
                  struct B {\n    other: u8,\n}\n";
    assert_eq!(keys_read(source), ["minID", "txQLen"].map(str::to_owned).into());
}

/// Returns the keys of a path. The name of a capability may have dots.
fn parts(path: &str) -> Vec<&str> {
    match path.strip_prefix("runtimeConfig.").filter(|name| name.starts_with("io.")) {
        Some(name) => vec!["runtimeConfig", name],
        None => path.split('.').collect(),
    }
}

/// A plugin's page has the keys that its code reads, and no others.
#[test]
fn every_key_of_a_plugin_is_on_its_page() {
    // `src/host/plugin/src/interface` reads these for all plugins.
    let mut shared = BTreeSet::from(["type", "ipam", "arpProbe", "acceptRA", "hostShim"].map(str::to_owned));
    for file in ["result/mod.rs", "capability.rs"] {
        shared
            .extend(keys_read(&std::fs::read_to_string(root().join("src/base/cni/src").join(file)).unwrap()));
    }
    let mut wrong = Vec::new();
    for (path, name) in folders() {
        let mut files = Vec::new();
        sources(&path.join("src"), &mut files);
        // Configurations that other plugins read as well.
        if ["host-local", "cluster-local"].contains(&name.as_str()) {
            sources(&root().join("src/host/leases/src/config"), &mut files);
        }
        if ["bridge", "ptp"].contains(&name.as_str()) {
            files.push(root().join("src/host/rules/src/masquerade/config.rs"));
        }
        if name == "cluster-local" {
            files.push(root().join("src/host/leases/src/cluster/config.rs"));
            files.push(root().join("src/host/leases/src/cluster/config/pools.rs"));
        }
        let own = |file: &PathBuf| file.iter().any(|part| part == "config" || part == "config.rs");
        let read: BTreeSet<String> = files
            .iter()
            .filter(|file| own(file))
            .flat_map(|file| keys_read(&std::fs::read_to_string(file).unwrap()))
            .collect();
        let page = std::fs::read_to_string(path.join("README.md")).unwrap();
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let told: BTreeSet<String> = rows
            .flat_map(|row| row.split(" | ").next().unwrap().split('`').skip(1).step_by(2))
            .flat_map(parts)
            .map(|key| key.trim_end_matches("[]").to_owned())
            .collect();
        wrong.extend(read.difference(&told).map(|key| format!("{name}'s README.md lacks the key {key}")));
        let strange = told.difference(&read).filter(|key| !shared.contains(*key));
        wrong.extend(strange.map(|key| format!("{name} reads no key {key}, which its README.md has")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The types on a plugin's page are those that its code reads, because `validate --strict` uses the page.
#[test]
fn every_key_is_of_the_type_that_its_page_says() {
    let mut wrong = Vec::new();
    for (path, name) in folders() {
        let mut files = Vec::new();
        sources(&path.join("src"), &mut files);
        let own = |file: &&PathBuf| file.iter().any(|part| part == "config" || part == "config.rs");
        let read: BTreeSet<(String, String)> = files
            .iter()
            .filter(own)
            .flat_map(|file| fields_read(&std::fs::read_to_string(file).unwrap()))
            .collect();
        let page = std::fs::read_to_string(path.join("README.md")).unwrap();
        let mut told: BTreeSet<(String, &str)> = BTreeSet::new();
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split(" | ");
            let (paths, words) = (cells.next().unwrap(), cells.next().unwrap());
            for path in paths.split('`').skip(1).step_by(2) {
                let parts = parts(path);
                for (n, part) in parts.iter().enumerate() {
                    let class = match part.ends_with("[]") {
                        true => Some("list"),
                        false if n + 1 == parts.len() => class_of_words(words),
                        false => None,
                    };
                    let key = part.trim_end_matches("[]").to_owned();
                    told.extend(class.map(|class| (key, class)));
                }
            }
        }
        for (key, kind) in read {
            let Some(class) = class_of_field(&kind) else { continue };
            let known: Vec<&str> =
                told.iter().filter(|(of, _)| *of == key).map(|(_, class)| *class).collect();
            if !known.is_empty() && !known.contains(&class) {
                wrong.push(format!("{name} reads {key} as a {class} ({kind}), its README.md says {known:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
