//! Names and paths that are valid but similar to others, extremely long, or lead elsewhere. Invalid names are tested in
//! tests/each/bad_input.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, leases, need};

/// Returns a network of host-local alone.
fn ipam(host: &Host) -> Network<'_> {
    Network::new(host, configs::ipam(host))
}

#[test]
fn nobody_touches_the_lease_of_a_name_like_his() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let net = ipam(&host);
    let ids = ["a", "ab", "A", "a.b", "a-b", "a_b", "a-", "a..", "0a"];
    let ifnames = ["eth0", "eth", "eth00", "Eth0", "b-eth0"];
    let all: Vec<Attachment> =
        ids.iter().flat_map(|id| ifnames.iter().map(|name| Attachment::new(id, &pod).ifname(name))).collect();
    for att in &all {
        net.added(att);
    }
    let held =
        || -> Vec<String> { leases(&host.data_dir()).into_iter().filter(|line| is_lease(line)).collect() };
    assert_eq!(held().len(), all.len());
    for (gone, att) in all.iter().enumerate() {
        let before = held();
        net.deleted(att, None);
        let now = held();
        assert_eq!(now.len(), all.len() - gone - 1, "{att:?}");
        let lost: Vec<_> = before.iter().filter(|lease| !now.contains(lease)).collect();
        assert!(lost[0].contains(&format!("{}\\r\\n{}", att.id, att.ifname)), "{att:?}: {lost:?}");
    }
}

fn is_lease(line: &str) -> bool {
    line.contains("\\r\\n")
}

/// File names have at most 255 bytes, and many contain a container ID. A file that cannot have been created counts as
/// deleted. Otherwise no such pod could ever be deleted.
#[test]
fn names_that_are_too_long_for_a_file_fail_cleanly_and_can_be_deleted() {
    need!("ip", "nft");
    let host = Host::hasty();
    let pod = Pod::new();
    let before = Snapshot::of(&host);
    let long = "n".repeat(300);
    let mut config = configs::v4(&host);
    config["name"] = long.clone().into();
    let net = Network::new(&host, config);
    let att = Attachment::new("c1", &pod);
    let err = net.add(&att).error();
    assert_eq!(err.code, 5, "{}", err.all());
    net.deleted(&att, None);
    net.gc(Some(json!([]))).success();
    before.assert_same(&Snapshot::of(&host), "after a network with a long name");

    // The name of tuning's file contains the container ID.
    let prev = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "sandbox": pod.path()}]});
    let tuning = json!({"cniVersion": "1.0.0", "name": "net", "type": "tuning", "mtu": 1400,
        "dataDir": host.dir().join("tuning")});
    let net = Network::new(&host, tuning);
    let att = Attachment::new(&long, &pod).ifname("lo");
    assert_eq!(net.call("ADD", &att, Some(&prev)).run().error().code, 5);
    assert_eq!(pod.link("lo")["mtu"], 65536);
    net.deleted(&att, Some(&prev));
}

/// A lease that is longer than the read limit would never be found again.
#[test]
fn no_lease_is_written_that_cant_be_read() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let net = ipam(&host);
    for length in [4000, 4090, 4091, 4096, 5000, 100_000] {
        let att = Attachment::new(&"c".repeat(length), &pod);
        let outcome = net.add(&att);
        match outcome.status {
            0 => drop(outcome.result()),
            _ => assert_eq!(outcome.error().code, 4, "{}", outcome.describe()),
        }
        net.deleted(&att, None);
        let left: Vec<_> = leases(&host.data_dir()).into_iter().filter(|line| is_lease(line)).collect();
        assert!(left.is_empty(), "{length}: {left:.200?}");
    }
}

#[test]
fn namespaces_that_are_none() {
    need!("ip", "nft", "mkfifo");
    let host = Host::hasty();
    let before = Snapshot::of(&host);
    let at = |name: &str| host.dir().join(name).to_str().unwrap().to_owned();
    host.sh(&format!("mkfifo {}", at("pipe")));
    std::fs::write(at("file"), "").unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    symlink("/proc/self/ns/net", at("own")).unwrap();
    symlink("/proc/self/ns/user", at("user")).unwrap();
    symlink(at("pipe"), at("to-pipe")).unwrap();
    let paths = [
        at("pipe"),
        at("to-pipe"),
        at("file"),
        at("loop"),
        at("own"),
        at("user"),
        at("nowhere"),
        "/dev/zero".into(),
        "/dev/tty".into(),
        "/proc/self/fd/0".into(),
        "/proc/self/mem".into(),
        format!("/{}", "x/".repeat(3000)),
        "x".repeat(5000),
        "\n".into(),
        "$(reboot)".into(),
    ];
    for plugin in ["bridge", "ptp", "loopback"] {
        let mut config = configs::v4(&host);
        config["type"] = plugin.into();
        let net = Network::new(&host, config);
        for path in &paths {
            let call = net.call("ADD", &Attachment { netns: path.clone(), ..none() }, None);
            let err = call.run().error();
            assert_eq!(err.code, 8, "{plugin} in {path:.60}: {}", err.all());
            // DEL does not fail: the namespace may be gone, and its path may be anything.
            net.deleted(&Attachment { netns: path.clone(), ..none() }, None);
        }
    }
    before.assert_same(&Snapshot::of(&host), "after namespaces that are none");
}

fn none() -> Attachment {
    Attachment { id: "c1".into(), netns: String::new(), ifname: "eth0".into(), args: String::new() }
}

/// A type is always a file name in CNI_PATH.
#[test]
fn no_type_leads_out_of_the_plugin_path() {
    need!("ip", "nft");
    let host = Host::hasty();
    let pod = Pod::new();
    let before = Snapshot::of(&host);
    let proof = host.dir().join("proof");
    let evil = host.dir().join("evil");
    std::fs::write(&evil, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
    host.sh(&format!("chmod 755 {}", evil.display()));
    std::fs::create_dir(host.dir().join("bin")).unwrap();
    let up = host.dir().join("bin/../evil");
    let types: Vec<Value> = vec![
        json!("../evil"),
        json!("./../evil"),
        json!(evil),
        json!(up),
        json!("evil\u{0}"),
        json!("bin/../../evil"),
        json!("..%2fevil"),
        json!("evil "),
        json!("\\..\\evil"),
        json!("sh -c evil"),
        json!("x".repeat(5000)),
    ];
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for name in &types {
            let mut config = configs::v4(&host);
            config["ipam"]["type"] = name.clone();
            config["cni.dev/valid-attachments"] = json!([]);
            config["prevResult"] = json!({"cniVersion": configs::newest(), "interfaces": []});
            let path = host.dir().join("bin");
            let call = host.call("bridge").env("CNI_PATH", &path).command(verb);
            let outcome = call.attachment("c1", pod.path(), "eth0").config(&config).run();
            assert!(outcome.status == 0 || outcome.try_error().is_ok(), "{}", outcome.describe());
            assert!(outcome.status != 0 || verb == "DEL" || verb == "GC", "{}", outcome.describe());
            assert!(!proof.exists(), "{verb} with type {name} ran a file outside of CNI_PATH");
        }
    }
    before.assert_same(&Snapshot::of(&host), "after types that are none");
}

/// The administrator may choose any path, but it has to be usable.
#[test]
fn data_directories_that_are_none() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let at = |name: &str| host.dir().join(name);
    symlink(at("loop"), at("loop")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let long = format!("/{}", "y".repeat(300));
    for dir in
        [at("loop"), at("dangling"), at("file"), at(&long[1..]), "/proc/1/net".into(), "/dev/null".into()]
    {
        let net = ipam(&host).with("/ipam/dataDir", json!(dir));
        let att = Attachment::new("c1", &pod);
        let err = net.add(&att).error();
        assert!([5, 11].contains(&err.code), "{dir:?}: {}", err.all());
        // It cannot contain anything.
        let del = net.del(&att, None);
        assert!(del.status == 0 || dir == at("loop"), "{dir:?}: {}", del.describe());
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"");
    assert!(!at("nowhere").exists());
}
