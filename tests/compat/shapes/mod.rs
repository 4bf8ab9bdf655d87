//! Calls in the shapes that real runtimes send: podman, containerd, CRI-O, cri-dockerd,
//! ctr and the kubelet above them, as seen in their call logs.

mod del;
mod keys;
mod whose;

use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs};

/// Everything that leaves something on the host.
fn everything<'h>(host: &'h Host, version: &str) -> Network<'h> {
    Network::new(host, configs::dual(host))
        .with("/cniVersion", json!(version))
        .with("/ipMasq", json!(true))
        .with("/macspoofchk", json!(true))
}

fn known_versions() -> impl Iterator<Item = &'static str> {
    configs::VERSIONS.iter().copied().filter(|version| *version <= configs::newest())
}

/// What of the host must be as before when a pod has gone.
fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip")
}

/// A host with tables, bridge and a pod that stays, which must never be affected.
struct Node {
    host: Host,
    neighbour: Pod,
}

impl Node {
    fn new() -> Self {
        let host = Host::hasty();
        let neighbour = Pod::new();
        everything(&host, configs::newest()).added(&Attachment::new("neighbour", &neighbour));
        Node { host, neighbour }
    }
}
