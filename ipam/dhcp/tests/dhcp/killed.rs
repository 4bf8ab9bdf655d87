//! A verb is killed at a system call, or a call fails. Its lease daemon continues.

use std::process::Stdio;

use cnimble_tests::trace::{self, Fate, Syscall};
use cnimble_tests::{Background, plugin_dir, skip};
use nix::errno::Errno;

use super::*;

/// CNIMBLE_STRESS=all tests every point.
fn step() -> usize {
    if std::env::var("CNIMBLE_STRESS").is_ok_and(|all| all == "all") { 1 } else { 19 }
}

/// Outside of the traced process, which is killed.
fn start_daemon(host: &Host) -> Background {
    let mut command = host.command(plugin_dir().join("dhcp"));
    command.args(["daemon", "-socketpath"]).arg(socket(host)).stdin(Stdio::null()).stderr(Stdio::null());
    let daemon = Background::start(&mut command);
    assert!(wait_until(PATIENCE, || socket(host).exists()));
    daemon
}

/// dhcp alone, and a pod with its interface.
fn site(host: &Host) -> (Network<'_>, Pod, Attachment) {
    let pod = Pod::new();
    host.cable("port", &pod, "eth0");
    host.ip("link set port master br0");
    let mut network = network(host);
    network.config["type"] = json!("dhcp");
    let attachment = Attachment::new("c1", &pod);
    (network, pod, attachment)
}

fn calls(network: &Network<'_>, verb: &str, attachment: &Attachment) -> Vec<Syscall> {
    network.call(verb, attachment, None).traced(&Fate::Watched).1.calls
}

#[test]
fn del_removes_all_after_a_killed_add() {
    if let Some(why) = trace::untraceable() {
        skip!("{why}");
    }
    let host = host();
    let (_daemon, _server) = (start_daemon(&host), server(&host));
    let (network, pod, attachment) = site(&host);
    let all = calls(&network, "ADD", &attachment).len();
    network.deleted(&attachment, None);
    assert!(all > 20, "{all} calls");
    for point in (0..all).step_by(step()) {
        network.call("ADD", &attachment, None).traced(&Fate::KilledAt(point));
        network.deleted(&attachment, None);
        // The daemon notices that the verb has disconnected.
        assert!(wait_until(PATIENCE, || lease_files(&host).is_empty()), "killed at {point}");
        assert_eq!(ipv4(&pod), [""; 0]);
    }
    let all = {
        network.added(&attachment);
        calls(&network, "DEL", &attachment).len()
    };
    for point in (0..all).step_by(step()) {
        network.added(&attachment);
        network.call("DEL", &attachment, None).traced(&Fate::KilledAt(point));
        network.deleted(&attachment, None);
        assert!(lease_files(&host).is_empty(), "DEL killed at {point}");
    }
}

#[test]
fn a_failed_add_releases_its_lease() {
    if let Some(why) = trace::untraceable() {
        skip!("{why}");
    }
    let host = host();
    let (_daemon, _server) = (start_daemon(&host), server(&host));
    let (network, _pod, attachment) = site(&host);
    let all = calls(&network, "ADD", &attachment);
    network.deleted(&attachment, None);
    for Syscall { number, nth, .. } in all.iter().step_by(step()) {
        let fate = Fate::Told { call: *number, nth: *nth, error: Errno::EIO };
        let (outcome, traced) = network.call("ADD", &attachment, None).traced(&fate);
        let what = format!("call {number}, {nth}: {}", outcome.describe());
        assert!(!traced.hung, "{what}");
        if outcome.status == 0 {
            network.deleted(&attachment, None);
        }
        assert!(wait_until(PATIENCE, || lease_files(&host).is_empty()), "{what}");
    }
}
