//! Tests the scripts for users: install and demo.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cnimble_tests::{copy, need, plugin_dir, script as write_script, skip};

const KEPT: &str = ".replaced-by-cnimble";

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts")).join(name)
}

/// Returns the files below a directory, with details that distinguish a file from its copy.
pub(crate) fn contents(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            found.extend(contents(&path));
            continue;
        }
        let text = match fs::read_link(&path) {
            Ok(target) => format!("-> {}", target.display()),
            Err(_) => fs::read_to_string(&path).unwrap_or_else(|_| format!("binary of {} bytes", meta.len())),
        };
        let identity = format!("{} {:o} {} {text}", meta.ino(), meta.mode(), meta.mtime());
        found.insert(path, identity);
    }
    found
}

/// A node with foreign plugins and a release to install.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let node = Node { dir: tempfile::tempdir().unwrap() };
        for dir in ["bin", "release", "prefix"] {
            fs::create_dir(node.path(dir)).unwrap();
        }
        node.write("bin/bridge", "somebody's bridge");
        node.write("bin/calico", "somebody's calico");
        symlink("bridge", node.path("bin/loopback")).unwrap();
        copy(&plugin_dir().join("bridge"), &node.path("release/cnimble-plugins"));
        node.write("release/cnimble", "#!/bin/sh\necho version 1\n");
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write_script(&self.path(name), text);
    }

    /// Replaces a file with a new one, as package managers do.
    fn replace(&self, name: &str, bytes: &[u8]) {
        let (written, fresh) = (self.path("written"), self.path("fresh"));
        fs::write(&written, bytes).unwrap();
        copy(&written, &fresh);
        fs::remove_file(written).unwrap();
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(fresh, self.path(name)).unwrap();
    }

    /// Creates a newer release, which runs but has other bytes.
    pub(crate) fn upgrade(&self) -> Vec<u8> {
        let mut binary = fs::read(self.path("release/cnimble-plugins")).unwrap();
        binary.extend(b"newer");
        self.replace("release/cnimble-plugins", &binary);
        binary
    }

    pub(crate) fn install(&self, options: &[&str]) -> Output {
        self.command(options).output().unwrap()
    }

    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(script("install"));
        command
            .args(options)
            .arg("--prefix")
            .arg(self.path("prefix"))
            .arg("--from")
            .arg(self.path("release"))
            .arg(self.path("bin"));
        command
    }

    #[track_caller]
    pub(crate) fn install_ok(&self, options: &[&str]) {
        let output = self.install(options);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn install_links_all_names_and_uninstall_puts_everything_back() {
    let node = Node::new();
    let before = contents(node.dir.path());
    node.install_ok(&[]);
    let inode = |name: &str| fs::metadata(node.path(name)).unwrap().ino();
    for name in ["bin/host-local", "bin/loopback"] {
        assert_eq!(inode(name), inode("bin/bridge"), "{name}");
    }
    let about = Command::new(node.path("bin/host-local")).output().unwrap();
    assert!(String::from_utf8_lossy(&about.stderr).contains("host-local"), "{about:?}");
    assert!(node.path("prefix/bin/cnimble").exists());
    assert_eq!(fs::read_to_string(node.path("bin").join(KEPT).join("bridge")).unwrap(), "somebody's bridge");
    assert_eq!(fs::read_to_string(node.path("bin/calico")).unwrap(), "somebody's calico");

    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(node.dir.path()), before);
    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(node.dir.path()), before);
}

#[test]
fn installing_again_keeps_the_originals() {
    let node = Node::new();
    let before = contents(&node.path("bin"));
    node.install_ok(&[]);
    node.install_ok(&[]);
    let newer = node.upgrade();
    node.install_ok(&[]);
    assert_eq!(fs::read(node.path("bin/bridge")).unwrap(), newer);
    // An administrator copies an even newer plugin of cnimble by hand.
    let newest = node.upgrade();
    node.replace("bin/bridge", &newest);
    node.install_ok(&["--no-command"]);
    assert_eq!(fs::read_to_string(node.path("bin").join(KEPT).join("bridge")).unwrap(), "somebody's bridge");

    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);
    assert!(!node.path("prefix/bin/cnimble").exists());
}

/// The program of cluster-local is installed on request, then updated, and removed with the plugins.
#[test]
fn the_program_of_cluster_local_comes_when_asked_for_and_goes_with_the_rest() {
    let node = Node::new();
    let before = contents(&node.path("bin"));
    let output = node.install(&["--cluster"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cluster-local-store is missing"), "{output:?}");
    assert_eq!(contents(&node.path("bin")), before);

    node.write("release/cluster-local-store", "#!/bin/sh\necho 1\n");
    let installed = || fs::read_to_string(node.path("bin/cluster-local-store")).ok();
    node.install_ok(&[]);
    assert_eq!(installed(), None);
    node.install_ok(&["--cluster"]);
    assert_eq!(installed().unwrap(), "#!/bin/sh\necho 1\n");
    let former = || fs::read_link(node.path("bin/cluster-local-etcd")).unwrap();
    assert_eq!(former(), Path::new("cluster-local-store"));
    let about = Command::new(node.path("bin/host-local")).output().unwrap();
    assert!(String::from_utf8_lossy(&about.stderr).contains("host-local"), "{about:?}");
    node.write("release/cluster-local-store", "#!/bin/sh\necho 2\n");
    node.install_ok(&[]);
    assert_eq!(installed().unwrap(), "#!/bin/sh\necho 2\n");
    assert_eq!(former(), Path::new("cluster-local-store"));
    // A release without the program keeps the installed one.
    fs::remove_file(node.path("release/cluster-local-store")).unwrap();
    node.install_ok(&[]);
    assert_eq!(installed().unwrap(), "#!/bin/sh\necho 2\n");

    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);
}

#[test]
fn uninstall_leaves_what_somebody_else_has_put_there_since() {
    let node = Node::new();
    node.install_ok(&[]);
    node.replace("bin/bridge", b"somebody's new bridge");
    node.install_ok(&["--uninstall"]);
    assert_eq!(fs::read_to_string(node.path("bin/bridge")).unwrap(), "somebody's new bridge");
    assert!(!node.path("bin/host-local").exists());
    assert_eq!(fs::read_link(node.path("bin/loopback")).unwrap(), Path::new("bridge"));
}

#[test]
fn a_dry_run_changes_nothing() {
    let node = Node::new();
    let before = contents(node.dir.path());
    node.install_ok(&["--dry-run"]);
    assert_eq!(contents(node.dir.path()), before);
    node.install_ok(&[]);
    let installed = contents(node.dir.path());
    node.install_ok(&["--dry-run", "--uninstall"]);
    assert_eq!(contents(node.dir.path()), installed);
}

#[test]
fn a_failed_install_says_why_and_changes_nothing() {
    let node = Node::new();
    fs::remove_file(node.path("release/cnimble")).unwrap();
    let before = contents(node.dir.path());
    let output = node.install(&[]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("release/cnimble is missing"), "{output:?}");
    assert_eq!(contents(node.dir.path()), before);
    assert!(!node.install(&["--frobnicate"]).status.success());
    assert_eq!(contents(node.dir.path()), before);
}

#[test]
fn the_demo_shows_pods_that_reach_each_other_and_leaves_nothing() {
    need!("ip", "nft", "ping", "unshare");
    if std::env::var_os("CNIMBLE_COMMAND").is_none() {
        skip!("CNIMBLE_COMMAND does not name the command; scripts/test sets it");
    }
    let output = Command::new(script("demo")).env("CNIMBLE_PLUGIN_DIR", plugin_dir()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.trim_end().lines().next_back().unwrap().starts_with("Success:"), "{text}");
}
