//! Tests containerd from Debian's package, with its own client.

use std::process::Stdio;

use serde_json::json;

use cnimble_tests::containerd::{Cgroups, Containerd, oci_image};
use cnimble_tests::{Background, LIMIT, PATIENCE, PAUSE, cgroup_name, wait_until};

use crate::{assert_clean, network, outside};

#[test]
fn containerd_with_its_own_client() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let group = cgroup_name("ctr");
    let _cgroups = Cgroups(group.clone());
    let node = crate::node();
    let outside = outside(&node);
    let image = oci_image(&node, &node.rootfs(), &json!({"Env": ["PATH=/bin"]}));
    let conflist = node.file("10-pods.conflist", &network(&node, "1.0.0").to_string());
    node.sh(&format!("cp {} /etc/cni/net.d/", conflist.display()));
    let containerd = Containerd::start(&node, None);
    let ctr = |args: &str| containerd.ctr(args);
    let log = || containerd.log();
    node.sh(&ctr(&format!("image import --snapshotter native {image}")));

    let run = |name: &str, command: &str| {
        ctr(&format!(
            "run --snapshotter native --cni --rm --cgroup {group}/{name} localhost/busybox:latest {name} sh -c \"{command}\""
        ))
    };
    // This container keeps running. ctr runs in the foreground and calls DEL at its end.
    let mut server = node.command("sh");
    server
        .args(["-ec", &run("server", PAUSE)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let server = Background::start(&mut server);
    let lease = node.data_dir().join("pods/10.88.7.2");
    assert!(wait_until(PATIENCE, || lease.exists()), "no lease: {}", log());
    assert_eq!(std::fs::read_to_string(&lease).unwrap(), "default-server\r\neth0");
    // Another container reaches it and the outside.
    for target in ["10.88.7.2", "fd00:88:7::2", "fd00:88:7::1", "192.0.2.2", "2001:db8:2::2"] {
        let name = format!("to-{}", target.replace("::", "-").replace([':', '.'], "-"));
        let outcome = node.run(&run(&name, &format!("ping -c 1 -W 60 {target}")));
        assert_eq!(outcome.status, 0, "{target}: {}\n{}", outcome.describe(), log());
    }
    assert!(outside.misses("10.88.7.2"), "the outside must not know a way in");
    node.sh(&ctr("task kill --signal SIGTERM server"));
    let output = server.finish(LIMIT);
    assert!(output.status.success(), "{output:?}\n{}", log());
    assert_clean(&node);
}
