//! What reviewers would have to look for otherwise: where code is unsafe, which way modules and
//! crates depend, under which licences the crates are that we build on, and which of them are
//! there twice.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The product's files with unsafe code, and how many blocks, functions and impls each has.
/// docs/SECURITY.md says what for.
const UNSAFE: &[(&str, usize)] = &[
    ("ipam/host-local/src/index.rs", 1),
    ("plugins/multicall/src/arena.rs", 19),
    ("plugins/multicall/src/main.rs", 2),
    ("src/leases/boot.rs", 2),
    ("src/net/mac.rs", 1),
    ("src/net/netns.rs", 1),
    ("src/plugin/signal.rs", 1),
    ("src/plugin/start.rs", 1),
    ("src/pod/watch.rs", 1),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // Tests of the kernel, which are part of no release.
        if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn unsafe_code_is_where_it_is_said_to_be() {
    let mut files = Vec::new();
    for dir in ["src", "plugins", "ipam"] {
        sources(&root().join(dir), &mut files);
    }
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let count =
            code.filter(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe"));
        let count = count.count();
        if count > 0 {
            found.push((file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(), count));
        }
    }
    found.sort();
    let expected: Vec<_> = UNSAFE.iter().map(|(file, count)| ((*file).to_owned(), *count)).collect();
    assert_eq!(
        found, expected,
        "unsafe code has come or gone: see UNSAFE in this file, and docs/SECURITY.md"
    );
    let told = std::fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    for (file, _) in UNSAFE {
        assert!(told.contains(file), "docs/SECURITY.md doesn't say why {file} is unsafe");
    }
}

/// Which of its neighbours each module of the library may use; docs/ARCHITECTURE.md says why.
const MAY_USE: &[(&str, &[&str])] = &[
    ("doctor", &["leases", "life", "net", "rules", "runtime", "spec"]),
    ("files", &[]),
    ("leases", &["plugin", "spec"]),
    ("life", &["leases", "net", "rules", "runtime", "spec"]),
    ("locks", &[]),
    ("net", &["spec"]),
    ("plugin", &["net", "spec"]),
    ("pod", &["files", "life", "locks", "net", "runtime", "spec"]),
    ("rules", &["net", "spec"]),
    ("runtime", &["files", "locks", "spec"]),
    ("spec", &[]),
    ("tree", &["net", "rules", "runtime", "spec"]),
    ("veth", &["net", "plugin", "rules", "spec"]),
];

/// The modules of the library that a text names: `crate::net::…`, `crate::{net, spec::…}`.
fn named(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for behind in text.split("crate::").skip(1) {
        let mut depth = 0;
        let mut word = String::new();
        let mut fresh = true;
        for c in behind.chars() {
            match c {
                _ if fresh && (c.is_alphanumeric() || c == '_') => word.push(c),
                '{' if word.is_empty() && depth == 0 => depth = 1,
                _ => {
                    found.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    // Behind a comma of the outermost list another one begins.
                    fresh = depth == 1 && (c == ',' || (fresh && c.is_whitespace()));
                    if depth == 0 {
                        break;
                    }
                }
            }
        }
        found.extend((!word.is_empty()).then_some(word));
    }
    found
}

#[test]
fn modules_depend_one_way() {
    let names = |text: &str| named(text).into_iter().collect::<Vec<_>>();
    assert_eq!(names("use crate::net::{spec, x};"), ["net"]);
    assert_eq!(names("crate::{net, rules::{self, a::B}, spec}; crate::pod"), ["net", "pod", "rules", "spec"]);
    let mut modules = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["main", "lib", "cli"].contains(&name.as_str()) {
            continue;
        }
        let (_, may) = MAY_USE.iter().find(|(module, _)| *module == name).expect(&name);
        let mut files = Vec::new();
        if path.is_dir() {
            sources(&path, &mut files);
        } else {
            files.push(path);
        }
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
            for other in named(&code.join("\n")) {
                let known = MAY_USE.iter().any(|(module, _)| *module == other) && other != name;
                assert!(!known || may.contains(&other.as_str()), "{} uses {other}", file.display());
            }
        }
        modules.insert(name);
    }
    assert_eq!(modules, MAY_USE.iter().map(|(module, _)| (*module).to_owned()).collect());
}

/// The netlink crates change every month: what they are called stays in one place.
#[test]
fn netlink_crates_stay_in_net() {
    let mut files = Vec::new();
    for dir in ["src", "plugins", "ipam"] {
        sources(&root().join(dir), &mut files);
    }
    let net = root().join("src/net");
    for file in files.iter().filter(|file| !file.starts_with(&net)) {
        let text = std::fs::read_to_string(file).unwrap();
        let code: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
        let text = code.join("\n");
        for name in ["netlink_packet_core", "netlink_packet_route", "netlink_sys", "rtnetlink"] {
            assert!(!text.contains(name), "{} names {name}", file.display());
        }
    }
}

#[test]
fn plugins_need_neither_each_other_nor_the_invoker() {
    let packages = packages();
    let plugins = packages.iter().filter(|package| {
        let manifest = package["manifest_path"].as_str().unwrap();
        let is_plugin = manifest.contains("/plugins/") || manifest.contains("/ipam/");
        is_plugin && package["source"].is_null() && package["name"] != "cnimble-plugins"
    });
    let mut count = 0;
    for package in plugins {
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            if dependency["kind"].is_null() && name.starts_with("cnimble") {
                assert_eq!(name, "cnimble", "{} needs {name}", package["name"]);
                assert_eq!(dependency["uses_default_features"], false, "{}", package["name"]);
                assert!(dependency["features"].as_array().unwrap().is_empty(), "{}", package["name"]);
                count += 1;
            }
        }
    }
    assert!(count >= 9, "{count} plugins");
}

/// A list of deny.toml: the texts between the brackets behind `key = `.
fn listed(key: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ["))).expect(key);
    let inside = line.split(']').next().unwrap();
    inside.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The packages that the product or its tests are built of, as cargo knows them offline.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether an SPDX expression is satisfied by the licences that are allowed.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = expression.split_whitespace().collect();
    let (value, rest) = either(&words, allowed);
    value && rest.is_empty()
}

fn either<'a, 'w>(words: &'w [&'a str], allowed: &BTreeSet<String>) -> (bool, &'w [&'a str]) {
    let (mut value, mut rest) = both(words, allowed);
    while let ["OR", tail @ ..] = rest {
        let (other, tail) = both(tail, allowed);
        (value, rest) = (value | other, tail);
    }
    (value, rest)
}

fn both<'a, 'w>(words: &'w [&'a str], allowed: &BTreeSet<String>) -> (bool, &'w [&'a str]) {
    let (mut value, mut rest) = one(words, allowed);
    while let ["AND", tail @ ..] = rest {
        let (other, tail) = one(tail, allowed);
        (value, rest) = (value & other, tail);
    }
    (value, rest)
}

fn one<'a, 'w>(words: &'w [&'a str], allowed: &BTreeSet<String>) -> (bool, &'w [&'a str]) {
    match words {
        ["(", tail @ ..] => match either(tail, allowed) {
            (value, [")", rest @ ..]) => (value, rest),
            (_, rest) => (false, rest),
        },
        [licence, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{licence} WITH {exception}")), rest)
        }
        [licence, rest @ ..] => (allowed.contains(*licence), rest),
        [] => (false, words),
    }
}

#[test]
fn every_crate_has_a_licence_that_is_allowed() {
    let allowed = listed("allow");
    assert!(satisfied("MIT/Apache-2.0", &allowed) && satisfied("(GPL-2.0 OR MIT) AND Unicode-3.0", &allowed));
    assert!(!satisfied("GPL-2.0", &allowed) && !satisfied("MIT AND GPL-2.0", &allowed));
    assert!(!satisfied("Apache-2.0 WITH Strange-exception", &allowed) && !satisfied("", &allowed));
    let packages = packages();
    assert!(packages.len() > 20);
    let bad: Vec<String> = packages
        .iter()
        .filter(|package| !satisfied(package["license"].as_str().unwrap_or_default(), &allowed))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(bad.is_empty(), "not among the licences of deny.toml:\n{}", bad.join("\n"));
}

#[test]
fn no_crate_is_there_twice_without_a_reason() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        let text = |key: &str| package[key].as_str().unwrap().to_owned();
        versions.entry(text("name")).or_default().push(text("version"));
    }
    let known = listed("skip");
    let mut met = BTreeSet::new();
    for (name, versions) in &mut versions {
        let count = versions.len();
        versions.retain(|version| {
            let listed = format!("{name}@{version}");
            let skipped = count > 1 && known.contains(&listed);
            met.extend(skipped.then_some(listed));
            !skipped
        });
        assert!(versions.len() <= 1, "{name} is there in the versions {}", versions.join(", "));
    }
    assert_eq!(met, known, "deny.toml lists what isn't there twice any more");
}

/// Whatever comes from elsewhere than crates.io has been reviewed by nobody.
#[test]
fn every_crate_is_from_the_registry() {
    for package in packages() {
        let source = package["source"].as_str().unwrap_or_default();
        let known =
            source.is_empty() || source.starts_with("registry+https://github.com/rust-lang/crates.io-index");
        assert!(known, "{}: {source}", package["name"]);
    }
}
