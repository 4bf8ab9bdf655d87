use cnimble_tests::{Snapshot, need};

use super::*;

#[test]
fn packets_leave_by_the_interface_of_their_source_and_del_removes_only_its_rules() {
    need!("ip");
    let site = Site::new();
    let (sbr, pod) = (site.sbr(), &site.pod);
    sbr.status().success();
    let interfaces = [("eth0", 1), ("net1", 2)].map(|(name, number)| {
        let (front, attachment) = (site.front(number), site.attachment(name));
        let prev = front.added(&attachment);
        (front, attachment, prev)
    });
    for (_, attachment, prev) in &interfaces {
        assert_eq!(&add(&sbr, attachment, prev).result(), prev, "the result is the one that came in");
    }
    let rules = site.rules();
    let tables: Vec<&str> = rules.iter().map(|(_, table)| table.as_str()).collect();
    assert_eq!(tables, ["100", "102", "101", "103"], "{rules:?}");
    for (front, attachment, prev) in &interfaces {
        for from in addresses(prev) {
            assert_eq!(site.way(&from), attachment.ifname, "{from}");
        }
        sbr.check(attachment, prev).success();
        front.check(attachment, prev).success();
    }
    assert_eq!(pod.ip("route show"), "", "nothing is left in the table main");
    assert!(pod.ip("-6 route show").lines().all(|line| line.starts_with("fe80::/64")));
    for (from, to) in [("10.7.1.2", "10.7.1.1"), ("10.7.2.2", "10.7.2.1"), ("fd00:7:2::2", "fd00:7:2::1")] {
        assert_eq!(pod.run(&format!("ping -n -c 1 -W 60 -I {from} {to}")).status, 0, "{from}");
    }

    // The user's, from the same address.
    pod.ip("rule add from 10.7.1.2 table 300");
    let [(_, first, prev), (_, second, other)] = &interfaces;
    for prev in [None, Some(prev)] {
        sbr.deleted(first, prev);
        let left = site.rules();
        assert_eq!(left.len(), 3, "{left:?}");
        assert!(left.contains(&("10.7.1.2".into(), "300".into())));
        assert_eq!(pod.ip("route show table 100"), "");
        sbr.check(second, other).success();
    }
    refused(&sbr.check(first, prev), 103, "is missing");
    // DEL has only the result.
    pod.ip("link del net1");
    sbr.deleted(second, Some(other));
    assert_eq!(site.rules(), [("10.7.1.2".into(), "300".into())]);
    sbr.deleted(&first.clone().netns(""), None);
    sbr.deleted(&first.clone().netns("/nowhere"), None);
}

/// The path of a dead pod leads to another one.
#[test]
fn del_leaves_the_rules_of_another_pod() {
    need!("ip");
    let (site, dead) = (Site::new(), Pod::new());
    let (front, sbr) = (site.front(1), site.sbr());
    let chain = |attachment: &Attachment| add(&sbr, attachment, &front.added(attachment)).result();
    let (one, two) = (Attachment::new("c0", &dead), site.attachment("eth0"));
    let (prev, other) = (chain(&one), chain(&two));
    let before = Snapshot::of_ns(&site.pod);
    sbr.deleted(&one.netns(site.pod.path()), Some(&prev));
    before.assert_same(&Snapshot::of_ns(&site.pod), "after DEL");
    sbr.check(&two, &other).success();
}

/// DEL of tuning has put back the former MAC.
#[test]
fn del_removes_the_rules_of_an_interface_with_another_mac_than_prev_result_has() {
    need!("ip");
    let site = Site::new();
    let (sbr, attachment) = (site.sbr(), site.attachment("eth0"));
    let mut prev = site.front(1).added(&attachment);
    add(&sbr, &attachment, &prev).result();
    prev["interfaces"][2]["mac"] = json!("02:00:00:00:00:55");
    sbr.deleted(&attachment, Some(&prev));
    assert_eq!(site.rules(), []);
}

#[test]
fn del_needs_nothing_of_the_configuration_that_add_would_refuse() {
    need!("ip");
    for (pointer, value) in [
        ("/gateways", json!(["0.0.0.0"])),
        ("/gateways", json!(7)),
        ("/table", json!(0)),
        ("/table", json!("main")),
    ] {
        let site = Site::new();
        let (sbr, attachment) = (site.sbr(), site.attachment("eth0"));
        let prev = site.front(1).added(&attachment);
        add(&sbr, &attachment, &prev).result();
        let changed = sbr.with(pointer, value);
        assert_eq!(add(&changed, &attachment, &prev).error().code, 7);
        changed.deleted(&attachment, Some(&prev));
        assert_eq!(site.rules(), []);
    }
}

#[test]
fn check_reports_a_lost_setting() {
    need!("ip");
    for (command, why) in [
        ("rule del from 10.7.1.2 table 100", "the rule from 10.7.1.2 is missing"),
        ("-6 rule del from fd00:7:1::2 table 101", "the rule from fd00:7:1::2 is missing"),
        ("route del default table 100", "the default route for 10.7.1.2 is missing in table 100"),
        ("-6 route del default table 101", "the default route for fd00:7:1::2 is missing in table 101"),
        ("route del 10.99.0.0/16 table 100", "route 10.99.0.0/16 is missing in table 100"),
        ("route del 10.7.1.0/24 dev eth0", "the route to the network of 10.7.1.2 is missing"),
    ] {
        let site = Site::new();
        let sbr = site.sbr().with("/addSourceHints", json!(true));
        let attachment = site.attachment("eth0");
        let wanted = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.99.0.0/16"}]);
        let prev = site.front(1).with("/ipam/routes", wanted).added(&attachment);
        add(&sbr, &attachment, &prev).result();
        let main = site.pod.ip("route show");
        assert_eq!(main.trim(), "10.7.1.0/24 dev eth0 proto kernel scope link src 10.7.1.2");
        let main = site.pod.ip("-6 route show");
        assert!(main.contains("fd00:7:1::/64 dev eth0 src fd00:7:1::2"), "{main}");
        assert!(!main.contains("default"), "{main}");
        sbr.check(&attachment, &prev).success();
        site.pod.ip(command);
        refused(&sbr.check(&attachment, &prev), 103, why);
    }
}

#[test]
fn a_configured_table_is_the_users_and_gets_rules_only() {
    need!("ip");
    let site = Site::new();
    let sbr = site.sbr().with("/table", json!(77));
    let attachment = site.attachment("eth0");
    let prev = site.front(1).added(&attachment);
    site.pod.ip("route add table 77 192.0.2.0/24 via 10.7.1.1");
    let (routes, table) = (site.pod.ip("route show"), site.pod.ip("route show table 77"));
    // The second finds rules, as after a killed ADD.
    for _ in 0..2 {
        add(&sbr, &attachment, &prev).result();
        let rules = [("10.7.1.2".into(), "77".into()), ("fd00:7:1::2".into(), "77".into())];
        assert_eq!(site.rules(), rules);
    }
    sbr.check(&attachment, &prev).success();
    refused(&sbr.with("/table", json!(78)).check(&attachment, &prev), 103, "to table 78 is missing");
    sbr.deleted(&attachment, None);
    assert_eq!(site.rules(), []);
    assert_eq!((site.pod.ip("route show"), site.pod.ip("route show table 77")), (routes, table));
}

#[test]
fn a_failed_add_leaves_the_pod_as_it_was() {
    need!("ip");
    let site = Site::new();
    let attachment = site.attachment("eth0");
    let prev = site.front(1).added(&attachment);
    let before = Snapshot::of_ns(&site.pod);
    let sbr = site.sbr();
    refused(&sbr.add(&attachment), 7, "Required prevResult missing");
    let other = attachment.clone().ifname("net9");
    refused(&add(&sbr, &other, &prev), 7, "No IP addresses supplied on interface: net9");
    let mut loose = prev.clone();
    for ip in loose["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("interface");
    }
    refused(&add(&sbr, &other, &loose), 100, "interface net9 is missing in");
    let far = sbr.with("/gateways", json!(["192.0.2.77"]));
    refused(&add(&far, &attachment, &prev), 100, "192.0.2.77");
    let table = sbr.with("/table", json!(0));
    refused(&add(&table, &attachment, &prev), 7, "0 is no routing table");
    before.assert_same(&Snapshot::of_ns(&site.pod), "after the failures");
    // The last step fails: ADD can't print the result.
    let outcome =
        sbr.call("ADD", &attachment, Some(&prev)).under(&["sh", "-c", "exec \"$@\" >/dev/full", "sh"]).run();
    assert_ne!(outcome.status, 0, "{}", outcome.describe());
    before.assert_same(&Snapshot::of_ns(&site.pod), "after a result that couldn't be printed");
}
