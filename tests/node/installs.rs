//! `cnimble-plugins --install` and `--uninstall`, which is how the image gets onto a node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::scripts::{Node, contents};

impl Node {
    /// Calls the binary itself.
    fn by_itself(&self, option: &str) -> Output {
        let mut command = Command::new(self.path("release/cnimble-plugins"));
        command.arg(option).arg(self.path("bin")).output().unwrap()
    }

    #[track_caller]
    fn by_itself_ok(&self, option: &str) -> String {
        let output = self.by_itself(option);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path("bin")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn the_binary_installs_itself_and_puts_back_what_it_replaced() {
    let node = Node::new();
    // As a process that was killed has left it.
    node.write("bin/.cnimble.bridge.1", "half");
    let before = contents(&node.path("bin"));
    let list =
        Command::new(node.path("release/cnimble-plugins")).arg("--list-plugins").output().unwrap().stdout;
    let plugins: BTreeSet<String> = String::from_utf8(list).unwrap().lines().map(str::to_owned).collect();

    for _ in 0..2 {
        node.by_itself_ok("--install");
        let mut expected = plugins.clone();
        expected.extend(["calico".to_owned(), ".replaced-by-cnimble".to_owned()]);
        assert_eq!(node.names(), expected);
        let bridge = fs::metadata(node.path("bin/bridge")).unwrap();
        assert_eq!((bridge.nlink() as usize, bridge.mode() & 0o7777), (plugins.len(), 0o755));
        assert_eq!(
            fs::read_to_string(node.path("bin/.replaced-by-cnimble/bridge")).unwrap(),
            "somebody's bridge"
        );
    }
    node.by_itself_ok("--uninstall");
    let mut expected = before;
    expected.remove(&node.path("bin/.cnimble.bridge.1"));
    assert_eq!(contents(&node.path("bin")), expected);
    assert!(node.by_itself_ok("--uninstall").starts_with("nothing of ours"));
}

#[test]
fn the_script_takes_back_what_the_binary_installed_and_the_other_way_round() {
    let node = Node::new();
    node.write("release/cnimble", "#!/bin/sh\nexit 0\n");
    let before = contents(&node.path("bin"));
    node.by_itself_ok("--install");
    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);
    node.install_ok(&["--no-command"]);
    node.by_itself_ok("--uninstall");
    assert_eq!(contents(&node.path("bin")), before);
}

#[test]
fn the_program_of_cluster_local_comes_along_if_it_lies_beside_the_binary() {
    let node = Node::new();
    node.write("bin/cluster-local-etcd", "somebody's");
    let before = contents(&node.path("bin"));
    let now = || fs::read_to_string(node.path("bin/cluster-local-etcd")).unwrap();
    for version in ["one", "two"] {
        node.write("release/cluster-local-etcd", version);
        assert!(node.by_itself_ok("--install").contains("bin/cluster-local-etcd\n"));
        assert_eq!(now(), version);
        let mode = fs::metadata(node.path("bin/cluster-local-etcd")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o755);
        let kept = node.path("bin/.replaced-by-cnimble/cluster-local-etcd");
        assert_eq!(fs::read_to_string(kept).unwrap(), "somebody's");
    }
    node.by_itself_ok("--uninstall");
    assert_eq!(contents(&node.path("bin")), before);
    node.by_itself_ok("--install");
    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);

    // A binary without one leaves what is there.
    fs::remove_file(node.path("release/cluster-local-etcd")).unwrap();
    assert!(node.by_itself_ok("--install").contains("cluster-local-etcd stays as it is"));
    assert_eq!(now(), "somebody's");
    node.by_itself_ok("--uninstall");
    assert_eq!(contents(&node.path("bin")), before);
}

#[test]
fn a_directory_under_a_plugins_name_is_an_error_and_changes_nothing() {
    let node = Node::new();
    fs::create_dir(node.path("bin/vlan")).unwrap();
    fs::write(node.path("bin/vlan/file"), "").unwrap();
    let before = contents(&node.path("bin"));
    let output = node.by_itself("--install");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("vlan is a directory"), "{text}");
    assert_eq!(contents(&node.path("bin")), before);
}

#[test]
fn what_replaced_a_plugin_of_ours_since_is_left_alone() {
    let node = Node::new();
    node.by_itself_ok("--install");
    fs::remove_file(node.path("bin/bridge")).unwrap();
    node.write("bin/bridge", "a third one");
    assert!(node.by_itself_ok("--uninstall").contains("bridge, which is not ours any more"));
    assert_eq!(fs::read_to_string(node.path("bin/bridge")).unwrap(), "a third one");
    assert_eq!(
        fs::read_to_string(node.path("bin/.replaced-by-cnimble/bridge")).unwrap(),
        "somebody's bridge"
    );
    assert!(!node.path("bin/vlan").exists());
}

#[test]
fn callers_find_a_plugin_at_any_moment_of_an_install() {
    let node = Node::new();
    node.by_itself_ok("--install");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut calls = 0;
            while !done.load(Ordering::Acquire) || calls == 0 {
                let mut plugin = Command::new(node.path("bin/vrf"));
                let output = plugin.env("CNI_COMMAND", "VERSION").output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                calls += 1;
            }
        });
        for _ in 0..20 {
            node.by_itself_ok("--install");
        }
        done.store(true, Ordering::Release);
        caller.join().unwrap();
    });
}
