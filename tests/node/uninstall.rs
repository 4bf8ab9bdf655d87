//! Tests `scripts/install --uninstall` on a node with living pods. A script replaces `cnimble hand-over`, which has
//! tests with the command.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use cnimble_tests::{LIMIT, PATIENCE, run_limited, wait_until};

use crate::scripts::{Node, contents};

impl Node {
    /// Writes a substitute for `cnimble`. It records its arguments and the existing files, and then runs `then`.
    fn record(&self, then: &str) {
        let text = format!(
            "#!/bin/sh\n[ \"$*\" != 'hand-over --help' ] || exit 0\ncd {}\n\
             echo \"$* $(ls bin/host-local prefix/bin/cnimble 2>/dev/null | tr '\\n' ' ')\" >>calls\n{then}\n",
            self.dir.path().display()
        );
        self.write("release/cnimble", &text);
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        calls.lines().map(|line| line.trim().to_owned()).collect()
    }
}

#[test]
fn uninstall_hands_pods_over_before_the_plugins_go_and_once_more_afterwards() {
    let node = Node::new();
    node.record("");
    node.install_ok(&[]);
    node.install_ok(&["--dry-run", "--uninstall"]);
    assert_eq!(node.calls(), ["hand-over bin/host-local prefix/bin/cnimble"]);
    node.install_ok(&["--uninstall"]);
    let expected =
        ["hand-over --yes bin/host-local prefix/bin/cnimble", "hand-over --yes prefix/bin/cnimble"];
    assert_eq!(node.calls(), expected);
    assert!(!node.path("prefix/bin/cnimble").exists());
    assert!(!node.install(&["--force"]).status.success());
}

/// Returns the script that dpkg runs before it removes the command.
fn deb_prerm() -> String {
    include_str!("../../scripts/package.d/deb/cnimble.prerm").to_owned()
}

/// Returns the script that rpm runs before it removes the command.
fn rpm_preun() -> String {
    let spec = include_str!("../../scripts/package.d/rpm/cnimble.spec");
    let after = spec.split_once("\n%preun\n").unwrap().1;
    after.split_once("\n%").unwrap().0.to_owned()
}

/// Without its driver, podman can't remove a container.
#[test]
fn the_driver_of_podman_stays_while_a_container_uses_it() {
    let node = Node::new();
    node.record("");
    node.install_ok(&["--netavark"]);
    let driver = node.path("prefix/libexec/netavark/cni");
    assert_eq!(fs::read(&driver).unwrap(), fs::read(node.path("prefix/bin/cnimble")).unwrap());
    // A later install without the option renews it, too.
    node.record("# newer");
    fs::write(&driver, fs::read(node.path("release/cnimble-plugins")).unwrap()).unwrap();
    node.install_ok(&[]);
    assert!(fs::read_to_string(&driver).unwrap().contains("# newer"));
    assert!(!node.install(&["--netavark", "--no-command"]).status.success());
    let record = Path::new("/var/lib/cni/results/web-c0ffee-eth0");
    let write = |netns: &Path| {
        let args = r#"[["IgnoreUnknown","1"],["K8S_POD_NAME","shop"],["PODMAN_NETWORK","web"]]"#;
        let text = format!(r#"{{"kind":"cniCacheV1","netns":"{}","cniArgs":{args}}}"#, netns.display());
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        fs::write(record, text).unwrap();
    };
    write(&node.path("bin"));
    let installed = contents(node.dir.path());
    let output = node.install(&["--uninstall", "--force"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("driver cni: shop"), "{text}");
    assert_eq!(contents(node.dir.path()), installed);
    // The packages refuse it, too.
    for (script, removal, upgrade) in [(deb_prerm(), "remove", "upgrade"), (rpm_preun(), "0", "1")] {
        let run = |argument: &str| {
            std::process::Command::new("sh").args(["-c", &script, "sh", argument]).output().unwrap()
        };
        let output = run(removal);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("nothing was removed: shop."), "{removal}: {text}");
        assert!(run(upgrade).status.success(), "{upgrade}");
        write(&node.path("nothing"));
        assert!(run(removal).status.success(), "{removal}: a dead container");
        write(&node.path("bin"));
    }
    // That of a dead container is only a remainder.
    write(&node.path("nothing"));
    node.install_ok(&["--uninstall"]);
    fs::remove_dir_all("/var/lib/cni/results").unwrap();
    assert!(!driver.exists());
}

#[test]
fn uninstall_changes_nothing_if_pods_cant_be_handed_over_unless_it_is_forced() {
    let node = Node::new();
    let before = contents(node.dir.path());
    node.record("case $* in *--force*) ;; *) echo 'left network net, container c1'; exit 7 ;; esac");
    node.install_ok(&["--no-command"]);
    let installed = contents(node.dir.path());
    let output = node.install(&["--uninstall"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("left network net") && text.contains("--force"),
        "{text}"
    );
    assert_eq!(node.calls(), ["hand-over --yes bin/host-local"]);
    assert_eq!(contents(node.dir.path()), installed);
    node.install_ok(&["--uninstall", "--force"]);
    assert_eq!(node.calls(), ["hand-over --yes --force bin/host-local", "hand-over --yes --force"]);
    assert_eq!(
        contents(&node.path("bin")).len(),
        before.keys().filter(|path| path.starts_with(node.path("bin"))).count()
    );
}

/// A pod whose DEL has begun has no interface any more. The doctor can't know whether it lives until the DEL ends.
const BEGUN: &str =
    "left network net, container c1\n  why  it isn't known whether it lives: its DEL isn't done";

#[test]
fn uninstall_waits_for_verbs_that_have_begun() {
    let node = Node::new();
    let before = contents(&node.path("bin"));
    // The first call before the plugins go and the first one afterwards meet a DEL.
    let meets = "n=$(wc -l <calls); case $n in 1|3) echo \"$begun\"; exit 7 ;; esac";
    node.record(&format!("begun=\"{BEGUN}\"\n{meets}"));
    node.install_ok(&[]);
    node.install_ok(&["--uninstall"]);
    let (first, rest) =
        ("hand-over --yes bin/host-local prefix/bin/cnimble", "hand-over --yes prefix/bin/cnimble");
    assert_eq!(node.calls(), [first, first, rest, rest]);
    assert_eq!(contents(&node.path("bin")), before);
    assert!(!node.path("prefix/bin/cnimble").exists());
}

#[test]
fn uninstall_hands_the_others_over_and_says_what_is_back() {
    let node = Node::new();
    let before = contents(&node.path("bin"));
    // A pod that came between the two calls can't be handed over.
    node.record(
        "case $*,$(ls bin/host-local 2>/dev/null) in *--force*,) ;; *,) echo 'left network net, container c9'; exit 7 ;; esac",
    );
    node.install_ok(&[]);
    let output = node.install(&["--uninstall"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("left network net, container c9"), "{text}");
    assert!(
        text.contains("the plugins from before are back in") && text.contains("call this again"),
        "{text}"
    );
    assert!(!text.contains("stays as it is"), "{text}");
    let (first, rest) =
        ("hand-over --yes bin/host-local prefix/bin/cnimble", "hand-over --yes prefix/bin/cnimble");
    assert_eq!(node.calls(), [first, rest, "hand-over --yes --force prefix/bin/cnimble"]);
    let there = contents(&node.path("bin"));
    assert!(before.iter().all(|(path, content)| there.get(path) == Some(content)), "they are back");
    assert!(node.path("prefix/bin/cnimble").exists(), "the next call needs it");
    // The pod is deleted, and the next call passes.
    node.record("");
    fs::copy(node.path("release/cnimble"), node.path("prefix/bin/cnimble")).unwrap();
    node.install_ok(&["--uninstall"]);
    assert_eq!(contents(&node.path("bin")), before);
}

#[test]
fn uninstall_waits_for_plugins_that_are_at_work() {
    let node = Node::new();
    node.record("");
    node.install_ok(&[]);
    // This plugin waits for its configuration.
    let mut plugin = Command::new(node.path("bin/host-local"));
    plugin.env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", "eth0");
    plugin.env("CNI_PATH", node.path("bin")).stdin(Stdio::piped());
    plugin.stdout(Stdio::null()).stderr(Stdio::null());
    let mut plugin = plugin.spawn().unwrap();
    let exe = format!("/proc/{}/exe", plugin.id());
    let started = || fs::read_link(&exe).is_ok_and(|exe| exe.ends_with("host-local"));
    assert!(wait_until(PATIENCE, started));
    let mut uninstall = node.command(&["--uninstall"]).stdout(Stdio::null()).spawn().unwrap();
    assert!(wait_until(PATIENCE, || !node.path("bin/host-local").exists()));
    assert!(wait_until(PATIENCE, || fs::read_link(&exe)
        .is_ok_and(|exe| exe.to_string_lossy().ends_with("(deleted)"))));
    assert_eq!(node.calls(), ["hand-over --yes bin/host-local prefix/bin/cnimble"]);
    assert!(uninstall.try_wait().unwrap().is_none());
    drop(plugin.stdin.take());
    plugin.wait().unwrap();
    assert!(uninstall.wait().unwrap().success());
    assert_eq!(node.calls(), ["hand-over --yes prefix/bin/cnimble"]);
}

#[test]
fn uninstall_that_was_killed_anywhere_can_be_called_again() {
    let mut killed = 0;
    for call in 1.. {
        let node = Node::new();
        // A small binary of three plugins.
        node.write("release/cnimble-plugins", "#!/bin/sh\nprintf '%s\\n' bridge host-local loopback\n");
        let before = contents(&node.path("bin"));
        node.install_ok(&[]);
        // One of these programs makes each change.
        let counter = node.path("counter");
        fs::create_dir(node.path("met")).unwrap();
        for program in ["ln", "mv", "rm", "rmdir", "flock"] {
            let real = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
            let real = real.iter().find(|path| path.exists()).unwrap();
            let text = format!(
                "#!/bin/sh\nn=$(($(cat {count} 2>/dev/null || echo 0) + 1))\necho $n >{count}\n\
                 [ $n != {call} ] || kill -9 $PPID\nexec {real} \"$@\"\n",
                count = counter.display(),
                real = real.display(),
            );
            node.write(&format!("met/{program}"), &text);
        }
        let path = format!("{}:{}", node.path("met").display(), std::env::var("PATH").unwrap());
        let output = node.command(&["--uninstall"]).env("PATH", path).output().unwrap();
        node.install_ok(&["--uninstall"]);
        assert_eq!(contents(&node.path("bin")), before, "killed at change {call}");
        assert!(contents(&node.path("prefix")).is_empty(), "killed at change {call}");
        if output.status.success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 10, "only {killed} were killed");
}

/// A pipe has nothing to read without a writer.
#[test]
fn uninstall_puts_a_pipe_back_without_waiting_for_a_writer() {
    let node = Node::new();
    node.record("");
    let pipe = node.path("bin/bridge");
    fs::remove_file(&pipe).unwrap();
    mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    node.install_ok(&[]);
    node.install_ok(&[]);
    assert!(fs::metadata(&pipe).unwrap().is_file());
    let mut command = node.command(&["--uninstall"]);
    let output = run_limited(&mut command, b"", LIMIT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
}
