use cnimble_tests::with_kind;

use super::*;

#[test]
fn del_works_without_a_namespace_without_a_master_and_after_the_configuration_has_changed() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let attachments: Vec<_> =
        pods.iter().zip(["c0", "c1", "c2"]).map(|(pod, id)| Attachment::new(id, pod)).collect();
    let results: Vec<_> = attachments.iter().map(|attachment| network.added(attachment)).collect();
    let [gone, one, two] = pods;
    drop(gone);
    network.deleted(&attachments[0].clone().netns(""), Some(&results[0]));
    assert_eq!(leases(&host).len(), 4, "{:?}", leases(&host));
    network.with("/mode", json!("passthru")).with("/master", json!("none")).deleted(&attachments[1], None);
    assert_eq!((leases(&host).len(), one.links()), (2, vec!["lo".to_owned()]));
    // The kernel removes the pod's interface with its master.
    host.ip("link del uplink");
    drop(lan);
    network.deleted(&attachments[2], Some(&results[2]));
    assert_eq!((leases(&host).len(), two.links()), (0, vec!["lo".to_owned()]));
}

#[test]
fn del_leaves_what_isnt_the_attachments() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let result = network.added(&Attachment::new("c1", &pod));
    // Another container's, then another network's.
    network.deleted(&Attachment::new("c2", &pod), None);
    network.with("/name", json!("other")).deleted(&Attachment::new("c1", &pod), None);
    // Without the alias, and with another MAC than the result's. Its address isn't free.
    let mut told = result.clone();
    told["interfaces"][0]["mac"] = json!("02:00:00:00:00:99");
    pod.shell("ip link set eth0 alias ''");
    refused(&network.del(&Attachment::new("c1", &pod), Some(&told)), 102, "is in use");
    assert_eq!(pod.links(), ["eth0", "lo"]);
    network.deleted(&Attachment::new("c1", &pod), Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

/// Go's has no alias.
#[test]
fn in_mode_passthru_a_pod_of_the_go_plugin_is_removed_after_the_masters_mac_has_changed() {
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host)).with("/mode", json!("passthru"));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    pod.ip("link set eth0 alias ''");
    host.ip("link set uplink address 02:00:00:00:00:99");
    assert_ne!(pod.link("eth0")["address"], result["interfaces"][0]["mac"]);
    network.deleted(&attachment, Some(&result));
    assert_eq!((leases(&host).len(), pod.links()), (0, vec!["lo".to_owned()]));
}

#[test]
fn gc_removes_interfaces_in_pinned_namespaces_and_gives_leases_back() {
    with_kind!("macvlan");
    let host = Host::hasty();
    let _lan = Lan::behind(&host, "uplink");
    let network = Network::new(&host, config(&host));
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let add = |number: usize| {
        let attachment = Attachment::new(&format!("c{number}"), &pods[number]);
        let result = network.added(&attachment);
        (attachment, result)
    };
    let (valid, result) = add(0);
    let _stale = add(1);
    // Another network's, and one without an alias, like those of users and the Go plugins.
    let elsewhere =
        network.with("/name", json!("elsewhere")).with("/ipam/ranges", json!([[{"subnet": "10.8.0.0/24"}]]));
    elsewhere.added(&Attachment::new("c2", &pods[2]));
    host.ip(&format!("link add link uplink name net1 netns {} type macvlan", pods[2].path()));
    // No mount pins this namespace.
    let _unpinned = add(3);
    let gc = || network.gc_call(Some(json!([valid.listed()])));
    gc().pinning(host.dir(), &[&pods[0], &pods[1], &pods[2], &host]).run().success();
    assert_eq!(pods[1].links(), ["lo"]);
    assert_eq!(
        (pods[0].links(), pods[3].links()),
        (pods[3].links(), vec!["eth0".to_owned(), "lo".to_owned()])
    );
    assert_eq!(pods[2].links(), ["eth0", "lo", "net1"]);
    assert_eq!(leases(&host).len(), 2 + 1, "{:?}", leases(&host));
    network.check(&valid, &result).success();
    // Not an empty list.
    network.gc_call(None).pinning(host.dir(), &[&pods[0]]).run().success();
    assert_eq!(pods[0].links(), ["eth0", "lo"]);
}
