use std::collections::BTreeSet;
use std::time::Duration;

use cnimble_tests::{keep_silent, need, need_recent_go};

use super::*;

fn crowd(site: &Site, count: u8) -> Vec<(Attachment, Value)> {
    (0..count)
        .map(|number| {
            let name = format!("net{number}");
            site.pod.ip(&format!("link add {name} type veth peer name peer{number}"));
            site.pod.ip(&format!("link set peer{number} up"));
            site.pod.ip(&format!("addr add 10.8.{number}.2/24 dev {name}"));
            site.pod.ip(&format!("link set {name} up"));
            let prev = json!({
                "cniVersion": "1.1.0",
                "interfaces": [{"name": name, "sandbox": site.pod.path()}],
                "ips": [{"address": format!("10.8.{number}.2/24"), "gateway": format!("10.8.{number}.1"), "interface": 0}],
            });
            (site.attachment(&name), prev)
        })
        .collect()
}

/// Every other one with `others`.
fn all_at_once(site: &Site, others: &Network<'_>) {
    let (sbr, crowd) = (site.sbr(), crowd(site, 20));
    std::thread::scope(|scope| {
        for (number, (attachment, prev)) in crowd.iter().enumerate() {
            let sbr = if number % 2 == 0 { others } else { &sbr };
            scope.spawn(move || add(sbr, attachment, prev).result());
        }
    });
    let rules = site.rules();
    let tables: BTreeSet<&String> = rules.iter().map(|(_, table)| table).collect();
    assert_eq!((rules.len(), tables.len()), (20, 20), "{rules:?}");
    for (number, (attachment, prev)) in crowd.iter().enumerate() {
        assert_eq!(site.way(&format!("10.8.{number}.2")), attachment.ifname);
        sbr.check(attachment, prev).success();
    }
    std::thread::scope(|scope| {
        for (attachment, _) in crowd.iter().skip(1) {
            let sbr = &sbr;
            scope.spawn(move || sbr.deleted(attachment, None));
        }
    });
    assert_eq!(site.rules().len(), 1, "{:?}", site.rules());
}

#[test]
fn twenty_adds_at_once_have_twenty_tables() {
    need!("ip");
    let site = Site::new();
    let ours = site.sbr();
    all_at_once(&site, &ours);
}

#[test]
fn adds_of_both_sets_at_once_have_twenty_tables() {
    need_recent_go!(go, "ip");
    let site = Site::new();
    let theirs = site.sbr().served_by(go);
    all_at_once(&site, &theirs);
}

#[test]
fn gc_removes_the_rules_of_interfaces_that_are_gone() {
    need!("ip");
    let site = Site::new();
    let (sbr, crowd) = (site.sbr(), crowd(&site, 3));
    for (attachment, prev) in &crowd {
        add(&sbr, attachment, prev).result();
    }
    site.pod.ip("rule add from 10.9.9.9 table 200");
    site.pod.ip("link del net0");
    sbr.gc_call(Some(json!([]))).pinning(site.host.dir(), &[&site.pod]).run().success();
    let left: Vec<String> = site.rules().into_iter().map(|(from, _)| from).collect();
    assert_eq!(left, ["10.8.1.2", "10.8.2.2", "10.9.9.9"]);
}

/// As of a device of host-device after DEL of tuning: neither alias nor the host's end tell its owner.
#[test]
fn del_removes_the_rules_of_a_device_with_another_mac_than_prev_result_has() {
    need!("ip");
    let site = Site::new();
    let (sbr, mut crowd) = (site.sbr(), crowd(&site, 2));
    for (attachment, prev) in &mut crowd {
        add(&sbr, attachment, prev).result();
        prev["interfaces"][0]["mac"] = json!("02:00:00:00:00:55");
    }
    let (attachment, prev) = &crowd[0];
    sbr.deleted(attachment, Some(prev));
    let left: Vec<String> = site.rules().into_iter().map(|(from, _)| from).collect();
    assert_eq!((left, site.pod.ip("route show table 100")), (vec!["10.8.1.2".to_owned()], String::new()));
}

#[test]
fn a_namespace_that_is_locked_is_waited_for() {
    need!("ip");
    let site = Site::new();
    let (sbr, crowd) = (site.sbr(), crowd(&site, 1));
    let (attachment, prev) = &crowd[0];
    let file = std::fs::File::open(site.pod.path()).unwrap();
    file.lock().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| add(&sbr, attachment, prev).result());
        keep_silent(Duration::from_millis(300));
        assert!(!waiting.is_finished() && site.rules().is_empty());
        file.unlock().unwrap();
    });
    assert_eq!(site.rules().len(), 1);
}
