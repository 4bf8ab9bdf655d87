//! The IPAM plugin static, beside the reference's, and under bridge.
#![cfg(test)]

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, need, need_go};

fn config() -> Value {
    json!({
        "cniVersion": configs::newest(),
        "name": "fixed",
        "type": "static",
        "ipam": {
            "type": "static",
            "addresses": [
                {"address": "10.1.2.7/24", "gateway": "10.1.2.1"},
                {"address": "fd00:1:2::7/64", "gateway": "fd00:1:2::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:1:2::1"}],
            "dns": {"nameservers": ["10.1.2.1"], "search": ["example.org"]},
        },
    })
}

/// Every combination of sources, in every version.
#[test]
fn results_are_those_of_the_reference() {
    need_go!(go);
    let host = Host::new();
    let pod = Pod::new();
    let mut successes = 0;
    for version in configs::VERSIONS.iter().filter(|version| **version != "1.1.0") {
        for addresses in
            [json!([]), json!([{"address": "10.1.2.7/24"}]), config()["ipam"]["addresses"].clone()]
        {
            for args in
                ["", "IP=10.9.0.2/16;GATEWAY=10.9.0.1", "GATEWAY=10.1.2.1", "IP= fd09::2/64 ,fd09::3/64"]
            {
                for cni in [json!(null), json!({"cni": {"ips": ["10.8.0.2/16", "fd08::2/64"]}})] {
                    for runtime in [json!(null), json!({"ips": ["fd07::2/64"]})] {
                        let net = Network::new(&host, config())
                            .with("/cniVersion", json!(version))
                            .with("/ipam/addresses", addresses.clone())
                            .with("/args", cni.clone())
                            .with("/runtimeConfig", runtime.clone());
                        let att = Attachment::new("a", &pod).args(args);
                        let (ours, theirs) = (net.add(&att), net.served_by(go).add(&att));
                        let what = format!("{}\n{}", ours.describe(), theirs.describe());
                        assert_eq!(ours.status, theirs.status, "{what}");
                        if ours.status == 0 {
                            assert_eq!(ours.result(), theirs.result(), "{what}");
                            // As newer releases, we sort the keys of 1.0.0.
                            if *version < "1.0.0" {
                                assert_eq!(ours.text(), theirs.text(), "{what}");
                            }
                            successes += 1;
                        } else {
                            ours.error();
                        }
                    }
                }
            }
        }
    }
    assert!(successes > 100, "{successes}");
}

#[test]
fn check_compares_with_the_result_and_nothing_is_kept() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, config());
    let att = Attachment::new("a", &pod);
    let before = Snapshot::of(&host);
    let result = net.added(&att);
    before.assert_same(&Snapshot::of(&host), "after ADD");
    net.check(&att, &result).success();

    let mut other = result.clone();
    other["ips"][0]["gateway"] = json!("10.1.2.254");
    let err = net.check(&att, &other).error();
    assert_eq!(
        (err.code, err.msg.as_str()),
        (103, "static: Failed to match addr 10.1.2.7/24 on interface eth0")
    );
    other["ips"] = json!([result["ips"][0]]);
    let err = net.check(&att, &other).error();
    assert_eq!(err.code, 103);
    assert!(err.msg.contains("fd00:1:2::7/64"), "{}", err.msg);
    let err = net.call("CHECK", &att, None).run().error();
    assert_eq!((err.code, err.msg.as_str()), (7, "Required prevResult missing"));

    // A container may die before its address: DEL accepts anything.
    net.deleted(&att, Some(&result));
    net.with("/ipam/addresses", json!("nonsense")).deleted(&att.clone().netns(""), None);
    net.gc(Some(json!([]))).success();
    net.status().success();
    let err = net.with("/ipam/addresses", json!([{"address": "x"}])).status().error();
    assert_eq!((err.code, err.msg.as_str()), (7, "ipam.addresses[0].address: invalid CIDR address: x"));
}

#[test]
fn bad_input_is_one_clear_error() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    for (pointer, value, args, code, msg) in [
        ("/ipam", json!(null), "", 7, "IPAM config missing 'ipam' key"),
        (
            "/ipam/addresses",
            json!([{"address": "10.1.2.7"}]),
            "",
            7,
            "ipam.addresses[0].address: invalid CIDR address: 10.1.2.7",
        ),
        (
            "/ipam/addresses",
            json!([{"gateway": "x"}]),
            "",
            7,
            "ipam.addresses[0].gateway: invalid IP address: x",
        ),
        (
            "/ipam/routes",
            json!([{"dst": "default"}]),
            "",
            7,
            "ipam.routes[0].dst: invalid CIDR address: default",
        ),
        (
            "/args",
            json!({"cni": {"ips": "10.1.2.7/24"}}),
            "",
            7,
            "args.cni.ips: invalid type: string \"10.1.2.7/24\", expected a list",
        ),
        (
            "/runtimeConfig",
            json!({"ips": ["10.1.2.7"]}),
            "",
            7,
            "runtimeConfig.ips[0]: invalid CIDR address: 10.1.2.7",
        ),
        ("/name", json!("fixed"), "IP=10.1.2.7", 4, "CNI_ARGS: IP: invalid CIDR address: 10.1.2.7"),
        ("/name", json!("fixed"), "GATEWAY=there", 4, "CNI_ARGS: GATEWAY: invalid IP address: there"),
        ("/name", json!("fixed"), "COLOUR=red", 4, "CNI_ARGS: unknown args [COLOUR]"),
        (
            "/cniVersion",
            json!("0.2.0"),
            "IP=10.9.0.2/16",
            7,
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
    ] {
        let net = Network::new(&host, config()).with(pointer, value);
        let err = net.add(&Attachment::new("a", &pod).args(args)).error();
        assert_eq!((err.code, err.msg.as_str()), (code, msg));
    }
}

/// The most usual case.
#[test]
fn a_pod_of_bridge_has_the_addresses_that_its_runtime_asks_for() {
    need!("ip", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host))
        .with("/ipam", json!({"type": "static", "routes": [{"dst": "0.0.0.0/0"}]}))
        .with("/capabilities", json!({"ips": true}));
    let att = Attachment::new("a", &pod);
    let before = Snapshot::of(&host);
    let err = net.add(&att).error();
    assert_eq!((err.code, err.msg.as_str()), (104, "IPAM plugin returned missing IP config"));
    before.assert_same(&Snapshot::of(&host), "after the failure");

    let net = net.with("/runtimeConfig", json!({"ips": ["10.7.0.9/16", "fd07::9/64"]}));
    let result = net.added(&att);
    assert_eq!(pod.addrs("eth0"), ["10.7.0.9/16", "fd07::9/64"]);
    assert!(pod.pings_once("10.7.0.1") && pod.pings_once("fd07::1"));
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert!(pod.link("eth0").is_null());
}
