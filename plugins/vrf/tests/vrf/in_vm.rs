//! Tests that need VRFs. The machine boots once per module.

use cnimble_tests::{go_to_meet, skip, with_kind};

use super::*;

/// A host with a network outside, and the previous plugin's.
struct Site {
    host: Host,
    lan: Lan,
}

impl Site {
    fn new() -> Self {
        let host = Host::hasty();
        let lan = Lan::behind(&host, "uplink");
        Site { host, lan }
    }

    fn front(&self) -> Network<'_> {
        Network::new(&self.host, front(&self.host))
    }

    fn vrf(&self) -> Network<'_> {
        Network::new(&self.host, config())
    }
}

fn add(vrf: &Network<'_>, attachment: &Attachment, prev: &Value) -> Outcome {
    vrf.call("ADD", attachment, Some(prev)).run()
}

fn table(pod: &Pod, name: &str) -> u64 {
    pod.link(name)["linkinfo"]["info_data"]["table"].as_u64().unwrap()
}

#[test]
fn the_interface_keeps_addresses_and_routes_in_the_vrfs_table_and_both_checks_agree() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    let (front, vrf) = (site.front(), site.vrf().with("/table", json!(100)));
    vrf.status().success();
    let attachment = Attachment::new("c1", &pod);
    let prev = front.added(&attachment);
    let addrs = pod.addrs("eth0");
    let result = add(&vrf, &attachment, &prev).result();
    assert_eq!(result, prev, "the result is the one that came in");
    assert_eq!((pod.link("eth0")["master"].clone(), table(&pod, "blue")), (json!("blue"), 100));
    assert!(pod.link("blue")["flags"].as_array().unwrap().contains(&json!("UP")));
    assert_eq!(pod.link("blue")["group"], "1668180322");
    let now = pod.addrs("eth0");
    assert!(addrs.iter().all(|addr| now.contains(addr)), "{addrs:?} {now:?}");
    for (routes, wanted) in [
        ("route show table 100", "default via 10.7.0.1"),
        ("route show table 100", "10.99.0.0/16 via 10.7.0.1"),
        ("-6 route show table 100", "default via fd00:7::1"),
    ] {
        assert!(pod.ip(routes).contains(wanted), "{}", pod.ip(routes));
    }
    assert_eq!(pod.ip("route show"), "", "nothing is left in the table main");
    for to in ["10.7.0.1", "fd00:7::1"] {
        assert_eq!(pod.run(&format!("ping -n -c 1 -W 60 -I blue {to}")).status, 0, "{to}");
    }
    assert!(site.lan.pings_once("10.7.0.10") && site.lan.pings_once("fd00:7::10"));
    vrf.check(&attachment, &result).success();
    front.check(&attachment, &result).success();

    refused(&vrf.with("/table", json!(101)).check(&attachment, &result), 103, "has table 100, expected 101");
    refused(&vrf.with("/vrfname", json!("red")).check(&attachment, &result), 103, "VRF red is missing");
    refused(&vrf.with("/vrfname", json!("eth0")).check(&attachment, &result), 103, "is not a VRF");
    pod.ip("link set blue down");
    refused(&vrf.check(&attachment, &result), 103, "VRF blue is down");
    pod.ip("link set blue up");
    pod.ip("link set eth0 nomaster");
    refused(&vrf.check(&attachment, &result), 103, "interface eth0 is no port of VRF blue");
    for _ in 0..2 {
        vrf.deleted(&attachment, Some(&result));
    }
    front.deleted(&attachment, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

#[test]
fn del_needs_nothing_of_the_configuration_that_add_would_refuse() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    let (front, vrf) = (site.front(), site.vrf());
    let attachment = Attachment::new("c1", &pod);
    for (pointer, value) in
        [("/table", json!(-1)), ("/vrfname", json!("")), ("/vrfname", json!("a/b")), ("/vrfname", json!(7))]
    {
        let prev = front.added(&attachment);
        add(&vrf, &attachment, &prev).result();
        let changed = vrf.with(pointer, value);
        assert_eq!(add(&changed, &attachment, &prev).error().code, 7);
        changed.deleted(&attachment, Some(&prev));
        assert_eq!(pod.links(), ["eth0", "lo"]);
        assert_eq!(pod.link("eth0")["master"], Value::Null);
        changed.deleted(&attachment, Some(&prev));
        front.deleted(&attachment, Some(&prev));
    }
}

/// The path of a dead pod leads to another one.
#[test]
fn del_leaves_the_interface_of_another_pod_in_its_vrf() {
    with_kind!("vrf");
    let (site, dead, pod) = (Site::new(), Pod::new(), Pod::new());
    let (front, vrf) = (site.front(), site.vrf());
    let chain = |attachment: &Attachment| add(&vrf, attachment, &front.added(attachment)).result();
    let (one, two) = (Attachment::new("c1", &dead), Attachment::new("c2", &pod));
    let (prev, other) = (chain(&one), chain(&two));
    vrf.deleted(&one.netns(pod.path()), Some(&prev));
    vrf.check(&two, &other).success();
}

#[test]
fn several_interfaces_share_a_vrf_that_ends_with_the_last() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    let (front, vrf) = (site.front().with("/ipam/routes", json!([])), site.vrf());
    let attachments: Vec<_> =
        (0..6).map(|number| Attachment::new("c1", &pod).ifname(&format!("net{number}"))).collect();
    let prevs: Vec<_> = attachments.iter().map(|attachment| front.added(attachment)).collect();
    // One of them makes the VRF.
    all_at_once(&vrf, &attachments, &prevs);
    assert_eq!(pod.ip_json("link show master blue").as_array().unwrap().len(), 6);
    let other = Pod::new();
    drop(other);
    pod.ip("link add free type dummy");
    let free = Attachment::new("c1", &pod).ifname("free");
    let red = vrf.with("/vrfname", json!("red"));
    add(&red, &free, &prevs[0]).result();
    assert_ne!(table(&pod, "blue"), table(&pod, "red"));
    red.deleted(&free, None);
    assert!(!pod.links().contains(&"red".to_owned()));
    for (number, attachment) in attachments.iter().enumerate() {
        assert!(pod.links().contains(&"blue".to_owned()), "before the DEL of number {number}");
        vrf.deleted(attachment, None);
        assert_eq!(pod.link(&attachment.ifname)["master"], Value::Null);
    }
    assert!(!pod.links().contains(&"blue".to_owned()), "{:?}", pod.links());
}

fn all_at_once(vrf: &Network<'_>, attachments: &[Attachment], prevs: &[Value]) {
    std::thread::scope(|scope| {
        for (attachment, prev) in attachments.iter().zip(prevs) {
            scope.spawn(move || add(vrf, attachment, prev).result());
        }
    });
}

#[test]
fn twenty_vrfs_that_are_made_at_once_have_twenty_tables() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    pod.ip("link add red type vrf table 2");
    let prev = site.front().added(&Attachment::new("c1", &pod));
    let vrf = site.vrf();
    // In strict mode the kernel refuses a second VRF with the table.
    for strict in ["0", "1"] {
        pod.set_sysctl("vrf/strict_mode", strict);
        let networks: Vec<_> = (0..20).map(|number| format!("vrf{number}")).collect();
        for number in 0..networks.len() {
            pod.ip(&format!("link add port{number} type dummy"));
        }
        let attachment = |number| Attachment::new("c1", &pod).ifname(&format!("port{number}"));
        std::thread::scope(|scope| {
            for (number, name) in networks.iter().enumerate() {
                let (vrf, prev, attachment) = (vrf.with("/vrfname", json!(name)), &prev, attachment(number));
                scope.spawn(move || add(&vrf, &attachment, prev).result());
            }
        });
        let mut tables: Vec<_> = networks.iter().map(|name| table(&pod, name)).collect();
        tables.sort();
        tables.dedup();
        assert_eq!(tables.len(), 20, "{tables:?}");
        for (number, name) in networks.iter().enumerate() {
            assert_eq!(pod.link(&format!("port{number}"))["master"], json!(name));
            vrf.with("/vrfname", json!(name)).deleted(&attachment(number), None);
            pod.ip(&format!("link delete port{number}"));
        }
        assert_eq!(pod.links(), ["eth0", "lo", "red"]);
    }
}

#[test]
fn several_interfaces_share_a_vrf_whose_table_no_other_may_have() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    // The first VRF loads the module with the sysctl.
    pod.ip("link add red type vrf table 7");
    pod.set_sysctl("vrf/strict_mode", "1");
    let (front, vrf) = (site.front().with("/ipam/routes", json!([])), site.vrf().with("/table", json!(100)));
    let attachments: Vec<_> =
        (0..6).map(|number| Attachment::new("c1", &pod).ifname(&format!("net{number}"))).collect();
    let prevs: Vec<_> = attachments.iter().map(|attachment| front.added(attachment)).collect();
    for _ in 0..5 {
        all_at_once(&vrf, &attachments, &prevs);
        assert_eq!(pod.ip_json("link show master blue").as_array().unwrap().len(), 6);
        for attachment in &attachments {
            vrf.deleted(attachment, None);
        }
        assert!(!pod.links().contains(&"blue".to_owned()), "{:?}", pod.links());
    }
}

#[test]
fn a_failed_add_leaves_the_pod_as_it_was() {
    with_kind!("vrf");
    let (site, pod) = (Site::new(), Pod::new());
    let (front, vrf) = (site.front(), site.vrf());
    let attachment = Attachment::new("c1", &pod);
    let prev = front.added(&attachment);
    pod.ip("link add net1 type veth peer name end");
    pod.ip("link add red type vrf table 7");
    pod.ip("link add net2 type dummy");
    pod.ip("link set net2 master red");
    let before = Snapshot::of_ns(&pod);
    for (pointer, value, ifname, code, told) in [
        ("/vrfname", json!("net1"), "eth0", 102, "\"net1\" already exists but is not a VRF"),
        ("/vrfname", json!("blue"), "net2", 102, "interface net2 has already a master set: red"),
        ("/vrfname", json!("blue"), "net3", 100, "interface net3 is missing in"),
        // A VRF can't be a VRF's port. It is made, and removed again.
        ("/vrfname", json!("blue"), "red", 100, "set link red master"),
    ] {
        refused(&add(&vrf.with(pointer, value), &attachment.clone().ifname(ifname), &prev), code, told);
        before.assert_same(&Snapshot::of_ns(&pod), told);
    }
    let wrong = vrf.with("/vrfname", json!("red")).with("/table", json!(8));
    refused(&add(&wrong, &attachment, &prev), 102, "VRF red already exists with another routing table");
    before.assert_same(&Snapshot::of_ns(&pod), "after the wrong table");
    // Never in the VRF. Another owner's empty VRF stays.
    vrf.deleted(&attachment.clone().ifname("net2"), None);
    pod.ip("link set net2 nomaster");
    vrf.with("/vrfname", json!("red")).deleted(&attachment, None);
    assert!(pod.links().contains(&"red".to_owned()));
    vrf.deleted(&attachment.netns(""), None);
}

#[test]
fn gc_removes_an_empty_vrf_that_was_made_here() {
    with_kind!("vrf");
    let (site, pods) = (Site::new(), [Pod::new(), Pod::new(), Pod::new(), Pod::new()]);
    let (front, vrf) = (site.front(), site.vrf());
    for (number, pod) in pods[..2].iter().enumerate() {
        let attachment = Attachment::new(&format!("c{number}"), pod);
        let prev = front.added(&attachment);
        add(&vrf, &attachment, &prev).result();
    }
    for pod in &pods[2..] {
        pod.ip("link add blue type vrf table 9");
    }
    // Earlier versions set this mark.
    pods[3].shell("ip link set blue alias 'cnimble: removed with its last port'");
    pods[0].ip("link del eth0");
    let all: Vec<_> = pods.iter().collect();
    let gc = || vrf.gc_call(Some(json!([]))).pinning(site.host.dir(), &all);
    gc().run().success();
    assert_eq!(pods[0].links(), ["lo"]);
    assert_eq!(pods[1].links(), ["blue", "eth0", "lo"], "it has a port");
    assert_eq!(pods[2].links(), ["blue", "lo"], "it is the user's");
    assert_eq!(pods[3].links(), ["lo"]);
}

#[test]
fn either_set_checks_and_removes_what_the_other_made() {
    with_kind!("vrf");
    let go = match go_to_meet() {
        Ok(go) if go.join("vrf").exists() => go,
        Ok(_) => skip!("these Go plugins have no vrf"),
        Err(why) => skip!("{why}"),
    };
    let mut seen = Vec::new();
    for ours_first in [true, false] {
        let (site, pod) = (Site::new(), Pod::new());
        let front = site.front().with("/cniVersion", json!("1.0.0"));
        let ours = site.vrf().with("/cniVersion", json!("1.0.0")).with("/table", json!(100));
        let theirs = ours.served_by(go);
        let (one, other) = if ours_first { (&ours, &theirs) } else { (&theirs, &ours) };
        let attachment = Attachment::new("c1", &pod).args("IgnoreUnknown=1;IP=10.7.0.77");
        let prev = front.added(&attachment);
        let result = add(one, &attachment, &prev).result();
        assert_eq!(result["ips"], prev["ips"]);
        other.check(&attachment, &result).success();
        front.check(&attachment, &result).success();
        let mut routes: Vec<String> =
            pod.ip("route show table 100").lines().map(|line| line.trim().to_owned()).collect();
        routes.sort();
        seen.push((routes, pod.addrs("eth0").len(), table(&pod, "blue")));
        other.deleted(&attachment, Some(&result));
        assert_eq!(pod.links(), ["eth0", "lo"]);
        front.deleted(&attachment, Some(&result));
    }
    assert_eq!(seen[0], seen[1]);
}
