use serde_json::json;

use cnimble_tests::{Host, Snapshot, need};

use super::{firewall, join};

#[test]
fn bad_configurations() {
    need!("ip", "nft");
    let host = Host::new();
    let a = join(&host, 1, "a");
    let before = Snapshot::of(&host);
    for (keys, word) in [
        (json!({ "firewalldZone": 1 }), "firewalldZone"),
        (json!({ "backend": 1 }), "backend"),
        (json!({ "ingressPolicy": "closed" }), "unknown ingress policy"),
        (json!({ "ingressPolicy": [] }), "ingressPolicy"),
        (json!({ "iptablesAdminChainName": "a b" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "-j" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "x\nCOMMIT" }), "iptablesAdminChainName"),
        (json!({ "iptablesAdminChainName": "x".repeat(29) }), "iptablesAdminChainName"),
    ] {
        let net = firewall(&host, 1, &keys);
        let error = net.call("ADD", &a.att, Some(&a.prev)).run().error();
        assert!(error.code == 7 && error.all().contains(word), "{word}: {error:?}");
        assert_eq!(net.check(&a.att, &a.prev).error().code, 7);
        assert_eq!(net.status().error().code, 7);
    }
    // The Go plugin would choose one itself.
    let net = firewall(&host, 1, &json!({ "backend": "pf" }));
    let outcome = net.call("ADD", &a.att, Some(&a.prev)).run().success();
    assert!(outcome.stderr.contains("backend: pf is none of"), "{}", outcome.describe());
    net.check(&a.att, &a.prev).success();
    assert!(!before.diff(&Snapshot::of(&host)).is_empty(), "no rule for the pod");
    net.deleted(&a.att, Some(&a.prev));
    let net = firewall(&host, 1, &json!({}));
    assert_eq!(net.add(&a.att).error().code, 7, "no prevResult");
    for version in ["0.3.1", "0.1.0"] {
        let old = net.with("/cniVersion", json!(version));
        assert_eq!(old.call("ADD", &a.att, None).run().error().code, 1, "{version}");
    }
    // A policy without a bridge fails.
    let policed = firewall(&host, 1, &json!({ "ingressPolicy": "same-bridge" }));
    let mut prev = a.prev.clone();
    prev["interfaces"] = json!([]);
    prev["ips"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|ip| _ = ip.as_object_mut().unwrap().remove("interface"));
    assert_eq!(policed.call("ADD", &a.att, Some(&prev)).run().error().code, 7);
    before.assert_same(&Snapshot::of(&host), "nothing was touched");
    // Without a policy no bridge is needed, without addresses there is nothing to do.
    net.call("ADD", &a.att, Some(&prev)).run().result();
    net.deleted(&a.att, None);
    prev["ips"] = json!([]);
    net.call("ADD", &a.att, Some(&prev)).run().result();
    assert!(!host.nft("list ruleset").contains("id: a"));
}
