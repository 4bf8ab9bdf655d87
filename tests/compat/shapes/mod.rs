//! Calls in the form that real runtimes use, as seen in their call logs. The runtimes are podman, containerd, CRI-O,
//! cri-dockerd and ctr, with and without a kubelet.

mod del;
mod keys;
mod whose;

use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs};

/// Returns a network with all options that create state on the host.
fn everything<'h>(host: &'h Host, version: &str) -> Network<'h> {
    Network::new(host, configs::dual(host))
        .with("/cniVersion", json!(version))
        .with("/ipMasq", json!(true))
        .with("/macspoofchk", json!(true))
}

fn known_versions() -> impl Iterator<Item = &'static str> {
    configs::VERSIONS.iter().copied().filter(|version| *version <= configs::newest())
}

/// Returns the state of the host that must be the same after a pod's removal.
fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip")
}

/// A host with tables, a bridge and a permanent pod, which must never be affected.
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
