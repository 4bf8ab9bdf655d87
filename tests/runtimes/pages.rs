//! Pastes the blocks of the quick starts for podman and containerd. The image has their name, because a test has no network.

use std::os::unix::fs::symlink;

use serde_json::json;

use cnimble_tests::containerd::{Cgroups, Containerd, oci_image};
use cnimble_tests::{Node, Podman, command};

/// Returns the lines of the blocks marked `sh pasted` of a page in docs/start. `cnimble` stands for the command under test.
fn pasted(node: &Node, page: &str) -> String {
    let dir = node.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    symlink(command(), dir.join("cnimble")).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/start");
    let text = std::fs::read_to_string(format!("{root}/{page}")).unwrap();
    let blocks = text.split("```").filter_map(|part| part.strip_prefix("sh pasted\n"));
    let lines: String = blocks.collect();
    assert!(lines.contains("cnimble "), "{page} has no blocks: {text}");
    format!("PATH={}:$PATH\n{lines}", dir.display())
}

#[test]
fn the_quick_start_with_podman_works() {
    need_runtime!("podman", "crun", "curl");
    let node = crate::node();
    need_cni_backend!(node);
    let podman = Podman::new(&node, "/etc/cni/net.d", "podman");
    podman.call("tag localhost/busybox docker.io/library/busybox");
    // The shell that calls podman goes on with the page's lines.
    podman.call(&format!("--version\n{}", pasted(&node, "podman.md")));
}

#[test]
fn the_quick_start_with_containerd_works() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let node = crate::node();
    let image = oci_image(&node, &node.rootfs(), &json!({"Env": ["PATH=/bin"]}));
    let _cgroups = Cgroups("default".into());
    let containerd = Containerd::start(&node, None);
    node.sh(&containerd.ctr(&format!("image import --snapshotter native {image}")));
    node.sh(&containerd.ctr("image tag localhost/busybox:latest docker.io/library/busybox:latest"));
    node.sh(&format!("export CONTAINERD_SNAPSHOTTER=native\n{}", pasted(&node, "containerd.md")));
}
