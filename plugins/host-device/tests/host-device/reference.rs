use cnimble_tests::{Snapshot, need_recent_go};

use super::*;

#[test]
fn either_set_moves_the_device_and_checks_and_brings_home_what_the_other_moved() {
    need_recent_go!(go, "ip");
    let mut seen = Vec::new();
    for ours_first in [true, false] {
        let (host, pod) = (Host::hasty(), Pod::new());
        // Default settings: the Go plugin doesn't restore others.
        let lan = Pod::new();
        host.ip(&format!("link add card type veth peer name lan0 netns {}", lan.path()));
        lan.ip("link set lan0 up");
        let before = Snapshot::of_ns(&host);
        let ours = network(&host).with("/cniVersion", json!("1.0.0"));
        let theirs = ours.served_by(go);
        let (one, other) = if ours_first { (&ours, &theirs) } else { (&theirs, &ours) };
        let attachment = attachment("c1", &pod);
        let result = one.added(&attachment);
        assert_eq!(pod.link("net1")["ifalias"], "card");
        other.check(&attachment, &result).success();
        seen.push((result["ips"].clone(), result["routes"].clone(), pod.ip("route show")));
        other.deleted(&attachment, Some(&result));
        // As Debian's older Go plugins.
        host.shell("ip link set card alias ''");
        before.assert_same(&Snapshot::of_ns(&host), "after the other's DEL");
        assert_eq!(pod.links(), ["lo"]);
        // Our DEL removes our record, and nothing else.
        ours.deleted(&attachment, Some(&result));
        before.assert_same(&Snapshot::of_ns(&host), "after our DEL");
        assert_eq!(recorded(&host), 0);
    }
    assert_eq!(seen[0], seen[1]);
}

/// prevResult has the MAC of tuning, which has put back the former one.
#[test]
fn a_device_that_the_go_plugin_moved_comes_home_with_another_mac_than_prev_result_has() {
    need_recent_go!(go, "ip");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let ours = network(&host).with("/cniVersion", json!("1.0.0"));
    let attachment = attachment("c1", &pod);
    let mut result = ours.served_by(go).added(&attachment);
    result["interfaces"][0]["mac"] = json!("02:00:00:00:00:55");
    ours.deleted(&attachment, Some(&result));
    assert_eq!(
        (names(&host), pod.links()),
        (vec!["card".to_owned(), "lo".to_owned()], vec!["lo".to_owned()])
    );
}

#[test]
fn the_device_of_a_dead_pod_is_not_put_back_by_the_go_plugin_and_is_by_ours() {
    need_recent_go!(go, "ip");
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    kernel_gives_back(&pod, "net1", &host);
    drop(pod);
    let gone = attachment.netns("");
    network(&host).served_by(go).del(&gone, Some(&result));
    assert_eq!(names(&host), ["lo", "net1"]);
    network(&host).deleted(&gone, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "after our DEL");
}
