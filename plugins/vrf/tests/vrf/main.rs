//! Tests of the plugin vrf behind others, in the machine of `scripts/vm` if this kernel has no VRFs.
#![cfg(test)]

mod in_vm;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Lan, Network, Outcome, Pod, Snapshot, need};

/// Both families on `uplink`, with default routes.
fn front(host: &Host) -> Value {
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
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.99.0.0/16"}, {"dst": "::/0"}],
        },
    })
}

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "outside", "type": "vrf", "vrfname": "blue"})
}

#[track_caller]
fn refused(outcome: &Outcome, code: u64, why: &str) {
    let err = outcome.error();
    assert!(err.code == code && err.all().contains(why), "{err:?}");
}

#[test]
fn without_a_name_and_without_a_plugin_in_front_it_is_refused() {
    need!("ip");
    let (host, pod) = (Host::new(), Pod::new());
    let network = Network::new(&host, config());
    let attachment = Attachment::new("c1", &pod);
    refused(&network.add(&attachment), 7, "Required prevResult missing");
    let prev = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": pod.path()}]});
    let nameless = network.with("/vrfname", json!("")).call("ADD", &attachment, Some(&prev)).run();
    refused(&nameless, 7, "configuration is expected to have a valid vrf name");
    refused(&network.call("ADD", &attachment, Some(&prev)).run(), 100, "interface eth0 is missing in");
    assert_eq!(pod.links(), ["lo"]);
}
