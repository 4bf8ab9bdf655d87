//! containerd, from Debian's package, by its own client.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use cnimble_tests::{Background, LIMIT, Node, PATIENCE, wait_until};

use crate::{PAUSE, assert_clean, network, outside};

/// containerd on a node.
pub(crate) struct Containerd<'n> {
    node: &'n Node,
    _daemon: Background,
}

pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

impl<'n> Containerd<'n> {
    /// Starts it; with CRI, if `cri` is that plugin's configuration.
    pub(crate) fn start(node: &'n Node, cri: Option<&str>) -> Self {
        let without = cri.map_or("\"io.containerd.grpc.v1.cri\",", |_| "");
        let cri = cri.unwrap_or_default();
        let dir = node.dir().display();
        let config = node.file(
            "containerd.toml",
            &format!(
                r#"
version = 2
root = "{dir}/root"
state = "/run/containerd"
disabled_plugins = [
    {without} "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
]
[grpc]
address = "{SOCKET}"
{cri}
"#
            ),
        );
        let log = std::fs::File::create(node.dir().join("log")).unwrap();
        let mut daemon = node.command("containerd");
        daemon.arg("--config").arg(config).stdin(Stdio::null());
        daemon.stdout(log.try_clone().unwrap()).stderr(log);
        let containerd = Containerd { node, _daemon: Background::start(&mut daemon) };
        let up = wait_until(PATIENCE, || node.run(&containerd.ctr("version")).status == 0);
        assert!(up, "containerd does not come up: {}", containerd.log());
        containerd
    }

    /// The line of shell that calls `ctr`.
    pub(crate) fn ctr(&self, args: &str) -> String {
        format!("ctr --address {SOCKET} {args}")
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.node.dir().join("log")).unwrap()
    }
}

/// An OCI image of a root file system with this `config`, as a tar that `ctr image import` takes.
pub(crate) fn oci_image(node: &Node, rootfs: &Path, config: &Value) -> String {
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
        "config": config,
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
pub(crate) struct Cgroups(pub(crate) String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let top = hierarchy.path().join(&self.0);
            wait_until(10.0, || {
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
fn containerd_with_its_own_client() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let group = format!("cnimble-test-{}", std::process::id());
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
    // One that stays. ctr calls DEL when it ends, as it runs in the foreground.
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
    // Another reaches it, and what is outside.
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
