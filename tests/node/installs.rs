//! Tests `cnimble-plugins --install` and `--uninstall`, which install the image on a node.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use cnimble_tests::{copy, need, skip};

use crate::scripts::{Node, contents};

impl Node {
    /// Calls the binary without the install script.
    pub(crate) fn by_itself(&self, option: &str) -> Output {
        self.binary(option).output().unwrap()
    }

    pub(crate) fn binary(&self, option: &str) -> Command {
        let mut command = Command::new(self.path("release/cnimble-plugins"));
        command.arg(option).arg(self.path("bin"));
        command
    }

    #[track_caller]
    pub(crate) fn by_itself_ok(&self, option: &str) -> String {
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
    // An unfinished file of a killed process.
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

/// Overwrites a plugin like another project, with `cp -f OTHER/loopback loopback` for example.
fn overwrite_loopback(node: &Node) {
    let mut file = fs::File::options().write(true).truncate(true).open(node.path("bin/loopback")).unwrap();
    file.write_all(b"another's loopback").unwrap();
}

/// Returns whether the other plugins stay cnimble's after another project has overwritten one of them.
fn others_stay(node: &Node) -> bool {
    let about = Command::new(node.path("bin/host-local")).output();
    about.is_ok_and(|about| String::from_utf8_lossy(&about.stderr).contains("CNI host-local plugin"))
}

#[test]
fn a_write_into_one_copy_leaves_the_other_plugins_as_they_are() {
    let node = Node::new();
    let before = contents(&node.path("bin"));
    for by_script in [false, true] {
        if by_script {
            node.install_ok(&["--no-command", "--copies"]);
        } else {
            let output = node.binary("--install").args(["--copies"]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let bridge = fs::metadata(node.path("bin/bridge")).unwrap();
        assert_eq!((bridge.nlink(), bridge.mode() & 0o7777), (1, 0o755));
        overwrite_loopback(&node);
        assert!(others_stay(&node));
        node.by_itself_ok("--uninstall");
        assert_eq!(fs::read_to_string(node.path("bin/loopback")).unwrap(), "another's loopback");
        // The other project removes its file, and the next call notices that.
        fs::remove_file(node.path("bin/loopback")).unwrap();
        node.by_itself_ok("--uninstall");
        assert_eq!(contents(&node.path("bin")), before);
    }
    // Hard links are one file. Copies avoid this.
    node.by_itself_ok("--install");
    overwrite_loopback(&node);
    assert!(!others_stay(&node));
}

#[test]
fn copies_share_blocks_where_the_file_system_can() {
    need!("mkfs.xfs", "mount");
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
    fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    fs::create_dir(&disk).unwrap();
    for (program, args) in [("mkfs.xfs", &["-q", "-m", "reflink=1"] as &[&str]), ("mount", &["-o", "loop"])] {
        let mut command = Command::new(program);
        command.args(args).arg(&image).args((program == "mount").then_some(&disk));
        let output = command.output().unwrap();
        if !output.status.success() {
            skip!("{program}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let node = Node::new();
    let size = fs::metadata(node.path("release/cnimble-plugins")).unwrap().len();
    let used = || {
        let stat = nix::sys::statvfs::statvfs(&disk).unwrap();
        (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
    };
    let before = used();
    let mut command = Command::new(node.path("release/cnimble-plugins"));
    let output = command.arg("--install").arg(disk.join("bin")).arg("--copies").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(disk.join("bin/bridge")).unwrap().nlink(), 1);
    let grown = used() - before;
    assert!(grown < 3 * size, "{grown} bytes for copies of {size}");
}

const LABEL: &CStr = c"security.selinux";

/// Returns the SELinux label of a file. A kernel without a policy keeps the attribute as it is.
fn label(path: &Path) -> Option<String> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = [0_u8; 64];
    // SAFETY: path and name end with a zero byte, and the kernel writes no more than the length of `value`.
    let length =
        unsafe { libc::lgetxattr(path.as_ptr(), LABEL.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let length = usize::try_from(length).ok()?;
    Some(String::from_utf8(value[..length].to_vec()).unwrap())
}

fn set_label(path: &Path, label: &str) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: path and name end with a zero byte, and the kernel reads no more than the length of `label`.
    let set =
        unsafe { libc::lsetxattr(path.as_ptr(), LABEL.as_ptr(), label.as_ptr().cast(), label.len(), 0) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn no_file_takes_a_label_from_where_it_was_built_and_kept_files_have_theirs() {
    need!();
    for by_script in [false, true] {
        let node = Node::new();
        node.write("release/cluster-local-store", "one");
        for (file, label) in [
            ("release/cnimble-plugins", "user_home_t"),
            ("release/cnimble", "user_home_t"),
            ("release/cluster-local-store", "user_home_t"),
            ("bin/bridge", "bin_t"),
        ] {
            if let Err(err) = set_label(&node.path(file), label) {
                skip!("no labels here: {err}");
            }
        }
        if by_script {
            node.install_ok(&["--cluster"]);
        } else {
            node.by_itself_ok("--install");
        }
        for file in ["bin/bridge", "bin/host-local", "bin/cluster-local-store", "bin/cluster-local-etcd"] {
            assert_eq!(label(&node.path(file)), None, "{file}, by_script: {by_script}");
        }
        assert_eq!(label(&node.path("bin/.replaced-by-cnimble/bridge")).as_deref(), Some("bin_t"));
        node.install_ok(&["--uninstall", "--force"]);
        assert_eq!(label(&node.path("bin/bridge")).as_deref(), Some("bin_t"));
    }
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
    for name in ["store", "etcd"] {
        node.write(&format!("bin/cluster-local-{name}"), "somebody's");
    }
    let before = contents(&node.path("bin"));
    let now = || fs::read_to_string(node.path("bin/cluster-local-store")).unwrap();
    for version in ["one", "two"] {
        node.write("release/cluster-local-store", version);
        assert!(node.by_itself_ok("--install").contains("bin/cluster-local-store\n"));
        assert_eq!(now(), version);
        let mode = fs::metadata(node.path("bin/cluster-local-store")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o755);
        let former = fs::read_link(node.path("bin/cluster-local-etcd")).unwrap();
        assert_eq!(former, Path::new("cluster-local-store"));
        for name in ["store", "etcd"] {
            let kept = node.path(&format!("bin/.replaced-by-cnimble/cluster-local-{name}"));
            assert_eq!(fs::read_to_string(kept).unwrap(), "somebody's");
        }
    }
    node.by_itself_ok("--uninstall");
    assert_eq!(contents(&node.path("bin")), before);
    node.by_itself_ok("--install");
    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);

    // A binary without the program keeps the existing one.
    fs::remove_file(node.path("release/cluster-local-store")).unwrap();
    assert!(node.by_itself_ok("--install").contains("cluster-local-store stays as it is"));
    assert_eq!(now(), "somebody's");
    node.by_itself_ok("--uninstall");
    assert_eq!(contents(&node.path("bin")), before);
}

/// A plugin of an earlier build finds the program at each moment, and a running program keeps its file.
#[test]
fn an_upgrade_puts_a_link_in_place_of_the_program_by_its_former_name() {
    for by_script in [false, true] {
        let node = Node::new();
        node.write("release/cnimble", "#!/bin/sh\nexit 0\n");
        let before = contents(&node.path("bin"));
        let former = node.path("bin/cluster-local-etcd");
        let run = |option: &str| match (by_script, option) {
            (false, _) => node.by_itself(option),
            (true, "--install") => node.install(&["--no-command"]),
            (true, _) => node.install(&[option]),
        };
        let earlier = || copy(&node.path("release/cnimble-plugins"), &former);
        assert!(run("--install").status.success());
        earlier();
        node.write("release/cluster-local-store", "new");
        let running = fs::File::open(&former).unwrap();
        let done = AtomicBool::new(false);
        let (output, always) = std::thread::scope(|scope| {
            let always = scope.spawn(|| {
                let mut found = true;
                while !done.load(Ordering::Relaxed) {
                    found &= former.is_file();
                }
                found
            });
            let output = run("--install");
            done.store(true, Ordering::Relaxed);
            (output, always.join().unwrap())
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(always, "by_script: {by_script}");
        assert_eq!(fs::read_link(&former).unwrap(), Path::new("cluster-local-store"));
        assert_eq!(fs::read_to_string(&former).unwrap(), "new");
        let (running, release) = (running.metadata().unwrap(), node.path("release/cnimble-plugins"));
        assert_eq!((running.nlink(), running.len()), (0, fs::metadata(release).unwrap().len()));

        // An earlier build keeps the link as another's file.
        let kept = node.path("bin/.replaced-by-cnimble/cluster-local-etcd");
        assert!(fs::symlink_metadata(&kept).is_err());
        fs::rename(&former, &kept).unwrap();
        earlier();
        assert!(run("--uninstall").status.success());
        assert_eq!(contents(&node.path("bin")), before, "by_script: {by_script}");
    }
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

/// Root executes what is installed, so nobody else may write there, with any umask of the caller.
#[test]
fn nobody_else_may_write_to_what_is_installed() {
    let node = Node::new();
    let without_mask = |command: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
        shell
    };
    let by_script = node.command(&[]);
    for (way, command) in [("script", by_script), ("binary", node.binary("--install"))] {
        let output = without_mask(&command).output().unwrap();
        assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
        let kept = node.path("bin/.replaced-by-cnimble");
        for path in [kept.clone(), kept.join("installed"), node.path("bin/host-local")] {
            let mode = fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o022, 0, "{way}: {} has mode {mode:o}", path.display());
        }
        if way == "script" {
            node.install_ok(&["--uninstall"]);
        }
    }
}
