//! What the folder of a plugin holds, and what stands of it elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::{root, sources};

/// The folders of plugins, with their names.
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
        assert!(readme.contains(&format!("\n| [{name}](")), "README.md's table lacks {name}");
    }
}

/// The keys that a source's structs with `Deserialize` read, wherever they stand.
fn keys_read(source: &str) -> BTreeSet<String> {
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
            } else if let Some((field, _)) = code.split_once(": ").filter(|_| !code.starts_with("//")) {
                let field = field.rsplit(' ').next().unwrap();
                let name = if camel { camel_case(field) } else { field.to_owned() };
                keys.insert(renamed.take().map_or(name, str::to_owned));
            }
        } else if code.starts_with("#[derive(") {
            (derived, camel) = (code.contains("Deserialize"), false);
        } else if code.starts_with("#[serde(") {
            camel |= code.contains("rename_all = \"camelCase\"");
        } else if derived && code.contains("struct ") && code.ends_with('{') {
            within = Some(indent);
        } else if derived && !code.starts_with("//") {
            derived = false;
        }
    }
    keys
}

/// As serde has it.
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

/// A plugin's page has the keys that its code reads, and no others.
#[test]
fn every_key_of_a_plugin_is_on_its_page() {
    let mut shared = BTreeSet::from(["type".to_owned(), "ipam".to_owned()]);
    for file in ["result/mod.rs", "capability.rs"] {
        shared.extend(keys_read(&std::fs::read_to_string(root().join("src/cni/src").join(file)).unwrap()));
    }
    let mut wrong = Vec::new();
    for (path, name) in folders() {
        let mut files = Vec::new();
        sources(&path.join("src"), &mut files);
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
            .flat_map(|path| path.split('.'))
            .map(|key| key.trim_end_matches("[]").to_owned())
            .collect();
        wrong.extend(read.difference(&told).map(|key| format!("{name}'s README.md lacks the key {key}")));
        let strange = told.difference(&read).filter(|key| !shared.contains(*key));
        wrong.extend(strange.map(|key| format!("{name} reads no key {key}, which its README.md has")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
