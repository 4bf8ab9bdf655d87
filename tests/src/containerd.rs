//! containerd, from Debian's package.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::{Background, Node, PATIENCE, wait_until};

/// containerd on a node.
pub struct Containerd<'n> {
    node: &'n Node,
    _daemon: Background,
}

/// Where it listens, on the node.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

impl<'n> Containerd<'n> {
    /// Starts it; with CRI, if `cri` is that plugin's configuration.
    ///
    /// # Panics
    /// If it doesn't come up.
    pub fn start(node: &'n Node, cri: Option<&str>) -> Self {
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
    pub fn ctr(&self, args: &str) -> String {
        format!("ctr --address {SOCKET} {args}")
    }

    /// The log of containerd.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.node.dir().join("log")).unwrap()
    }
}

/// An OCI image of a root file system with this `config`, as a tar that `ctr image import` takes.
pub fn oci_image(node: &Node, rootfs: &Path, config: &Value) -> String {
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
pub struct Cgroups(pub String);

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
