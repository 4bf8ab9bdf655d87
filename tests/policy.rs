//! Checks that spare reviewers work: the places of unsafe code, the directions of dependencies between crates, the
//! licences of foreign crates, and duplicate versions of crates.
#![cfg(test)]

#[path = "policy/folders.rs"]
mod folders;
#[path = "policy/pages.rs"]
mod pages;
#[path = "policy/prose.rs"]
mod prose;
#[path = "policy/sentences.rs"]
mod sentences;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The product's files with unsafe code, and the number of blocks, functions and impls in each. docs/SECURITY.md gives
/// the reasons.
const UNSAFE: &[(&str, usize)] = &[
    ("ipam/dhcp/src/closing.rs", 5),
    ("ipam/dhcp/src/daemon/start.rs", 2),
    ("plugins/multicall/src/arena.rs", 24),
    ("plugins/multicall/src/main.rs", 2),
    ("src/base/netlink/src/deferred_close/child.rs", 4),
    ("src/base/netlink/src/legacy.rs", 1),
    ("src/base/netlink/src/link/kind/tap.rs", 3),
    ("src/base/netlink/src/link/mac.rs", 1),
    ("src/base/netlink/src/netns.rs", 1),
    ("src/base/netlink/src/packet.rs", 6),
    ("src/base/os/src/child/signal.rs", 1),
    ("src/cnimble/src/serve.rs", 1),
    ("src/host/leases/src/boot.rs", 2),
    ("src/host/leases/src/index.rs", 1),
    ("src/host/plugin/src/start.rs", 6),
    ("src/node/pod/src/watch.rs", 1),
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

/// The wings of `src/`, and the wings that each may use. docs/ARCHITECTURE.md describes them. The command may use all.
const WINGS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("host", &["base"]),
    ("invoker", &["base", "host"]),
    ("node", &["base", "host", "invoker"]),
    ("insight", &["base", "host", "invoker"]),
];

/// The crates of ours that each library crate may use. Cargo enforces the dependencies, and this list prevents new ones
/// by accident.
const MAY_USE: &[(&str, &[&str])] = &[
    ("agent", &["api", "cni", "leases", "netlink", "os"]),
    ("api", &["os"]),
    ("blocks", &["api", "cni", "leases", "os"]),
    ("cni", &[]),
    ("cri", &["os", "pod"]),
    ("doctor", &["cni", "leases", "liveness", "netlink", "os", "plugin", "rules", "runtime", "trace"]),
    ("leases", &["cni", "os"]),
    ("lint", &["cni"]),
    ("liveness", &["cni", "leases", "netlink", "rules", "runtime"]),
    ("netavark", &["cni", "liveness", "netlink", "runtime"]),
    ("netlink", &["cni"]),
    ("os", &["cni"]),
    ("plugin", &["cni", "netlink", "os"]),
    ("pod", &["api", "cni", "leases", "liveness", "netlink", "os", "runtime"]),
    ("rules", &["cni", "netlink", "os"]),
    ("runtime", &["cni", "os"]),
    ("trace", &["cni", "liveness", "netlink", "rules", "runtime"]),
];

/// The crates of ours that every plugin may use.
const PLUGINS_MAY_USE: &[&str] = &["cni", "leases", "netlink", "os", "plugin", "rules"];

/// The additional crates of single plugins. cluster-local is host-local with another source of ranges.
const ONE_PLUGIN_MAY_USE: &[(&str, &str)] = &[("cnimble-cluster-local", "host-local")];

/// The crates with interfaces that change every month. Only one crate of ours uses each of them.
const NETLINK_CRATES: &[&str] = &["netlink-packet-core", "netlink-packet-route", "netlink-sys", "rtnetlink"];

/// Returns a package's dependencies, without those of its tests.
fn dependencies(package: &Value) -> Vec<&str> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|of| of["kind"].is_null()).map(|of| of["name"].as_str().unwrap()).collect()
}

/// Returns a package's dependencies on crates of ours, without the prefix.
fn ours(package: &Value) -> BTreeSet<&str> {
    dependencies(package).into_iter().filter_map(|name| name.strip_prefix("cnimble-")).collect()
}

/// Returns our packages below a folder.
fn below<'a>(packages: &'a [Value], folder: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let root = root().canonicalize().unwrap().join(folder);
    packages.iter().filter(move |package| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        package["source"].is_null() && manifest.starts_with(&root)
    })
}

#[test]
fn crates_depend_one_way() {
    let packages = packages();
    let mut met = BTreeSet::new();
    for (wing, _) in WINGS {
        for package in below(&packages, &format!("src/{wing}")) {
            let name = package["name"].as_str().unwrap().strip_prefix("cnimble-").unwrap();
            let (_, may) = MAY_USE.iter().find(|(of, _)| *of == name).expect(name);
            assert_eq!(ours(package), may.iter().copied().collect(), "cnimble-{name}");
            met.insert(name);
        }
    }
    assert_eq!(met, MAY_USE.iter().map(|(name, _)| *name).collect());
}

#[test]
fn wings_depend_one_way() {
    let packages = packages();
    let crates = |wing: &str| -> BTreeSet<String> {
        let found = below(&packages, &format!("src/{wing}"))
            .map(|package| package["name"].as_str().unwrap().to_owned());
        found.collect()
    };
    for (wing, may) in WINGS {
        let allowed: BTreeSet<String> = may.iter().chain([wing]).flat_map(|wing| crates(wing)).collect();
        for package in below(&packages, &format!("src/{wing}")) {
            for name in ours(package) {
                let name = format!("cnimble-{name}");
                assert!(allowed.contains(&name), "{wing}: {} needs {name}", package["name"]);
            }
        }
    }
    // The command is the only crate of `src/` outside the wings.
    let inside: usize = WINGS.iter().map(|(wing, _)| crates(wing).len()).sum();
    assert_eq!(inside + 1, below(&packages, "src").count());
}

#[test]
fn netlink_crates_stay_in_the_netlink_crate() {
    let packages = packages();
    for folder in ["src", "plugins", "ipam"] {
        for package in below(&packages, folder).filter(|package| package["name"] != "cnimble-netlink") {
            for name in NETLINK_CRATES {
                assert!(!dependencies(package).contains(name), "{} needs {name}", package["name"]);
            }
        }
    }
}

#[test]
fn plugins_need_neither_each_other_nor_the_invoker() {
    let packages = packages();
    let plugins: Vec<&Value> = below(&packages, "plugins").chain(below(&packages, "ipam")).collect();
    let (all, each): (Vec<&Value>, Vec<&Value>) =
        plugins.into_iter().partition(|package| package["name"] == "cnimble-plugins");
    assert!(all.len() == 1 && each.len() >= 9, "{} plugins", each.len());
    for package in &each {
        for name in ours(package) {
            let alone = (package["name"].as_str().unwrap(), name);
            let may = PLUGINS_MAY_USE.contains(&name) || ONE_PLUGIN_MAY_USE.contains(&alone);
            assert!(may, "{} needs cnimble-{name}", package["name"]);
        }
    }
    // The binary contains every folder's plugin.
    let names: BTreeSet<&str> = each
        .iter()
        .map(|package| package["name"].as_str().unwrap().strip_prefix("cnimble-").unwrap())
        .collect();
    let mut linked = ours(all[0]);
    linked.retain(|name| !PLUGINS_MAY_USE.contains(name));
    assert_eq!(linked, names);
}

/// The tests of every plugin build these crates. Others of the harness are behind features.
const HARNESS_NEEDS: &[&str] = &["cnimble-cni", "libc", "nix", "regex-lite", "serde_json", "tempfile"];

#[test]
fn the_harness_of_plugins_is_built_fast() {
    let packages = packages();
    let harness = packages.iter().find(|package| package["name"] == "cnimble-tests").unwrap();
    let all = harness["dependencies"].as_array().unwrap().iter();
    let needed = all.filter(|of| of["kind"].is_null() && of["optional"] == false);
    assert_eq!(needed.map(|of| of["name"].as_str().unwrap()).collect::<Vec<_>>(), HARNESS_NEEDS);
}

/// Returns a list of deny.toml: the texts between the brackets after `key = `.
fn listed(key: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ["))).expect(key);
    let inside = line.split(']').next().unwrap();
    inside.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the packages of the product and its tests, as cargo knows them offline.
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

/// Returns true if the allowed licences satisfy an SPDX expression.
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

/// The crates that are published on the registry: the protocol, libcni, the plugin kit, and their dependencies.
const PUBLISHED: [&str; 5] = ["cni", "netlink", "os", "plugin", "runtime"];

#[test]
fn only_the_libraries_are_published() {
    let packages = packages();
    let ours = packages.iter().filter(|package| package["source"].is_null() && package["publish"].is_null());
    let names =
        ours.clone().map(|package| package["name"].as_str().unwrap().strip_prefix("cnimble-").unwrap());
    let published: BTreeSet<&str> = names.collect();
    assert_eq!(published, PUBLISHED.into());
    for package in ours {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let library = std::fs::read_to_string(manifest.with_file_name("src/lib.rs")).unwrap();
        assert!(library.contains("#![warn(missing_docs)]"), "{}", manifest.display());
    }
}

/// Returns the names of the dependencies of each package in a lock file that comes from no registry.
fn locked_dependencies(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut own = BTreeMap::new();
    for package in lock.split("[[package]]\n").skip(1).filter(|package| !package.contains("\nsource = ")) {
        let name = package.lines().next().and_then(|line| line.split('"').nth(1)).unwrap();
        // A name that is there in two versions is followed by one of these.
        let entries = package.lines().filter_map(|line| line.strip_prefix(" \"")?.split([' ', '"']).next());
        own.insert(name, entries.collect());
    }
    own
}

/// The fuzzers are a workspace of their own, so that a new dependency of a crate is due in their lock file, too.
#[test]
fn the_fuzzers_lock_file_has_the_dependencies_of_each_crate() {
    let lock = std::fs::read_to_string(root().join("fuzz/Cargo.lock")).unwrap();
    let locked = locked_dependencies(&lock);
    let mut due = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let Some(locked) = locked.get(name).filter(|_| package["source"].is_null()) else { continue };
        // Cargo locks an optional dependency if its feature is on, and no dependency of tests.
        let declared = package["dependencies"].as_array().unwrap();
        let needed = declared
            .iter()
            .filter(|dependency| dependency["kind"] != "dev" && dependency["optional"] == false);
        for dependency in needed.filter_map(|dependency| dependency["name"].as_str()) {
            if !locked.contains(dependency) {
                due.push(format!("{name}'s dependency {dependency}"));
            }
        }
    }
    let command = "cargo update -w --manifest-path fuzz/Cargo.toml";
    assert!(due.is_empty(), "fuzz/Cargo.lock lacks {}; run {command}", due.join(", "));
}

/// The packages have the version of Cargo.toml, so that a release is named in one place.
#[test]
fn versions_agree() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let stated = |line: &str| Some(line.split_once("version = \"")?.1.split_once('"')?.0.to_owned());
    let version = manifest.lines().find(|line| line.starts_with("version = ")).and_then(stated).unwrap();
    for line in manifest.lines().filter(|line| line.starts_with("cnimble-") && line.contains("path = ")) {
        assert_eq!(stated(line).as_ref(), Some(&version), "{line}");
    }
    for package in packages().iter().filter(|package| package["source"].is_null()) {
        assert_eq!(package["version"], *version, "{}", package["name"]);
    }
    let log = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let mut releases = log.lines().filter_map(|line| line.strip_prefix("## [")?.split_once(']'));
    let newest = releases.find(|(name, _)| *name != "Unreleased").unwrap().0;
    assert_eq!(newest, version, "the newest release of CHANGELOG.md");
    let line = "source scripts/lib.sh; package_version";
    let output = Command::new("bash").args(["-euc", line]).current_dir(root()).output().unwrap();
    let package = String::from_utf8(output.stdout).unwrap();
    assert_eq!(package.trim().split('+').next(), Some(&*version), "the version of scripts/package");
}

/// A crate from another source than crates.io has had no review.
#[test]
fn every_crate_is_from_the_registry() {
    for package in packages() {
        let source = package["source"].as_str().unwrap_or_default();
        let known =
            source.is_empty() || source.starts_with("registry+https://github.com/rust-lang/crates.io-index");
        assert!(known, "{}: {source}", package["name"]);
    }
}
