//! Tests of the plugin ipvlan, on an interface of the host with a network outside. They run in the
//! virtual machine of `scripts/vm` if the kernel has no ipvlan.
#![cfg(test)]

mod in_vm;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Lan, Network, Outcome, Pod, Snapshot};

/// A dual-stack network on `uplink`. Pods get addresses from `10.7.0.10` and `fd00:7::10` on.
fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "outside",
        "type": "ipvlan",
        "master": "uplink",
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [
                [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}],
                [{"subnet": "fd00:7::/64", "rangeStart": "fd00:7::10"}],
            ],
            "routes": [{"dst": "10.99.0.0/16", "gw": "10.7.0.1"}],
        },
    })
}

/// The leases of the network.
fn leases(host: &Host) -> Vec<String> {
    let all = cnimble_tests::leases(&host.data_dir());
    all.into_iter().filter(|line| line.contains("\\r\\n")).collect()
}

/// Asserts that the verb failed with this code and that the message contains `why`.
#[track_caller]
fn refused(outcome: &Outcome, code: u64, why: &str) {
    let err = outcome.error();
    assert!(err.code == code && err.all().contains(why), "{err:?}");
}
