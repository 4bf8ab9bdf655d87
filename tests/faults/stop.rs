//! A child program hangs in the middle of a verb that is told to stop. The verb kills and reaps it, undoes its work and
//! prints one error.
//!
//! Everything that hangs here hangs for ever. A verb that waits for it fails the test.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Background, Host, LIMIT, Network, Outcome, PATIENCE, Pod, Snapshot, announce, configs, need,
    plugin_dir, script, wait_until,
};

/// A replacement for a program that records its process ID and hangs.
struct Trap {
    bin: PathBuf,
    seen: PathBuf,
}

impl Trap {
    /// Creates a program `name` that hangs if the shell condition `when` is true, and otherwise runs `otherwise`. With
    /// `deaf` it ignores SIGTERM.
    fn new(host: &Host, name: &str, when: &str, otherwise: &str, deaf: bool) -> Self {
        let trap = Trap { bin: host.dir().join("bin"), seen: host.dir().join("seen") };
        std::fs::create_dir_all(&trap.bin).unwrap();
        let ignore = if deaf { "trap '' TERM" } else { "" };
        let text = format!(
            "#!/bin/sh\nif {when}; then\n{ignore}\necho $$ >>{}\nexec sleep infinity\nfi\n{otherwise}\n",
            trap.seen.display()
        );
        script(&trap.bin.join(name), &text);
        trap
    }

    /// Returns the processes that are or were in the trap.
    fn pids(&self) -> Vec<i32> {
        let seen = std::fs::read_to_string(&self.seen).unwrap_or_default();
        seen.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// Starts a verb, waits until it is in the trap, and tells it to stop.
#[track_caller]
fn stopped(host: &Host, trap: &Trap, verb: &str, att: &Attachment, config: &Value) -> Outcome {
    let path = format!("{}:{}", trap.bin.display(), plugin_dir().display());
    let stdin = host.dir().join("stdin");
    std::fs::write(&stdin, config.to_string()).unwrap();
    let mut command = host.command(plugin_dir().join(config["type"].as_str().unwrap()));
    command.env_clear().env("CNI_COMMAND", verb).env("CNI_CONTAINERID", &att.id).env("CNI_NETNS", &att.netns);
    command.env("CNI_IFNAME", &att.ifname).env("CNI_PATH", &path);
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", trap.bin.display()));
    command.stdin(std::fs::File::open(&stdin).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut plugin = Background::start(&mut command);
    assert!(wait_until(PATIENCE, || !trap.pids().is_empty() || !plugin.running()), "it never came there");
    assert!(plugin.running(), "{verb} ended before it was told to");
    let begun = Instant::now();
    kill(Pid::from_raw(i32::try_from(plugin.pid()).unwrap()), Signal::SIGTERM).unwrap();
    let outcome = Outcome::from(verb, plugin.finish(LIMIT));
    announce("NOTE", &format!("{verb} ended after {} ms", begun.elapsed().as_millis()));
    for pid in trap.pids() {
        // It was reaped, or it would still be a zombie of this process. A child without a parent is inherited by init.
        assert!(!is_alive(pid), "process {pid} is still there");
    }
    std::fs::remove_file(&trap.seen).unwrap();
    outcome
}

fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_delegate_that_hangs_is_ended_with_the_verb() {
    need!("ip", "nft");
    let mut undone = 0;
    for deaf in [false, true] {
        for hangs in ["true", "test $CNI_COMMAND != DEL"] {
            let host = Host::hasty();
            let pod = Pod::new();
            let before = Snapshot::of(&host);
            let calls = host.dir().join("calls");
            let otherwise = format!("echo $CNI_COMMAND >>{}", calls.display());
            let trap = Trap::new(&host, "hangs", hangs, &otherwise, deaf);
            let config = json!({"cniVersion": "1.1.0", "name": "n", "type": "bridge", "bridge": "br0",
                "ipam": {"type": "hangs"}});
            let att = Attachment::new("c1", &pod);
            let before_these = undone;
            for verb in ["ADD", "DEL", "GC", "STATUS"] {
                if verb == "DEL" && hangs != "true" {
                    continue;
                }
                let mut config = config.clone();
                config["cni.dev/valid-attachments"] = json!([]);
                let outcome = stopped(&host, &trap, verb, &att, &config);
                let error = outcome.error();
                assert_eq!(error.code, 11, "{verb}: {}", error.all());
                assert!(error.all().contains("SIGTERM"), "{}", error.all());
                assert_eq!(pod.links(), ["lo"], "{verb}");
                before.assert_same(&Snapshot::settled(&host), verb);
                // Its work has been undone. If the undo hangs, too, the error says so.
                let left = error.all().contains("left behind: could not call DEL of delegate hangs");
                // On a busy machine the time after the signal may end before DEL does.
                let is_late = error.all().contains("no time left");
                assert_eq!(left, verb == "ADD" && (hangs == "true" || is_late), "{}", error.all());
                undone += u32::from(verb == "ADD" && !left);
            }
            let calls = std::fs::read_to_string(&calls).unwrap_or_default();
            match hangs {
                "true" => assert_eq!(calls, ""),
                _ if undone > before_these => assert_eq!(calls, "DEL\n"),
                _ => {}
            }
        }
    }
    assert!(undone > 0, "no ADD was undone in time");
}

/// iptables waits for a lock that another process holds.
#[test]
fn iptables_that_hangs_is_ended_with_the_verb() {
    need!("ip", "nft", "iptables");
    for deaf in [false, true] {
        let host = Host::hasty();
        let pod = Pod::new();
        let before = Snapshot::of(&host);
        let att = Attachment::new("c1", &pod);
        let net = Network::new(&host, configs::v4(&host))
            .with("/ipMasq", json!(true))
            .with("/ipMasqBackend", json!("iptables"));
        let trap = Trap::new(&host, "iptables-restore", "true", "", deaf);
        let error = stopped(&host, &trap, "ADD", &att, &net.config).error();
        assert_eq!(error.code, 11, "{}", error.all());
        assert_eq!(pod.links(), ["lo"]);
        let now = Snapshot::settled(&host).without_lines("last_reserved_ip");
        before.without_lines("last_reserved_ip").assert_same(&now, "after ADD");
        std::fs::remove_file(trap.bin.join("iptables-restore")).unwrap();
        net.deleted(&att, None);
    }
}

/// The user may have only one process, so neither a thread nor a delegate can be started.
#[test]
fn no_thread_and_no_process_to_be_had_is_an_error() {
    need!("ip", "prlimit", "setpriv");
    let host = Host::new();
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    script(&bin.join("fine"), "#!/bin/sh\nexec cat >/dev/null\n");
    for dir in [host.dir(), &bin] {
        std::os::unix::fs::chown(dir, Some(USER), None).unwrap();
    }
    // More than a pipe holds.
    let config = json!({"cniVersion": "1.1.0", "name": "n", "type": "bridge", "ipam": {"type": "fine"},
        "x": "x".repeat(1 << 20)});
    let user = format!("--reuid={USER}");
    for (processes, status) in [(1, 1), (2, 0)] {
        let limit = format!("--nproc={processes}");
        let call = host.call("bridge").command("STATUS").config(&config).env("CNI_PATH", &bin);
        let outcome = call
            .under(&[
                "prlimit",
                &limit,
                "setpriv",
                &user,
                "--clear-groups",
                "--inh-caps=+net_admin",
                "--ambient-caps=+net_admin",
            ])
            .run();
        assert_eq!(outcome.status, status, "{processes}: {}", outcome.describe());
        if status == 1 {
            let error = outcome.error();
            assert_eq!(error.code, 104, "{}", error.all());
            assert!(error.all().contains("starting delegate"), "{}", error.all());
        }
    }
}

/// A user without any other process on the machine.
const USER: u32 = 1_987_654;
