//! Kills the driver with its plugins before one of their system calls. The next call finishes the work.
//!
//! Tries a few points of each call, and all with `CNIMBLE_STRESS=all`.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::json;

use cnimble_tests::trace::{Fate, Traced, run, untraceable};
use cnimble_tests::{LIMIT, Node, PATIENCE, sample_size, skip, wait_until};

use crate::{Container, Driver, cni_network, write};

/// Makes a call with this `fate`.
fn traced(driver: &Driver<'_>, verb: &str, container: &Container, fate: &Fate) -> Traced {
    let mut command = driver.node.command(driver.program.to_str().unwrap());
    let input = container.input.to_string();
    let traced = run(command.args([verb, &container.netns]), input.as_bytes(), fate, LIMIT);
    assert!(!traced.hung, "{verb} hung");
    traced
}

#[test]
fn a_killed_call_is_finished_by_the_next() {
    cnimble_tests::need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    let mut one = Container::new(&node, "one", &network, &json!({})).publish(8080);
    let next = Container::new(&node, "next", &network, &json!({})).publish(8080);
    for verb in ["setup", "teardown"] {
        if verb == "teardown" {
            driver.setup(&one);
        }
        let watched = traced(&driver, verb, &one, &Fate::Watched);
        assert!(watched.output.status.success(), "{verb}");
        driver.teardown(&one);
        let calls = watched.calls.len();
        let steps = sample_size(6).min(calls);
        let mut met = 0;
        for step in 0..steps {
            if verb == "teardown" {
                driver.setup(&one);
            }
            let point = calls * step / steps;
            let killed = traced(&driver, verb, &one, &Fate::KilledAt(point));
            let what = format!("{verb} killed at call {point} of {calls}");
            if step % 2 == 0 {
                driver.teardown(&one);
            } else {
                // The container is gone without a call. The next container's calls find what is left.
                node.sh("ip netns del one");
                // The kernel removes the namespace's links some time later, and until then they show a living one.
                let is_found = || {
                    driver.setup(&next);
                    driver.teardown(&next);
                    driver.records().is_empty()
                };
                assert!(wait_until(PATIENCE, is_found), "{what}");
                node.sh("ip netns add one");
            }
            met += usize::from(killed.met);
            assert_eq!(driver.records(), [""; 0], "{what}");
            driver.assert_nothing_left();
            let leases = node.sh("ls /var/lib/cni/networks/demo");
            assert!(!leases.contains("10.89."), "{what}: {leases}");
            one.input["container_id"] = json!(format!("one{verb}{step}"));
        }
        // A call can make fewer system calls than the one that was watched.
        assert!(met * 2 > steps, "{verb} was killed at {met} of {steps} points");
    }
}

/// Ctrl-C reaches the driver, but no plugin.
#[test]
fn an_interrupted_setup_ends_its_plugin_and_is_undone() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let list = json!({"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]});
    write(&node, "/etc/cni/net.d/slow.conflist".as_ref(), &list);
    std::fs::create_dir(node.dir().join("plugins")).unwrap();
    cnimble_tests::script(&node.dir().join("plugins/slow"), SLOW);
    let dir = node.dir().join("plugins");
    let network = driver.create(&json!({"options": {"network": "slow", "plugin-dir": dir}}));
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let one = Container::new(&node, "one", &network, &json!({}));
        let input = node.file("input.json", &one.input.to_string());
        let program = driver.program.display();
        // The shell becomes the driver, so its ID in the node's PID namespace is the driver's.
        let line = format!("echo $$ >/run/driver; exec {program} setup {} <{}", one.netns, input.display());
        let mut command = node.command("sh");
        let child = command.args(["-ec", &line]).stdout(Stdio::piped()).spawn().unwrap();
        assert!(wait_until(PATIENCE, || node.run("test -s /run/plugin").status == 0), "{signal}: no plugin");
        node.sh(&format!("kill -{} $(cat /run/driver)", signal as i32));
        let output = child.wait_with_output().unwrap();
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.contains("interrupted"), "{signal}: {answer}");
        assert_ne!(node.run("kill -0 $(cat /run/plugin)").status, 0, "{signal}: the plugin goes on");
        assert_eq!(node.sh("cat /run/deleted").trim(), "yes", "{signal}: no DEL");
        assert_eq!(driver.records(), [""; 0], "{signal}");
        node.sh("rm /run/plugin /run/deleted /run/driver; ip netns del one");
    }
}

/// An ADD of this plugin does not end.
const SLOW: &str = r#"#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD)
    echo $$ >/run/plugin
    exec sleep 1000000
    ;;
DEL) echo yes >/run/deleted ;;
esac
"#;
