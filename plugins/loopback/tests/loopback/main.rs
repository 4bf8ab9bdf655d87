//! Tests of the plugin loopback, alone and with bridge.
#![cfg(test)]

use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, Pod, configs, need};

#[test]
fn loopback_and_bridge_at_the_same_time_in_one_pod() {
    need!("ip", "nft");
    let host = Host::new();
    let net = Network::new(&host, configs::dual(&host));
    let lo = Network::new(&host, configs::loopback());
    for round in 0..10 {
        let pod = Pod::new();
        pod.ip("link set lo down");
        let att = Attachment::new(&format!("pod{round}"), &pod);
        let lo_att = att.clone().ifname("lo");
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| lo.add(&lo_att));
            let two = scope.spawn(|| net.add(&att));
            (one.join().unwrap(), two.join().unwrap())
        });
        let result = two.result();
        assert_eq!(one.result()["interfaces"][0]["name"], "lo");
        assert!(pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));
        std::thread::scope(|scope| {
            let one = scope.spawn(|| lo.del(&lo_att, None).success());
            let two = scope.spawn(|| net.del(&att, Some(&result)).success());
            one.join().unwrap();
            two.join().unwrap();
        });
        assert_eq!(pod.links(), ["lo"]);
    }
}

#[test]
fn loopback_brings_lo_up_and_down() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    pod.ip("link set lo down");
    let net = Network::new(&host, configs::loopback());
    let att = Attachment::new("one", &pod).ifname("lo");
    let result = net.added(&att);
    assert_eq!(
        result["interfaces"],
        json!([{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.path()}])
    );
    assert_eq!(
        result["ips"],
        json!([{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}])
    );
    net.check(&att, &result).success();
    pod.ip("link set lo down");
    let error = net.check(&att, &result).error();
    assert!(error.all().contains("loopback interface is down"), "{error:?}");
    net.added(&att);
    net.deleted(&att, Some(&result));
    assert!(!pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));

    // A prevResult is passed on in the caller's version.
    let prev = json!({"cniVersion": configs::newest(), "ips": [{"address": "10.9.9.9/24"}]});
    let passed = net.call("ADD", &att, Some(&prev)).run().result();
    assert_eq!(passed["ips"][0]["address"], "10.9.9.9/24", "{passed:#}");

    // It isn't a loopback address.
    pod.ip("addr add 10.7.7.7/32 dev lo");
    let error = net.add(&att).error();
    assert!(error.all().contains("loopback interface found with non-loopback address"), "{error:?}");
}
