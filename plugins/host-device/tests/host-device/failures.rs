use cnimble_tests::Snapshot;

use super::*;

#[test]
fn a_failed_add_leaves_host_pod_and_leases_as_they_were() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    pod.ip("link add eth1 index 20 type veth peer name end index 21");
    let (before, inside) = (Snapshot::of(&host), Snapshot::of_ns(&pod));
    let attachment = attachment("c1", &pod);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    for (pointer, value, ifname, code, told) in [
        // In the order of the steps: device, name, move, addresses, routes.
        ("/device", json!("none"), "net1", 100, "device \"none\" is missing on the host"),
        ("/name", json!("cards"), "eth1", 102, "\"eth1\" is already taken"),
        ("/device", json!("lo"), "net1", 7, "lo can't be moved"),
        ("/dataDir", json!("/proc/none"), "net1", 5, "/proc/none"),
        ("/ipam/ranges", full, "net1", 101, "no IP addresses available"),
        (
            "/ipam/routes",
            json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]),
            "net1",
            100,
            "add route 10.99.0.0/16",
        ),
    ] {
        let network = network(&host).with(pointer, value);
        refused(&network.add(&attachment.clone().ifname(ifname)), code, told);
        inside.assert_same(&Snapshot::of_ns(&pod), told);
        let now = Snapshot::of(&host).without_lines("last_reserved_ip").without_lines(".cnimble-index");
        before.assert_same(&now, told);
        assert_eq!((leases(&host), recorded(&host)), (Vec::new(), 0), "{told}");
    }
    // The existing interface stays.
    network(&host).deleted(&attachment.ifname("eth1"), None);
    inside.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn an_ipv6_address_of_another_host_fails_add_and_the_device_is_home_as_it_was() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = card(&host);
    let before = Snapshot::of(&host).without("leases");
    lan.assert_asked("lan0", &network(&host), &attachment("c1", &pod), &pod);
    before.assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn check_reports_missing_parts() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    for (damage, repair, told) in [
        ("ip link set net1 down", "ip link set net1 up", "is down"),
        ("ip address del 10.7.0.10/24 dev net1", "ip address add 10.7.0.10/24 dev net1", "lacks address"),
        (
            "ip route del 10.99.0.0/16",
            "ip route add 10.99.0.0/16 via 10.7.0.1 dev net1",
            "route 10.99.0.0/16",
        ),
        (
            "ip link set net1 address 02:00:00:00:00:01",
            "ip link set net1 address 02:00:00:00:00:77",
            "prevResult has 02:00:00:00:00:77",
        ),
    ] {
        pod.shell(damage);
        refused(&network(&host).check(&attachment, &result), 103, told);
        pod.shell(repair);
        pod.shell(
            "ip -6 address replace fd00:7::10/64 dev net1 nodad; ip route replace 10.99.0.0/16 via 10.7.0.1",
        );
        network(&host).check(&attachment, &result).success();
    }
}
