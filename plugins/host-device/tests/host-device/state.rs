use cnimble_tests::Snapshot;

use super::*;

#[test]
fn changes_of_the_pod_are_restored() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    for change in [
        "ip link set net1 mtu 1300 address 02:00:00:00:00:01",
        "ip link set net1 down; ip link set net1 name other",
        // The host has no such device, or another one.
        "ip link set net1 alias lo",
        "ip link set net1 down; ip link set net1 name other alias '' up",
    ] {
        let result = network(&host).added(&attachment);
        pod.shell(change);
        network(&host).deleted(&attachment, Some(&result));
        assert_eq!((pod.links(), recorded(&host)), (vec!["lo".to_owned()], 0), "{change}");
        before.assert_same(&Snapshot::of_ns(&host), change);
    }
}

#[test]
fn the_pod_may_have_the_name_of_the_host_and_the_host_that_of_the_pod() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    host.ip("link add net1 type veth peer name end1");
    // Higher than the device's index on the host, which it keeps.
    pod.ip("link add card index 20 type veth peer name end2 index 21");
    let (before, inside) = (Snapshot::of_ns(&host), Snapshot::of_ns(&pod));
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    assert_eq!(pod.links(), ["card", "end2", "lo", "net1"]);
    network(&host).check(&attachment, &result).success();
    network(&host).deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "the host");
    inside.assert_same(&Snapshot::of_ns(&pod), "the pod");
}

#[test]
fn a_name_that_is_taken_on_the_host_leaves_the_pod_its_device_until_the_next_del() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    let inside = Snapshot::of_ns(&pod);
    host.ip("link add card type veth peer name end");
    refused(
        &network(&host).del(&attachment, Some(&result)),
        102,
        "the name card of the device is taken on the host",
    );
    inside.assert_same(&Snapshot::of_ns(&pod), "after a DEL that failed");
    assert_eq!((leases(&host).len(), recorded(&host)), (2, 1));
    network(&host).check(&attachment, &result).success();
    host.ip("link del card");
    network(&host).deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "after DEL");
}

#[test]
fn another_interface_of_the_pod_is_left_alone() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let network = network(&host);
    // It has neither alias nor record.
    pod.ip("link add net1 type veth peer name end");
    network.deleted(&attachment("c1", &pod), None);
    // Our plugins' mark, or a user's text.
    for alias in ["0123456789abcdef-0123456789abcdef,net", "my card"] {
        pod.shell(&format!("ip link set net1 alias '{alias}'"));
        network.deleted(&attachment("c1", &pod), None);
    }
    assert_eq!(pod.links(), ["end", "lo", "net1"]);
    pod.ip("link del net1");
    // The device belongs to another container.
    let attachment = attachment("c1", &pod);
    let result = network.added(&attachment);
    let other = Attachment { id: "c2".to_owned(), ifname: "net2".to_owned(), ..attachment.clone() };
    network.deleted(&other, None);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn check_and_del_recognize_another_interface_in_place_of_the_device() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    // Another link has the destroyed device's name.
    pod.shell(
        "ip link del net1; ip link add net1 type veth peer name end; ip address add 10.7.0.10/24 dev net1",
    );
    refused(&network(&host).check(&attachment, &result), 103, "isn't the device that was moved into the pod");
    let outcome = network(&host).del(&attachment, Some(&result)).success();
    let told = "it may be in a namespace that the pod has made, and ends with that one";
    assert!(outcome.stderr.contains(told), "{}", outcome.describe());
    assert_eq!((pod.links().len(), names(&host)), (3, vec!["lo".to_owned()]));
    assert_eq!((leases(&host).len(), recorded(&host)), (0, 1));
    // After the pod's end DEL removes the record.
    drop(pod);
    network(&host).status().error();
    network(&host).deleted(&attachment, None);
    assert_eq!(recorded(&host), 0);
}
