//! Tests of the plugin dummy, in the virtual machine of `scripts/vm`: many test kernels have no dummy interfaces.
#![cfg(test)]

mod in_vm;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, need, skip};

/// A dual-stack network with addresses in `10.7.0.0/24` and `fd00:7::/64`.
fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "nowhere",
        "type": "dummy",
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd00:7::/64"}]],
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
    assert!(err.code == code && err.msg.contains(why), "{err:?}");
}

#[test]
fn a_kernel_without_the_kind_is_one_clear_error_and_nothing_stays() {
    need!("ip");
    let (host, pod) = (Host::new(), Pod::new());
    if host.run("ip link add d0 type dummy").status == 0 {
        skip!("this kernel has interfaces of the kind dummy");
    }
    let network = Network::new(&host, config(&host));
    refused(
        &network.add(&Attachment::new("c1", &pod)),
        100,
        "this kernel has no interfaces of the kind dummy",
    );
    refused(&network.status(), 50, "this kernel has no interfaces of the kind dummy");
    assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
}

#[test]
fn without_ipam_it_is_refused() {
    let (host, pod) = (Host::new(), Pod::new());
    for ipam in [json!(null), json!({})] {
        let network = Network::new(&host, config(&host)).with("/ipam", ipam);
        let outcome = network.add(&Attachment::new("c1", &pod));
        refused(&outcome, 7, "dummy interface requires an IPAM configuration");
    }
}
