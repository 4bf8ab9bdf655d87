//! Tests of the plugin macvlan, on an interface with a network outside; in the virtual machine of `scripts/vm` if
//! needed.
#![cfg(test)]

mod checked;
mod duplicate;
mod failures;
mod keys;
mod leftovers;
mod life;
mod meeting;
mod shim;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Lan, Network, Outcome, Pod, Snapshot};

/// Dual-stack, on `uplink`. Addresses begin with `10.7.0.10` and `fd00:7::10`.
fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "outside",
        "type": "macvlan",
        "master": "uplink",
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [
                [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}],
                [{"subnet": "fd00:7::/64", "rangeStart": "fd00:7::10"}],
            ],
            "routes": [{"dst": "10.99.0.0/16"}],
        },
    })
}

fn leases(host: &Host) -> Vec<String> {
    let all = cnimble_tests::leases(&host.data_dir());
    all.into_iter().filter(|line| line.contains("\\r\\n")).collect()
}

#[track_caller]
fn refused(outcome: &Outcome, code: u64, why: &str) {
    let err = outcome.error();
    assert!(err.code == code && err.all().contains(why), "{err:?}");
}

fn settings(pod: &Pod, name: &str) -> Value {
    pod.link(name)["linkinfo"]["info_data"].clone()
}
