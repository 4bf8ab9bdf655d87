//! bridge, host-local and loopback: every version, verb and option, against the kernel.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, need};
use serde_json::{Value, json};

/// A bridge network with one v4 range and gateway.
fn plain(host: &Host) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "plain",
        "type": "bridge",
        "bridge": "br0",
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.1.2.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

#[test]
fn a_pod_comes_and_goes() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, plain(&host));
    let att = Attachment::new("one", &pod);
    let empty = Snapshot::of_ns(&pod);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24", "{result:#}");
    assert_eq!(result["ips"][0]["gateway"], "10.1.2.1", "{result:#}");
    assert!(pod.pings_once("10.1.2.1"));
    net.check(&att, &result).success();
    let before = Snapshot::of(&host);
    let second = Pod::new();
    let att2 = Attachment::new("two", &second);
    let result2 = net.added(&att2);
    assert!(pod.pings_once("10.1.2.3"));
    net.deleted(&att2, Some(&result2));
    let after = Snapshot::of(&host).without_lines("last_reserved_ip");
    before.without_lines("last_reserved_ip").assert_same(&after, "after DEL of the second pod");
    empty.assert_same(&Snapshot::of_ns(&second), "the second pod after DEL");
}
