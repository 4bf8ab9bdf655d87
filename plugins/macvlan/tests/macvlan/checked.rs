use cnimble_tests::with_kind;

use super::*;

#[test]
fn check_reports_each_difference() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    host.ip("link add other type veth peer name end");
    let network = Network::new(&host, config(&host)).with("/mtu", json!(1400));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let breaks = [
        (
            "address del 10.7.0.10/24 dev eth0",
            "lacks address 10.7.0.10/24",
            "address add 10.7.0.10/24 dev eth0",
        ),
        (
            "address del fd00:7::10/64 dev eth0",
            "lacks address fd00:7::10/64",
            "address add fd00:7::10/64 dev eth0",
        ),
        ("link set eth0 mtu 1500", "has MTU 1500", "link set eth0 mtu 1400"),
        (
            "link set eth0 type macvlan mode private",
            "is macvlan mode private",
            "link set eth0 type macvlan mode bridge",
        ),
        (
            "link set eth0 address 02:00:00:00:00:99",
            "has MAC 02:00:00:00:00:99",
            &format!("link set eth0 address {mac}"),
        ),
        ("link set eth0 down", "is down", "link set eth0 up"),
    ];
    let mend = |pod: &Pod| drop(pod.run("ip route replace 10.99.0.0/16 via 10.7.0.1 dev eth0"));
    for (damage, told, repair) in breaks {
        pod.ip(damage);
        refused(&network.check(&attachment, &result), 103, told);
        pod.ip(repair);
        mend(&pod);
        network.check(&attachment, &result).success();
    }
    pod.ip("route del 10.99.0.0/16");
    refused(
        &network.check(&attachment, &result),
        103,
        "route 10.99.0.0/16 via 10.7.0.1 is missing in the pod",
    );
    mend(&pod);
    // The configuration differs from the interface.
    for (pointer, value, told) in [
        ("/mode", json!("vepa"), "is macvlan mode bridge"),
        ("/master", json!("other"), "isn't made on other on the host"),
        ("/master", json!("none"), "interface none is missing on the host"),
        ("/mtu", json!(1399), "has MTU 1400, expected at most 1399"),
    ] {
        refused(&network.with(pointer, value).check(&attachment, &result), 103, told);
    }
    host.ip("link del uplink");
    refused(&network.check(&attachment, &result), 103, "interface eth0 is missing in");
}

#[test]
fn a_macvlan_made_on_a_macvlan_is_one_of_its_master() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    host.ip("link add link uplink name upper type macvlan mode bridge");
    host.ip("link set upper up");
    let network = Network::new(&host, config(&host)).with("/master", json!("upper"));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(lan.pings_once("10.7.0.10"));
    network.check(&attachment, &result).success();
}

#[test]
fn status_reports_a_missing_master_and_accepts_one_that_is_down() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let network = Network::new(&host, config(&host));
    refused(&network.status(), 51, "master \"uplink\" is missing on the host");
    let _lan = Lan::behind(&host, "uplink");
    network.status().success();
    host.ip("link set uplink down");
    network.status().success();
    network.added(&Attachment::new("c1", &Pod::new()));
    // A link in the pod is unknown.
    network.with("/linkInContainer", json!(true)).status().success();
    network.with("/ipam/ranges", json!([])).with("/linkInContainer", json!(true)).status().error();
}
