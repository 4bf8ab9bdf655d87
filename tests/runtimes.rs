//! Real container runtimes on our plugins: podman and containerd, from Debian's packages,
//! each on a node of its own with our plugins as the only ones.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cnimble_tests::{Background, Node, Ns, Snapshot, leases, need, skip, wait_until};
use serde_json::{Value, json};

/// What a container does: nothing, until it is told to stop.
const PAUSE: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Dual stack with gateway and masquerade.
fn network(node: &Node, version: &str) -> Value {
    json!({
        "cniVersion": version,
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "br-pods",
            "isGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "capabilities": {"ips": true, "mac": true},
            "ipam": {
                "type": "host-local",
                "dataDir": node.data_dir(),
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                "ranges": [
                    [{"subnet": "10.88.7.0/24", "gateway": "10.88.7.1"}],
                    [{"subnet": "fd00:88:7::/64", "gateway": "fd00:88:7::1"}],
                ],
            },
        }],
    })
}

/// A machine beside the node that knows no way back to the pods.
fn outside(node: &Node) -> Ns {
    let outside = Ns::new();
    node.cable("uplink", &outside, "eth0");
    node.ip("addr add 192.0.2.1/24 dev uplink");
    node.ip("addr add 2001:db8:2::1/64 dev uplink nodad");
    outside.ip("addr add 192.0.2.2/24 dev eth0");
    outside.ip("addr add 2001:db8:2::2/64 dev eth0 nodad");
    outside
}

/// Nothing of any container is left on the node.
fn assert_clean(node: &Node) {
    let links = node.links();
    assert!(wait_until(3.0, || node.links() == ["br-pods", "lo", "uplink"]), "interfaces left: {links:?}");
    let left: Vec<String> = leases(&node.data_dir())
        .into_iter()
        .filter(|line| line.starts_with("pods/") && !line.starts_with("pods/ "))
        .filter(|line| !line.contains("last_reserved_ip") && !line.contains("/lock"))
        .collect();
    assert!(left.is_empty(), "leases left: {left:#?}");
    let state = Snapshot::of(node).without("leases").without("sysctl");
    // What a network's pods share may stay, as the bridge does.
    for host in (2..20).chain([77]) {
        for address in [format!("10.88.7.{host}"), format!("fd00:88:7::{host:x}")] {
            let rules = state.mentions(&address);
            assert!(rules.is_empty(), "rules left: {rules:#?}");
        }
    }
    let ids = state.lines_with("id: ");
    assert!(ids.is_empty(), "rules left: {ids:#?}");
}

/// The cgroup v2 hierarchy that some machines mount beside v1; podman needs one of the two.
fn no_cgroups() -> bool {
    !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() && !Path::new("/sys/fs/cgroup/pids").exists()
}

#[test]
fn podman() {
    need!("podman", "crun", "busybox", "ip", "nft", "unshare", "nsenter", "tar");
    if no_cgroups() {
        skip!("no cgroups are mounted");
    }
    let node = Node::new();
    let outside = outside(&node);
    let dir = node.dir().display().to_string();
    node.file("net.d/10-pods.conflist", &network(&node, "0.4.0").to_string());
    let containers = node.file(
        "containers.conf",
        &format!(
            r#"
[containers]
cgroups = "disabled"
default_sysctls = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
tmp_dir = "/run/libpod"
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "{dir}/net.d"
default_network = "pods"
"#
        ),
    );
    let storage = node.file(
        "storage.conf",
        &format!("[storage]\ndriver = \"vfs\"\nrunroot = \"/run/storage\"\ngraphroot = \"{dir}/graph\"\n"),
    );
    let podman = |args: &str| {
        node.sh(&format!(
            "export CONTAINERS_CONF={} CONTAINERS_STORAGE_CONF={}\npodman {args}",
            containers.display(),
            storage.display()
        ))
    };
    let rootfs = node.rootfs();
    node.sh(&format!("tar -C {} -cf {dir}/rootfs.tar .", rootfs.display()));
    podman(&format!("import --quiet {dir}/rootfs.tar localhost/busybox"));

    let run = |name: &str, more: &str| {
        podman(&format!(
            "run --detach --name {name} --network pods {more} localhost/busybox sh -c \"{PAUSE}\""
        ))
    };
    let one = run("one", "");
    run("two", "");
    run("three", "--ip 10.88.7.77 --mac-address 0a:58:00:00:00:77");
    // Each reaches the next over both families, the gateway, and what is outside.
    podman("exec one ping -c 1 -W 3 10.88.7.3");
    podman("exec one ping -c 1 -W 3 fd00:88:7::3");
    podman("exec two ping -c 1 -W 3 10.88.7.2");
    podman("exec two ping -c 1 -W 3 fd00:88:7::1");
    podman("exec two ping -c 1 -W 3 192.0.2.2");
    podman("exec one ping -c 1 -W 3 2001:db8:2::2");
    podman("exec one ping -c 1 -W 3 10.88.7.77");
    assert!(!outside.pings_once("10.88.7.2"), "the outside must not know a way in");
    let link = podman("exec three ip link show eth0");
    assert!(link.contains("0a:58:00:00:00:77"), "{link}");
    // The lease is in the reference's form.
    let lease = std::fs::read_to_string(node.data_dir().join("pods/10.88.7.2")).unwrap();
    assert_eq!(lease, format!("{one}\r\neth0"));
    // A container that is stopped gives its address back and gets one when it starts again.
    podman("stop --time 5 one");
    assert!(!node.data_dir().join("pods/10.88.7.2").exists());
    podman("start one");
    podman("exec one ping -c 1 -W 3 10.88.7.3");
    podman("rm --force --time 5 one two three");
    assert_clean(&node);
}

/// An OCI image of a root file system, as a tar that `ctr image import` takes.
fn oci_image(node: &Node, rootfs: &Path) -> String {
    let dir = node.dir().display().to_string();
    let blobs = format!("{dir}/image/blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    // Moves a file among the blobs; returns its descriptor.
    let blob = |file: &str, media: &str| {
        let digest = node.sh(&format!("sha256sum {dir}/{file} | cut -d' ' -f1"));
        let path = format!("{blobs}/{digest}");
        std::fs::rename(format!("{dir}/{file}"), &path).unwrap();
        let size = std::fs::metadata(&path).unwrap().len();
        let media = format!("application/vnd.oci.image.{media}");
        json!({"mediaType": media, "digest": format!("sha256:{digest}"), "size": size})
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    node.sh(&format!("tar -C {} -cf {dir}/layer .", rootfs.display()));
    let layer = blob("layer", "layer.v1.tar");
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    node.file("config", &config.to_string());
    let config = blob("config", "config.v1+json");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    node.file("manifest", &manifest.to_string());
    let mut manifest = blob("manifest", "manifest.v1+json");
    manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
    manifest["annotations"] = json!({"io.containerd.image.name": "localhost/busybox:latest"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    node.file("image/index.json", &index.to_string());
    node.file("image/oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    node.sh(&format!("tar -C {dir}/image -cf {dir}/image.tar ."));
    format!("{dir}/image.tar")
}

/// Removes the cgroups that runc leaves behind, also when the test fails.
struct Cgroups(String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let top = hierarchy.path().join(&self.0);
            wait_until(2.0, || {
                for group in std::fs::read_dir(&top).into_iter().flatten().flatten() {
                    let _ = std::fs::remove_dir(group.path());
                }
                let _ = std::fs::remove_dir(&top);
                !top.exists()
            });
        }
    }
}

#[test]
fn containerd() {
    need!("containerd", "ctr", "runc", "busybox", "ip", "nft", "unshare", "nsenter", "tar", "sha256sum");
    if no_cgroups() {
        skip!("no cgroups are mounted");
    }
    let group = format!("cnimble-test-{}", std::process::id());
    let _cgroups = Cgroups(group.clone());
    let node = Node::new();
    let outside = outside(&node);
    let dir = node.dir().display().to_string();
    let image = oci_image(&node, &node.rootfs());
    let conflist = node.file("10-pods.conflist", &network(&node, "1.0.0").to_string());
    node.sh(&format!("cp {} /etc/cni/net.d/", conflist.display()));
    let config = node.file(
        "containerd.toml",
        &format!(
            r#"
version = 2
root = "{dir}/root"
state = "/run/containerd"
disabled_plugins = [
    "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
]
[grpc]
address = "/run/containerd/containerd.sock"
"#
        ),
    );
    let log = std::fs::File::create(node.dir().join("log")).unwrap();
    let mut daemon = node.command("containerd");
    daemon.arg("--config").arg(config).stdin(Stdio::null());
    daemon.stdout(log.try_clone().unwrap()).stderr(log);
    let _daemon = Background::start(&mut daemon);
    let ctr = |args: &str| format!("ctr --address /run/containerd/containerd.sock {args}");
    let up = wait_until(20.0, || node.run(&ctr("version")).status == 0);
    let log = || std::fs::read_to_string(node.dir().join("log")).unwrap();
    assert!(up, "containerd does not come up: {}", log());
    node.sh(&ctr(&format!("image import --snapshotter native {image}")));

    let run = |name: &str, command: &str| {
        ctr(&format!(
            "run --snapshotter native --cni --rm --cgroup {group}/{name} localhost/busybox:latest {name} sh -c \"{command}\""
        ))
    };
    // One that stays. ctr calls DEL when it ends, as it runs in the foreground.
    let mut server = node.command("sh");
    server
        .args(["-ec", &run("server", PAUSE)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let server = Background::start(&mut server);
    let lease = node.data_dir().join("pods/10.88.7.2");
    assert!(wait_until(20.0, || lease.exists()), "no lease: {}", log());
    assert_eq!(std::fs::read_to_string(&lease).unwrap(), "default-server\r\neth0");
    // Another reaches it, and what is outside.
    for target in ["10.88.7.2", "fd00:88:7::2", "fd00:88:7::1", "192.0.2.2", "2001:db8:2::2"] {
        let name = format!("to-{}", target.replace("::", "-").replace([':', '.'], "-"));
        let outcome = node.run(&run(&name, &format!("ping -c 1 -W 3 {target}")));
        assert_eq!(outcome.status, 0, "{target}: {}\n{}", outcome.describe(), log());
    }
    assert!(!outside.pings_once("10.88.7.2"), "the outside must not know a way in");
    node.sh(&ctr("task kill --signal SIGTERM server"));
    let output = server.finish(Duration::from_secs(20));
    assert!(output.status.success(), "{output:?}\n{}", log());
    assert_clean(&node);
}
