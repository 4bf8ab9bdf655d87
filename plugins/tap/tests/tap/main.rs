//! Tests of the plugin tap, in the virtual machine of `scripts/vm` if this kernel has no taps.
#![cfg(test)]

mod devices;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, Snapshot};

/// A dual-stack network with addresses in `10.7.0.0/24` and `fd00:7::/64`.
fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "vms",
        "type": "tap",
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:7::/64"}]],
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
