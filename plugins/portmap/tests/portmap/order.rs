//! The order among the rules of the administrator, of an earlier version and these.

use serde_json::json;

use cnimble_tests::stream::Stream;
use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Attachment, need};

use super::Site;

/// The chains of an earlier version, which are at the priorities of NAT.
const MOVED: [(&str, &str, &str); 3] = [
    ("portmap-prerouting", "prerouting priority dstnat", "dstnat + 1"),
    ("portmap-output", "output priority -100", "-99"),
    ("portmap-postrouting", "postrouting priority srcnat", "srcnat + 1"),
];

impl Site {
    /// Makes the rules those of an earlier version.
    fn go_back(&self) {
        let mut ruleset = self.host.nft("list ruleset");
        for (_, before, now) in MOVED {
            let hook = before.rsplit_once(' ').unwrap().0;
            assert!(ruleset.contains(&format!("{hook} {now};")), "{ruleset}");
            ruleset = ruleset.replace(&format!("{hook} {now};"), &format!("{before};"));
        }
        let script = format!("flush ruleset\n{ruleset}");
        self.host.run_with("nft -f -", script.as_bytes()).success();
    }

    fn moved(&self) -> [bool; 3] {
        MOVED.map(|(chain, _, now)| {
            let listed = self.host.nft(&format!("list chain inet cnimble {chain}"));
            listed.contains(&format!("priority {now};"))
        })
    }
}

#[test]
fn the_next_pod_replaces_the_chains_of_an_earlier_version() {
    need!("nft", "ip");
    let site = Site::new();
    let port = |port: u16| site.network(json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]));
    let _inside = [Server::start(&site.pods[0], 80, "pod0"), Server::start(&site.pods[1], 80, "pod1")];
    let first = port(8080);
    site.add(&first, 0);
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let whole = sorted(site.ruleset());
    let answers = || {
        for to in ["192.0.2.1:8080", "[2001:db8::1]:8080", "127.0.0.1:8080", "10.1.2.1:8080"] {
            let from = if to.starts_with("192") { &site.world } else { &*site.host };
            assert!(tcp(from, to).unwrap().starts_with("pod0 "), "{to}");
        }
        assert!(tcp(&site.pods[0], "192.0.2.1:8080").unwrap().starts_with("pod0 "), "the hairpin");
    };
    site.go_back();
    assert_eq!(site.moved(), [false; 3]);
    // Nothing is missing.
    first.check(&site.attachment(0), &site.results[0]).success();
    answers();
    site.add(&port(9090), 1);
    assert_eq!(site.moved(), [true; 3]);
    answers();
    assert!(tcp(&site.world, "192.0.2.1:9090").unwrap().starts_with("pod1 "));
    // With the very same rules as on a node that never had others.
    port(9090).deleted(&site.attachment(1), None);
    assert_eq!(sorted(site.ruleset()), whole);
    // The earlier version has made one chain anew.
    site.host.nft("delete chain inet cnimble portmap-output");
    site.host.nft("add chain inet cnimble portmap-output { type nat hook output priority -100; }");
    site.host.nft("add rule inet cnimble portmap-output fib daddr type local jump portmap");
    assert_eq!(site.moved(), [true, false, true]);
    site.add(&port(9090), 1);
    assert_eq!(site.moved(), [true; 3]);
    answers();
    // DEL of the last takes all, also of an earlier version's chains.
    site.go_back();
    first.deleted(&site.attachment(0), Some(&site.results[0]));
    port(9090).deleted(&site.attachment(1), None);
    assert!(!site.ruleset().contains("portmap"), "{}", site.ruleset());
}

#[test]
fn many_pods_at_once_replace_the_chains_of_an_earlier_version() {
    need!("nft", "ip");
    let site = Site::new();
    let port = |port: u16| site.network(json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]));
    let _inside = [Server::start(&site.pods[0], 80, "pod0"), Server::start(&site.pods[1], 80, "pod1")];
    site.add(&port(8080), 0);
    for round in 0..4_u16 {
        site.go_back();
        std::thread::scope(|scope| {
            for n in 0..4_u16 {
                let (site, number) = (&site, 9000 + 10 * round + n);
                let attachment = Attachment::new(&format!("many{number}"), &site.pods[1]);
                let net = port(number);
                scope.spawn(move || net.call("ADD", &attachment, Some(&site.results[1])).run().success());
            }
        });
        assert_eq!(site.moved(), [true; 3]);
        for n in 0..4 {
            assert!(tcp(&site.world, &format!("192.0.2.1:{}", 9000 + 10 * round + n)).is_ok());
        }
        assert!(tcp(&site.host, "127.0.0.1:8080").unwrap().starts_with("pod0 "));
        let hairpin = tcp(&site.pods[0], "192.0.2.1:8080").unwrap();
        assert!(hairpin.starts_with("pod0 "), "{hairpin}");
    }
}

/// `CNIMBLE_EARLIER_DIR` has the plugins of an earlier build. Without it, its rules are made from ours.
#[test]
fn an_open_connection_stays_while_versions_take_turns() {
    need!("nft", "ip");
    let earlier = std::env::var_os("CNIMBLE_EARLIER_DIR").map(std::path::PathBuf::from);
    let site = Site::new();
    let port =
        |port: u16| site.network(json!([{"hostPort": port, "containerPort": port, "protocol": "tcp"}]));
    let old = |number: u16| earlier.as_ref().map(|dir| port(number).served_by(dir));
    let _inside = Server::start(&site.pods[1], 9090, "pod1");
    match old(7777) {
        Some(old) => drop(site.add(&old, 0)),
        None => {
            site.add(&port(7777), 0);
            site.go_back();
        }
    }
    assert_eq!(site.moved(), [false; 3]);
    let stream = Stream::between(&site.world, &site.pods[0], "192.0.2.1");
    port(7777).check(&site.attachment(0), &site.results[0]).success();
    site.add(&port(9090), 1);
    assert_eq!(site.moved(), [true; 3]);
    stream.flows("after the next ADD");
    let third = Attachment::new("third", &site.pods[1]);
    if let Some(old) = old(9091) {
        for (net, attachment, prev) in [
            (&old, &third, &site.results[1]),
            (&port(7777).served_by(earlier.as_ref().unwrap()), &site.attachment(0), &site.results[0]),
        ] {
            if attachment.id == third.id {
                net.call("ADD", attachment, Some(prev)).run().success();
                port(9091).check(attachment, prev).success();
            }
            net.check(attachment, prev).success();
        }
        assert_eq!(site.moved(), [true; 3]);
        assert!(tcp(&site.world, "192.0.2.1:9090").unwrap().starts_with("pod1 "));
        old.deleted(&third, Some(&site.results[1]));
        stream.flows("after the earlier version's ADD and DEL");
    }
    port(9090).deleted(&site.attachment(1), Some(&site.results[1]));
    stream.flows("after a DEL");
    stream.end();
    let last = old(7777).unwrap_or_else(|| port(7777));
    last.deleted(&site.attachment(0), Some(&site.results[0]));
    assert!(!site.ruleset().contains("portmap"), "{}", site.ruleset());
}
