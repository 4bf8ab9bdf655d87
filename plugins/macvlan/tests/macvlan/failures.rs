use cnimble_tests::with_kind;

use super::*;

#[test]
fn a_failed_add_leaves_host_pod_and_leases_as_they_were() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    pod.ip("link add eth1 type veth peer name end");
    let (before, inside) = (Snapshot::of(&host), Snapshot::of_ns(&pod));
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    let full = json!([[{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.1", "rangeEnd": "10.7.0.1"}]]);
    for (pointer, value, ifname, code, told) in [
        // In the order of the steps: master, name, addresses, routes.
        ("/master", json!("none"), "eth0", 100, "master \"none\" is missing on the host"),
        ("/mtu", json!(9000), "eth0", 7, "invalid MTU 9000"),
        ("/master", json!("lo"), "eth0", 100, "macvlan mode bridge; its master lo is up"),
        ("/name", json!("outside"), "eth1", 102, "\"eth1\" is already taken"),
        ("/ipam/ranges", full, "eth0", 101, "no IP addresses available"),
        (
            "/ipam/routes",
            json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]),
            "eth0",
            100,
            "add route 10.99.0.0/16",
        ),
    ] {
        refused(&network.with(pointer, value).add(&attachment.clone().ifname(ifname)), code, told);
        inside.assert_same(&Snapshot::of_ns(&pod), told);
        let now = Snapshot::of(&host).without_lines("last_reserved_ip").without_lines(".cnimble-index");
        before.assert_same(&now, told);
        assert_eq!(leases(&host), [""; 0], "{told}");
    }
    // The existing interface stays.
    network.deleted(&attachment.ifname("eth1"), None);
    inside.assert_same(&Snapshot::of_ns(&pod), "after DEL");
}

#[test]
fn an_interface_that_a_killed_add_has_not_named_is_removed_by_del_and_by_the_next_add() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let attachment = Attachment::new("c1", &pod);
    // The interface keeps its temporary name.
    pod.ip("link add eth0 type veth peer name end");
    let born = {
        let (outcome, traced) =
            network.call("ADD", &attachment, None).traced(&cnimble_tests::trace::Fate::Watched);
        refused(&outcome, 102, "already taken");
        assert!(!traced.calls.is_empty());
        let owner = cnimble_cni::Owner {
            network: "outside".to_owned(),
            attachment: cnimble_cni::Attachment { container_id: "c1".to_owned(), ifname: "eth0".to_owned() },
        };
        format!("new{}", &cnimble_cni::hash16(&owner.tag())[..12])
    };
    pod.ip("link del eth0");
    let leave = || host.ip(&format!("link add link uplink name {born} netns {} type macvlan", pod.path()));
    leave();
    network.deleted(&attachment, None);
    assert_eq!(pod.links(), ["lo"]);
    leave();
    let result = network.added(&attachment);
    assert_eq!(pod.links(), ["eth0", "lo"]);
    network.check(&attachment, &result).success();
    // Two interfaces: one has the final name.
    leave();
    network.deleted(&attachment, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
    // With a foreign alias it stays.
    leave();
    pod.ip(&format!("link set {born} alias mine"));
    network.deleted(&attachment, None);
    assert_eq!(pod.links(), ["lo".to_owned(), born]);
}
