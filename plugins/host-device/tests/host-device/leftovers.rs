use cnimble_tests::{Snapshot, leases as files};

use super::*;

#[test]
fn del_restores_the_device_of_a_dead_pod() {
    for netns in ["", "/run/netns/gone-long-ago"] {
        let (host, pod) = (Host::hasty(), Pod::new());
        let _lan = card(&host);
        let before = Snapshot::of_ns(&host);
        let attachment = attachment("c1", &pod);
        let result = network(&host).added(&attachment);
        kernel_gives_back(&pod, "net1", &host);
        drop(pod);
        assert_eq!(names(&host), ["lo", "net1"]);
        network(&host).deleted(&attachment.clone().netns(netns), Some(&result).filter(|_| netns.is_empty()));
        before.assert_same(&Snapshot::of_ns(&host), "after DEL");
        assert_eq!((leases(&host).len(), recorded(&host)), (0, 0));
    }
}

#[test]
fn a_virtual_device_ends_with_its_pod_and_del_releases_its_leases() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    drop(pod);
    assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, || _lan.links() == ["lo"]));
    network(&host).deleted(&attachment.netns(""), Some(&result));
    assert_eq!((names(&host), leases(&host).len(), recorded(&host)), (vec!["lo".to_owned()], 0, 0));
}

#[test]
fn del_with_an_empty_netns_brings_the_device_home_while_the_namespace_lives() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    network(&host).added(&attachment);
    let other = network(&host).with("/device", json!("")).with("/pciBusID", json!("ffff:00:00.0"));
    other.deleted(&attachment.netns(""), None);
    before.assert_same(&Snapshot::of_ns(&host), "after DEL");
    assert_eq!((pod.links(), recorded(&host)), (vec!["lo".to_owned()], 0));
}

#[test]
fn gc_brings_devices_of_stale_pods_home_and_leaves_the_others() {
    let host = Host::hasty();
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let before = {
        for number in 0..4 {
            host.ip(&format!("link add card{number} type veth peer name far{number}"));
            host.ip(&format!("link set card{number} up mtu 1400"));
        }
        Snapshot::settled(&host)
    };
    let of = |number: usize| network(&host).with("/device", json!(format!("card{number}")));
    let add = |number: usize| {
        let attachment = attachment(&format!("c{number}"), &pods[number]);
        let result = of(number).added(&attachment);
        (attachment, result)
    };
    let (valid, result) = add(0);
    let (_in_pod, _returned) = (add(1), add(2));
    kernel_gives_back(&pods[2], "net1", &host);
    let elsewhere =
        of(3).with("/name", json!("elsewhere")).with("/ipam/ranges", json!([[{"subnet": "10.8.0.0/24"}]]));
    elsewhere.added(&attachment("c3", &pods[3]));
    // As from a killed ADD.
    let unfinished = records(&host).join(format!(
        ".new-{}",
        cnimble_cni::Owner {
            network: "cards".to_owned(),
            attachment: cnimble_cni::Attachment { container_id: "c9".to_owned(), ifname: "net1".to_owned() },
        }
        .tag()
    ));
    std::fs::write(&unfinished, "{").unwrap();

    of(0).gc(None).success();
    assert_eq!(recorded(&host), 5);
    of(0).gc(Some(json!([valid.listed()]))).success();
    assert!(!unfinished.exists());
    let links = |number: usize| pods[number].links();
    assert_eq!((links(0), links(1), links(3)), (links(3), vec!["lo".to_owned()], links(0)));
    assert_eq!((recorded(&host), leases(&host).len()), (2, 2 + 1), "{:?}", files(&host.data_dir()));
    of(0).check(&valid, &result).success();
    of(0).deleted(&valid, Some(&result));
    elsewhere.gc(Some(json!([]))).success();
    let now = Snapshot::of(&host).without("leases");
    before.without("leases").assert_same(&now, "after DEL and GC");
}

#[test]
fn an_add_finds_the_device_that_the_kernel_has_given_back_under_another_name() {
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    network(&host).added(&attachment("c1", &pods[0]));
    kernel_gives_back(&pods[0], "net1", &host);
    let second = attachment("c2", &pods[1]);
    let result = network(&host).added(&second);
    assert_eq!((recorded(&host), pods[1].links()), (1, vec!["lo".to_owned(), "net1".to_owned()]));
    // A late DEL of the first pod takes nothing from the second.
    network(&host).deleted(&attachment("c1", &pods[0]), None);
    network(&host).check(&second, &result).success();
    network(&host).deleted(&second, Some(&result));
    before.assert_same(&Snapshot::of_ns(&host), "after DEL");
}

#[test]
fn the_same_add_again_is_refused_and_the_pod_keeps_its_device() {
    let (host, pod) = (Host::hasty(), Pod::new());
    let _lan = card(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    let inside = Snapshot::of_ns(&pod);
    refused(&network(&host).add(&attachment), 102, "device card is in the pod already, as net1");
    inside.assert_same(&Snapshot::of_ns(&pod), "after the second ADD");
    // Not for another pod.
    let other = Pod::new();
    refused(
        &network(&host).add(&super::attachment("c2", &other)),
        100,
        "device \"card\" is missing on the host",
    );
    assert_eq!((recorded(&host), leases(&host).len()), (1, 2));
    network(&host).check(&attachment, &result).success();
}

#[test]
fn two_adds_at_once_for_one_device_give_it_to_one() {
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let _lan = card(&host);
    let before = Snapshot::of_ns(&host);
    let attachments = [attachment("c0", &pods[0]), attachment("c1", &pods[1])];
    for _ in 0..5 {
        let outcomes = std::thread::scope(|scope| {
            let add = |attachment| {
                let host = &host;
                scope.spawn(move || network(host).add(attachment))
            };
            [add(&attachments[0]), add(&attachments[1])].map(|thread| thread.join().unwrap())
        });
        let won: Vec<usize> = (0..2).filter(|at| outcomes[*at].status == 0).collect();
        assert_eq!(won.len(), 1, "{} {}", outcomes[0].describe(), outcomes[1].describe());
        let (won, lost) = (won[0], 1 - won[0]);
        assert_eq!((pods[lost].links(), recorded(&host)), (vec!["lo".to_owned()], 1));
        network(&host).deleted(&attachments[lost], None);
        network(&host).check(&attachments[won], &outcomes[won].result()).success();
        network(&host).deleted(&attachments[won], None);
        before.assert_same(&Snapshot::of_ns(&host), "after both DELs");
    }
}
