//! Tests that an attachment is ended although no `teardown` comes, or not the right one.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use cnimble_tests::{LIMIT, Node, Outcome, PATIENCE, command, plugin_dir, run_limited, wait_until};

use crate::{Container, Driver, RECORDS, cni_network};

/// netavark before 2.1 calls no driver when the namespace is gone.
#[test]
fn a_dead_container_is_ended_by_the_next_call() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = driver.create(&json!({"subnets": [{"subnet": "10.89.7.0/24"}]}));
    let address = json!({"static_ips": ["10.89.7.9"]});
    let dead = Container::new(&node, "dead", &network, &address).publish(8080);
    driver.setup(&dead);
    end_namespace(&node, "dead");
    assert!(node.nft("list ruleset").contains("8080"), "nobody has removed the port yet");
    // podman gives the address and the port to the next container.
    let next = Container::new(&node, "next", &network, &address).publish(8080);
    driver.setup(&next);
    let records = driver.records();
    assert!(records.len() == 1 && records[0].contains("next"), "{records:?}");
    driver.teardown(&next);
    driver.assert_nothing_left();
}

/// Removes a container's namespace, and waits until the kernel has removed its interface. Until then the host's end of
/// the pair shows that the container lives.
fn end_namespace(node: &Node, name: &str) {
    node.sh(&format!("ip netns del {name}"));
    let is_gone = || !node.sh("ip -oneline link show type veth").contains("veth");
    assert!(wait_until(PATIENCE, is_gone));
}

/// A user can't look into the namespaces of root's processes, and so has less evidence.
#[test]
fn a_dead_container_of_a_user_is_ended_by_the_next_call() {
    cnimble_tests::need!("ip", "setpriv", "unshare");
    let node = Node::new();
    let driver = Driver::new(&node);
    // The user needs programs that it may read.
    let dir = tempfile::Builder::new().prefix("cnimble-test-").tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    cnimble_tests::copy(command(), &dir.path().join("cni"));
    for plugin in ["bridge", "static", "firewall"] {
        cnimble_tests::copy(&plugin_dir().join(plugin), &dir.path().join(plugin));
    }
    let mut network = driver.create(&json!({"subnets": [{"subnet": "10.89.7.0/24"}]}));
    network["options"] = json!({"plugin-dir": dir.path()});
    let address = json!({"static_ips": ["10.89.7.9"]});
    let mut lines = String::from("mount -t tmpfs none /run; mkdir /run/netns; ip link set lo up\n");
    for name in ["one", "two"] {
        let input = Container::new(&node, name, &network, &address).input;
        let end = if name == "one" { "ip netns del one" } else { "ls /run/cnimble/cni/results" };
        let program = dir.path().join("cni").display().to_string();
        lines += &format!(
            "ip netns add {name}; echo '{input}' | {program} setup /run/netns/{name} >/dev/null; {end}\n"
        );
        // The kernel removes the interface some time after the namespace.
        lines += "while ip -oneline link show type veth master br-web | grep -q .; do [ -e /run/netns/two ] && break; done\n";
    }
    let mut command = node.command("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "unshare",
        "--map-root-user",
        "--mount",
        "--net",
    ]);
    let output = run_limited(command.args(["sh", "-ec", &lines]), b"", LIMIT);
    let outcome = Outcome::from("rootless", output);
    if outcome.describe().contains("unshare failed") {
        cnimble_tests::skip!("no user namespaces here: {}", outcome.describe());
    }
    assert_eq!(outcome.success().text().trim(), "web-two0123456789abcdef-eth0");
}

/// podman starts no other container meanwhile, so a call must not wait for what may stay unknown for ever.
#[test]
fn a_container_that_may_live_is_waited_for_only_if_it_is_in_the_way() {
    cnimble_tests::need!("ip", "nft", "strace");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = driver.create(&json!({"subnets": [{"subnet": "10.89.7.0/24"}]}));
    let old = Container::new(&node, "old", &network, &json!({"static_ips": ["10.89.7.9"]})).publish(8080);
    driver.setup(&old);
    end_namespace(&node, "old");
    // An unknown namespace has its address, so it may live.
    let unknown = Container::new(&node, "unknown", &network, &json!({})).inside(&node);
    unknown.ip("addr add 10.89.7.9/32 dev lo");
    let looks = |address: &str, port: u16| {
        let next = Container::new(&node, &format!("next{port}"), &network, &json!({"static_ips": [address]}));
        let next = next.publish(port);
        let file = node.file("input.json", &next.input.to_string());
        let log = node.dir().join("log");
        let (log, file, program) = (log.display(), file.display(), driver.program.display());
        node.run(&format!("strace -qq -e trace=openat -o {log} {program} setup {} <{file}", next.netns));
        driver.teardown(&next);
        node.sh(&format!("grep -c '\"/proc\"' {log}"))
    };
    let (other, same_port) = (looks("10.89.7.10", 8081), looks("10.89.7.11", 8080));
    assert_eq!(other.trim(), "1", "a container that needs nothing of it");
    assert_eq!(same_port.trim(), "10", "a container with its port");
    assert_eq!(driver.records().len(), 1);
}

/// netavark 2.1 calls the driver although the namespace is gone. podman may call it twice.
#[test]
fn teardown_works_after_the_namespace_is_gone() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    for (network, address) in [
        (
            driver.create(&json!({"subnets": [{"subnet": "10.89.17.0/24"}]})),
            json!({"static_ips": ["10.89.17.9"]}),
        ),
        (driver.create(&json!({"options": {"network": "demo"}})), json!({})),
    ] {
        let one = Container::new(&node, "one", &network, &address).publish(8080);
        driver.setup(&one);
        end_namespace(&node, "one");
        driver.teardown(&one);
        driver.teardown(&one);
        driver.assert_nothing_left();
    }
    let leases = node.sh("ls /var/lib/cni/networks/demo");
    assert!(!leases.contains("10.89."), "{leases}");
}

/// After the restart of a machine no `teardown` comes. `cnimble gc` ends the attachments, too.
#[test]
fn a_dead_container_is_ended_by_gc() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = driver.create(&json!({"subnets": [{"subnet": "10.89.7.0/24"}]}));
    let dead = Container::new(&node, "dead", &network, &json!({"static_ips": ["10.89.7.9"]})).publish(8080);
    driver.setup(&dead);
    end_namespace(&node, "dead");
    node.sh(&format!("{} gc --gone web", command().display()));
    driver.assert_nothing_left();
}

#[test]
fn records_of_other_programs_stay() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    node.sh("ip netns add other");
    node.sh(&format!("{} add demo other --container-id other", command().display()));
    node.sh("ip netns del other");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    let one = Container::new(&node, "one", &network, &json!({}));
    driver.setup(&one);
    driver.teardown(&one);
    assert_eq!(driver.records(), ["demo-other-eth0"]);
}

#[test]
fn teardown_follows_the_record_and_needs_none() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    let network = driver.create(&json!({"subnets": [{"subnet": "10.89.7.0/24"}]}));
    let mut one = Container::new(&node, "one", &network, &json!({"static_ips": ["10.89.7.9"]})).publish(8080);
    driver.setup(&one);
    // podman's network was made anew with another description, and the port is no longer in the container's.
    one.input["network"]["subnets"] = json!([{"subnet": "10.90.7.0/24", "gateway": "10.90.7.1"}]);
    one.input["network"]["options"] = json!({"type": "ptp"});
    one.input["port_mappings"] = json!(null);
    driver.teardown(&one);
    driver.assert_nothing_left();
    let two = Container::new(&node, "two", &network, &json!({"static_ips": ["10.89.7.9"]})).publish(8080);
    driver.setup(&two);
    node.sh(&format!("rm {RECORDS}/*"));
    driver.teardown(&two);
    driver.assert_nothing_left();
}

/// podman calls `setup` again if it was killed between the two calls of a restart.
#[test]
fn setup_ends_what_the_container_has_before() {
    cnimble_tests::need!("ip", "nft");
    let node = Node::new();
    let driver = Driver::new(&node);
    cni_network(&node, "demo", "10.89.7.0/24");
    let network = driver.create(&json!({"options": {"network": "demo"}}));
    let one = Container::new(&node, "one", &network, &json!({})).publish(8080);
    driver.setup(&one);
    let answer = driver.setup(&one);
    assert_eq!(answer["interfaces"]["eth0"]["subnets"][0]["ipnet"], "10.89.7.3/24");
    assert_eq!(driver.records().len(), 1);
    driver.teardown(&one);
    driver.assert_nothing_left();
    let leases = node.sh("ls /var/lib/cni/networks/demo");
    assert!(!leases.contains("10.89."), "{leases}");
}
