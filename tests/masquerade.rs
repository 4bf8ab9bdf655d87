//! Masquerading in nf_tables and with iptables: packets, rulesets, owners, leftovers.
// Test code throughout: it stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use cnimble::net::nft::Nft;
use cnimble::rules::Owner;
use cnimble::rules::masquerade::{self, Backend, Undo};
use cnimble::spec::{Attachment, Code, Error};
use cnimble_tests::{Ns, Snapshot, need};
use ipnetwork::IpNetwork;

fn owner(network: &str, id: &str) -> Owner {
    Owner {
        network: network.into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    }
}

fn nets(addrs: &[&str]) -> Vec<IpNetwork> {
    addrs.iter().map(|addr| addr.parse().unwrap()).collect()
}

fn add(ns: &Ns, owner: &Owner, addrs: &[&str]) -> Undo {
    let addrs = nets(addrs);
    ns.within(|| masquerade::add(Backend::Nftables, &mut Nft::new(), owner, &addrs).unwrap())
}

fn remove(ns: &Ns, owner: &Owner, addrs: &[&str]) {
    let addrs = nets(addrs);
    ns.within(|| masquerade::remove(&mut Nft::new(), owner, &addrs).unwrap());
}

fn check(ns: &Ns, owner: &Owner, addrs: &[&str]) -> Result<(), Error> {
    let addrs = nets(addrs);
    ns.within(|| masquerade::check(&mut Nft::new(), owner, &addrs))
}

fn undo(ns: &Ns, undo: Undo) {
    ns.within(|| undo.run().unwrap());
}

fn ruleset(ns: &Ns) -> String {
    ns.nft("-s list ruleset")
}

/// The listing goes through `nft -f` and comes out the same.
fn assert_reloads(ns: &Ns) {
    let listed = ruleset(ns);
    let other = Ns::new();
    let loaded = other.run_with("nft -f -", listed.as_bytes());
    assert_eq!(loaded.status, 0, "{loaded:?}\n{listed}");
    assert_eq!(ruleset(&other), listed);
}

/// A pod, a node and the world behind it, joined by veth pairs.
struct Path {
    pod: Ns,
    node: Ns,
    world: Ns,
}

impl Path {
    fn new() -> Self {
        let path = Path { pod: Ns::new(), node: Ns::new(), world: Ns::new() };
        path.node.cable("toworld", &path.world, "uplink");
        path.node.cable("topod", &path.pod, "eth0");
        path.node.set_sysctl("ipv4/ip_forward", "1");
        path.node.set_sysctl("ipv6/conf/all/forwarding", "1");
        for (ns, link, addrs) in [
            (&path.pod, "eth0", ["10.1.0.5/16", "fd01::5/64"]),
            (&path.node, "topod", ["10.1.0.1/16", "fd01::1/64"]),
            (&path.node, "toworld", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&path.world, "uplink", ["192.0.2.9/24", "2001:db8::9/64"]),
        ] {
            ns.ip(&format!("addr add {} dev {link}", addrs[0]));
            ns.ip(&format!("-6 addr add {} dev {link} nodad", addrs[1]));
        }
        path.pod.ip("route add default via 10.1.0.1");
        path.pod.ip("-6 route add default via fd01::1");
        path
    }

    /// Whom the world sees when the pod sends a datagram.
    fn seen(&self, to: &str) -> String {
        use std::net::UdpSocket;
        let (to, any) = if to.contains(':') {
            (format!("[{to}]:7000"), "[::]:7000")
        } else {
            (format!("{to}:7000"), "0.0.0.0:7000")
        };
        let listener = self.world.within(|| UdpSocket::bind(any).unwrap());
        listener.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let bind = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let sender = self.pod.within(|| UdpSocket::bind(bind).unwrap());
        let mut buffer = [0; 16];
        for _ in 0..3 {
            sender.send_to(b"hello", &to).unwrap();
            if let Ok((_, from)) = listener.recv_from(&mut buffer) {
                return from.ip().to_string();
            }
        }
        panic!("nothing arrived at {to}");
    }
}

#[test]
fn what_leaves_the_pod_network_comes_from_the_node() {
    need!("nft", "ip");
    let path = Path::new();
    // The world knows the way back for as long as nothing is masqueraded.
    path.world.ip("route add 10.1.0.0/16 via 192.0.2.1");
    path.world.ip("-6 route add fd01::/64 via 2001:db8::1");
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");

    let pod = owner("net1", "pod1");
    add(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "192.0.2.1");
    assert_eq!(path.seen("2001:db8::9"), "2001:db8::1");

    // A destination inside the pod network keeps the source, as does another pod's traffic.
    path.world.ip("addr add 10.1.7.7/32 dev lo");
    path.node.ip("route add 10.1.7.7/32 via 192.0.2.9");
    path.pod.ip("route add 10.1.7.7/32 via 10.1.0.1");
    assert_eq!(path.seen("10.1.7.7"), "10.1.0.5");

    remove(&path.node, &pod, &["10.1.0.5/16", "fd01::5/64"]);
    assert_eq!(path.seen("192.0.2.9"), "10.1.0.5");
    assert_eq!(path.seen("2001:db8::9"), "fd01::5");
}

#[test]
fn the_ruleset_can_be_listed_and_loaded() {
    need!("nft");
    let ns = Ns::new();
    add(&ns, &owner("net1", "pod1"), &["10.1.0.5/16", "fd01::5/64"]);
    add(&ns, &owner("net1", &"x".repeat(120)), &["10.1.0.6/16", "fd01::6/64"]);
    for (n, net) in
        ["10.2.3.4/20", "10.3.3.4/32", "10.4.3.4/25", "fd02::1/128", "fd03:1:2:3:4::1/67"].iter().enumerate()
    {
        add(&ns, &owner("net2", &format!("pod{n}")), &[net]);
    }
    let listed = ruleset(&ns);
    for line in [
        "ip daddr 224.0.0.0/4 return",
        "ip6 daddr ff00::/8 return",
        "ip saddr @masq-10.1.0.0/16 ip daddr != 10.1.0.0/16 masquerade",
        "ip6 saddr @masq-fd01--/64 ip6 daddr != fd01::/64 masquerade",
        "ip saddr @masq-10.3.3.4/32 ip daddr != 10.3.3.4 masquerade",
    ] {
        assert!(listed.contains(line), "{line}\n{listed}");
    }
    assert_reloads(&ns);
}

#[test]
fn adding_again_changes_nothing() {
    need!("nft");
    let ns = Ns::new();
    let pod = owner("net1", "pod1");
    add(&ns, &pod, &["10.1.0.5/16"]);
    let before = ruleset(&ns);
    let again = add(&ns, &pod, &["10.1.0.5/16", "10.1.0.5/16"]);
    assert_eq!(ruleset(&ns), before);
    // And so its undo has nothing to take back.
    undo(&ns, again);
    assert_eq!(ruleset(&ns), before);
    check(&ns, &pod, &["10.1.0.5/16"]).unwrap();
}

#[test]
fn a_stale_element_is_taken_over() {
    need!("nft");
    let ns = Ns::new();
    let (dead, pod) = (owner("net1", "dead"), owner("net1", "pod"));
    add(&ns, &dead, &["10.1.0.5/16"]);
    let before = ruleset(&ns);
    let taken = add(&ns, &pod, &["10.1.0.5/16"]);
    check(&ns, &pod, &["10.1.0.5/16"]).unwrap();
    let err = check(&ns, &dead, &["10.1.0.5/16"]).unwrap_err();
    assert_eq!(err.code, Code::CHECK_FAILED);
    assert!(err.to_string().contains("is another's"), "{err}");

    // The dead one's late DEL leaves what isn't its own, with a stale hint and without.
    remove(&ns, &dead, &["10.1.0.5/16"]);
    remove(&ns, &dead, &[]);
    check(&ns, &pod, &["10.1.0.5/16"]).unwrap();

    // Undo gives it back.
    undo(&ns, taken);
    assert_eq!(ruleset(&ns), before);
}

/// Nobody forbids two networks to give out the same address; each pod keeps its masquerading
/// when the other goes.
#[test]
fn two_networks_may_have_the_same_address() {
    need!("nft");
    let addrs = ["10.1.0.5/16", "fd00::5/64"];
    let both = [owner("net1", "one"), owner("net2", "two")];
    for (first, second) in [(0, 1), (1, 0)] {
        let ns = Ns::new();
        add(&ns, &both[0], &addrs);
        let alone = ruleset(&ns);
        let undone = add(&ns, &both[1], &addrs);
        undo(&ns, undone);
        assert_eq!(ruleset(&ns), alone);
        add(&ns, &both[1], &addrs);
        check(&ns, &both[0], &addrs).unwrap();
        check(&ns, &both[1], &addrs).unwrap();
        remove(&ns, &both[first], &addrs);
        check(&ns, &both[second], &addrs).unwrap();
        check(&ns, &both[first], &addrs).unwrap_err();
        // Within a network, an address has one owner.
        let heir = owner(&both[second].network, "heir");
        add(&ns, &heir, &addrs);
        check(&ns, &heir, &addrs).unwrap();
        remove(&ns, &both[second], &addrs);
        remove(&ns, &heir, &addrs);
        assert!(!ruleset(&ns).contains("one") && !ruleset(&ns).contains("heir"), "{}", ruleset(&ns));
        remove(&ns, &both[second], &[]);
        assert_eq!(ruleset(&ns), "");
    }
}

#[test]
fn removal_needs_no_hint_and_repeats() {
    need!("nft");
    let ns = Ns::new();
    let (a, b) = (owner("net1", &"a".repeat(200)), owner("net1", "b"));
    add(&ns, &b, &["10.1.0.6/16"]);
    let before = ruleset(&ns);
    for hint in
        [&[][..], &["10.1.0.5/16"], &["10.1.0.5/16", "fd01::5/64"], &["10.1.0.6/16"], &["10.9.9.9/16"]]
    {
        add(&ns, &a, &["10.1.0.5/16", "fd01::5/64"]);
        remove(&ns, &a, hint);
        if hint == ["10.1.0.5/16"] {
            // A hint that is right but not complete: the rest goes with a later DEL without one.
            remove(&ns, &a, &[]);
        }
        remove(&ns, &a, hint);
        let now = ruleset(&ns);
        assert!(!now.contains("10.1.0.5") && !now.contains("fd01::5"), "{hint:?}: {now}");
        check(&ns, &b, &["10.1.0.6/16"]).unwrap();
    }
    assert!(before.contains("10.1.0.6"));
    // Where there is no table there is no work, and none is made.
    let empty = Ns::new();
    remove(&empty, &a, &["10.1.0.5/16"]);
    remove(&empty, &a, &[]);
    assert_eq!(ruleset(&empty), "");
}

#[test]
fn undo_is_exact() {
    need!("nft");
    // Alone: nothing is left.
    let ns = Ns::new();
    let before = Snapshot::of_ns(&ns);
    let made = add(&ns, &owner("net1", "a"), &["10.1.0.5/16", "fd01::5/64"]);
    undo(&ns, made);
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");

    // With a second user of the table, and of the set: what it uses stays.
    let first = add(&ns, &owner("net1", "a"), &["10.1.0.5/16", "fd01::5/64"]);
    let second = add(&ns, &owner("net1", "b"), &["10.1.0.6/16"]);
    undo(&ns, first);
    check(&ns, &owner("net1", "b"), &["10.1.0.6/16"]).unwrap();
    let now = ruleset(&ns);
    assert!(!now.contains("fd01") && !now.contains("10.1.0.5"), "{now}");
    // The second made nothing but its element: the set stays, empty.
    undo(&ns, second);
    assert!(!ruleset(&ns).contains("10.1.0.6"));

    // Another network's set only.
    let before = ruleset(&ns);
    let third = add(&ns, &owner("net2", "c"), &["10.2.0.5/16"]);
    assert!(ruleset(&ns).contains("masq-10.2.0.0/16"));
    undo(&ns, third);
    assert_eq!(ruleset(&ns), before);
}

#[test]
fn a_pod_costs_the_same_at_500_pods() {
    need!("nft");
    let ns = Ns::new();
    let addr = |n: u32| format!("10.1.{}.{}/16", n / 200, n % 200 + 2);
    let cost = |nft: &mut Nft, n: u32| {
        let pod = owner("net1", &format!("pod{n:05}"));
        let addrs = nets(&[&addr(n)]);
        let start = nft.traffic();
        masquerade::add(Backend::Nftables, nft, &pod, &addrs).unwrap();
        let middle = nft.traffic();
        masquerade::remove(nft, &pod, &addrs).unwrap();
        let end = nft.traffic();
        masquerade::add(Backend::Nftables, nft, &pod, &addrs).unwrap();
        let between = |a: cnimble::net::nft::Traffic, b: cnimble::net::nft::Traffic| {
            (b.requests - a.requests, b.bytes_out - a.bytes_out, b.bytes_in - a.bytes_in)
        };
        (between(start, middle), between(middle, end))
    };
    let (second, last) = ns.within(|| {
        let mut nft = Nft::new();
        cost(&mut nft, 10_000);
        let second = cost(&mut nft, 10_001);
        for n in 10_002..10_500 {
            let pod = owner("net1", &format!("pod{n:05}"));
            masquerade::add(Backend::Nftables, &mut nft, &pod, &nets(&[&addr(n)])).unwrap();
        }
        (second, cost(&mut nft, 10_500))
    });
    assert_eq!(second, last);
    assert_eq!(last.0.0, 4, "three questions and one batch add a pod: {last:?}");
    assert_eq!(ruleset(&ns).matches("comment").count(), 501);
}

#[test]
fn many_race_for_the_first_table() {
    need!("nft");
    for _ in 0..5 {
        let ns = Ns::new();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let ns = &ns;
                scope.spawn(move || {
                    let made = add(ns, &owner("net1", &format!("p{n}")), &[&format!("10.1.0.{}/16", n + 2)]);
                    // Half of them fail later on.
                    if n % 2 == 1 {
                        undo(ns, made);
                    }
                });
            }
        });
        let listed = ruleset(&ns);
        assert_eq!(listed.matches("comment").count(), 4, "{listed}");
        assert_eq!(listed.matches("masquerade").count(), 1, "{listed}");
    }
}

#[test]
fn pods_come_and_go_at_once() {
    need!("nft");
    let ns = Ns::new();
    add(&ns, &owner("net1", "stays"), &["10.1.9.9/16"]);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let ns = &ns;
            scope.spawn(move || {
                for n in 0..25 {
                    let pod = owner("net1", &format!("p{thread}-{n}"));
                    let net = thread % 2 + 1;
                    let addr = format!("10.{net}.{thread}.{}/16", n + 1);
                    let made = add(ns, &pod, &[&addr]);
                    check(ns, &pod, &[&addr]).unwrap();
                    // With listings, which the others' changes interrupt, and without.
                    match n % 4 {
                        0 => remove(ns, &pod, &[&addr]),
                        1 => remove(ns, &pod, &[]),
                        2 => undo(ns, made),
                        _ => {
                            let gone = format!("p{thread}");
                            ns.within(|| masquerade::gc(&mut Nft::new(), &gone, &[]).unwrap());
                            remove(ns, &pod, &[]);
                        }
                    }
                }
            });
        }
    });
    let listed = ruleset(&ns);
    assert_eq!(listed.matches("comment").count(), 1, "{listed}");
    check(&ns, &owner("net1", "stays"), &["10.1.9.9/16"]).unwrap();
}

#[test]
fn gc_keeps_the_valid_and_other_networks() {
    need!("nft");
    let ns = Ns::new();
    let a = owner("net1", "a");
    add(&ns, &a, &["10.1.0.2/16", "fd01::2/64"]);
    for n in 0..450 {
        add(&ns, &owner("net1", &format!("stale{n}")), &[&format!("10.1.{}.{}/16", n / 200 + 1, n % 200)]);
    }
    let other = owner("net2", "a");
    add(&ns, &other, &["10.2.0.2/16"]);
    ns.within(|| masquerade::gc(&mut Nft::new(), "net1", std::slice::from_ref(&a.attachment)).unwrap());
    assert_eq!(ruleset(&ns).matches("comment").count(), 3);
    check(&ns, &a, &["10.1.0.2/16", "fd01::2/64"]).unwrap();
    check(&ns, &other, &["10.2.0.2/16"]).unwrap();
    // Nothing valid: also the sets and, when the last network is gone, the table.
    ns.within(|| masquerade::gc(&mut Nft::new(), "net1", &[]).unwrap());
    assert!(!ruleset(&ns).contains("10.1."));
    ns.within(|| masquerade::gc(&mut Nft::new(), "net2", &[]).unwrap());
    assert_eq!(ruleset(&ns), "");
}

#[test]
fn check_says_what_is_missing() {
    need!("nft");
    let ns = Ns::new();
    let pod = owner("net1", "a");
    let missing = || check(&ns, &pod, &["10.1.0.2/16"]).unwrap_err();
    assert_eq!(missing().code, Code::CHECK_FAILED);
    add(&ns, &pod, &["10.1.0.2/16"]);
    check(&ns, &pod, &["10.1.0.2/16"]).unwrap();
    ns.nft("flush chain inet cnimble postrouting");
    assert!(missing().to_string().contains("has no rule for set"), "{}", missing());
    // Undo and removal cope with what an operator did.
    remove(&ns, &pod, &["10.1.0.2/16"]);
    assert!(!ruleset(&ns).contains("10.1.0.2"));
}

#[test]
fn backends_are_chosen_by_name_or_by_what_works() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        assert_eq!(Backend::choose(None, &mut nft).unwrap(), Backend::Auto);
        assert_eq!(Backend::choose(Some("nftables"), &mut nft).unwrap(), Backend::Nftables);
        assert_eq!(Backend::choose(Some("iptables"), &mut nft).unwrap(), Backend::Iptables);
        let err = Backend::choose(Some("pf"), &mut nft).unwrap_err();
        assert_eq!(err.code, Code::INVALID_CONFIG);
        assert!(err.to_string().contains("\"nftables\"") && err.to_string().contains("\"iptables\""));
        masquerade::status(Backend::Nftables, &mut nft).unwrap();
        masquerade::status(Backend::Auto, &mut nft).unwrap();
    });
    // Asking leaves nothing.
    assert_eq!(ruleset(&ns), "");
    let addrs = nets(&["10.1.0.2/16"]);
    ns.within(|| masquerade::add(Backend::Auto, &mut Nft::new(), &owner("net1", "a"), &addrs).unwrap());
    assert!(ruleset(&ns).contains("inet cnimble"));
}

#[test]
fn what_was_flushed_is_made_again() {
    need!("nft");
    let path = Path::new();
    let pod = owner("net1", "pod1");
    add(&path.node, &owner("net1", "pod2"), &["10.1.0.6/16"]);
    let whole = |listed: &str| {
        ["224.0.0.0/4 return", "ff00::/8 return", "masquerade"].map(|rule| listed.matches(rule).count())
    };
    assert_eq!(whole(&ruleset(&path.node)), [1, 1, 1]);
    for damage in ["flush table inet cnimble", "delete chain inet cnimble postrouting", "flush ruleset"] {
        path.node.nft(damage);
        let undone = add(&path.node, &pod, &["10.1.0.5/16"]);
        check(&path.node, &pod, &["10.1.0.5/16"]).unwrap();
        assert_eq!(whole(&ruleset(&path.node)), [1, 1, 1], "{damage}");
        assert_eq!(path.seen("192.0.2.9"), "192.0.2.1", "{damage}");
        undo(&path.node, undone);
        assert!(!ruleset(&path.node).contains("10.1.0.5"), "{damage}");
        add(&path.node, &owner("net1", "pod2"), &["10.1.0.6/16"]);
    }
    // Also when the pod's own element survived.
    add(&path.node, &pod, &["10.1.0.5/16"]);
    path.node.nft("flush table inet cnimble");
    add(&path.node, &pod, &["10.1.0.5/16"]);
    check(&path.node, &pod, &["10.1.0.5/16"]).unwrap();
}

#[test]
fn where_nf_tables_cannot_masquerade_iptables_does() {
    need!("nft", "iptables-nft-save");
    let ns = Ns::new();
    // A chain of the wrong type stands for a kernel without NAT in nf_tables: the refusal is
    // the same, EOPNOTSUPP.
    ns.run_with(
        "nft -f -",
        b"table inet cnimble { chain postrouting { type filter hook postrouting priority 0; }; }",
    )
    .success();
    let before = Snapshot::of_ns(&ns);
    let pod = owner("net1", "a");
    let addrs = nets(&["10.1.0.2/16", "fd01::2/64"]);
    ns.within(|| {
        let mut nft = Nft::new();
        let err = masquerade::add(Backend::Nftables, &mut nft, &pod, &addrs).unwrap_err();
        assert_eq!(err.code, Code::KERNEL);
        assert!(err.msg.starts_with("add rule to chain inet cnimble postrouting"), "{err}");
    });
    before.assert_same(&Snapshot::of_ns(&ns), "after the refusal");
    let undone = ns.within(|| masquerade::add(Backend::Auto, &mut Nft::new(), &pod, &addrs).unwrap());
    assert!(ns.sh("iptables-nft-save -t nat").contains("-s 10.1.0.2/32"));
    assert!(ns.sh("ip6tables-nft-save -t nat").contains("-s fd01::2/128"));
    check(&ns, &pod, &["10.1.0.2/16", "fd01::2/64"]).unwrap();
    undo(&ns, undone);
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");
}

/// A container in one network twice: iptables' chain is the container's, for both interfaces.
#[test]
fn two_interfaces_share_an_iptables_chain() {
    need!("nft", "iptables-nft-save");
    let ns = Ns::new();
    let (one, mut two) = (owner("net1", "a"), owner("net1", "a"));
    two.attachment.ifname = "eth1".into();
    let (addrs1, addrs2) = (nets(&["10.1.0.2/16", "fd01::2/64"]), nets(&["10.1.0.3/16", "fd02::3/64"]));
    let rules = || {
        let saved = ns.shell("iptables-nft-save -t nat; ip6tables-nft-save -t nat");
        let mut lines: Vec<String> =
            saved.lines().filter(|line| line.contains("CNI-")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let add = |pod: &Owner, addrs: &[IpNetwork]| {
        ns.within(|| masquerade::add(Backend::Iptables, &mut Nft::new(), pod, addrs).unwrap())
    };
    let masqueraded = |pod: &Owner, addrs: &[IpNetwork]| {
        ns.within(|| masquerade::check(&mut Nft::new(), pod, addrs).is_ok())
    };
    let removed = |pod: &Owner, addrs: &[IpNetwork]| {
        ns.within(|| masquerade::remove(&mut Nft::new(), pod, addrs).unwrap());
    };
    add(&one, &addrs1);
    let first = rules();
    assert!(!masqueraded(&two, &addrs2));
    let undo = add(&two, &addrs2);
    assert!(masqueraded(&one, &addrs1) && masqueraded(&two, &addrs2), "{:#?}", rules());
    // What stays inside a network comes before what is masqueraded.
    let chain = ns.sh("ip6tables-nft-save -t nat");
    let place = |what: &str| chain.find(what).unwrap_or_else(|| panic!("{what} in {chain}"));
    assert!(place("-d fd02::/64") < place("-j MASQUERADE") && place("-d fd01::/64") < place("-j MASQUERADE"));
    let both = rules();
    add(&two, &addrs2);
    assert_eq!(rules(), both, "again: nothing is there twice");
    ns.within(|| undo.run().unwrap());
    assert_eq!(rules(), first, "undo leaves the other interface alone");
    add(&two, &addrs2);
    removed(&one, &addrs1);
    assert!(masqueraded(&two, &addrs2) && !masqueraded(&one, &addrs1), "{:#?}", rules());
    removed(&two, &addrs2);
    assert_eq!(rules(), Vec::<String>::new());
    // Without an earlier result nobody knows whose a rule is; the container is gone, then.
    add(&one, &addrs1);
    add(&two, &addrs2);
    removed(&two, &[]);
    assert_eq!(rules(), Vec::<String>::new());
}

/// The three pods of docs/NFTABLES.md.
fn documented() -> Ns {
    let ns = Ns::new();
    let mac = |n: u8| cnimble::net::link::Mac([0x0a, 0x58, 0x0a, 0x01, 0, n]);
    ns.within(|| {
        let mut nft = Nft::new();
        for (network, id, ips, port) in [
            ("cluster", "web-5d9f7c", &["10.1.0.2/16", "fd00:10:1::2/64"][..], Some(("veth2c26b46b", 2))),
            ("cluster", "db-0", &["10.1.0.3/16", "fd00:10:1::3/64"][..], None),
            ("storage", "db-0", &["10.9.0.2/24"][..], None),
        ] {
            let mut pod = owner(network, id);
            if network == "storage" {
                pod.attachment.ifname = "eth1".into();
            }
            masquerade::add(Backend::Nftables, &mut nft, &pod, &nets(ips)).unwrap();
            if let Some((port, n)) = port {
                cnimble::rules::spoof::add(&mut nft, &pod, port, mac(n)).unwrap();
            }
        }
    });
    ns
}

#[test]
fn the_documented_ruleset_is_real() {
    need!("nft");
    let real = documented().nft("list ruleset");
    let page = include_str!("../docs/NFTABLES.md");
    let shown = page.split("```nft\n").nth(1).unwrap().split("```").next().unwrap();
    // The order of a set's elements is the kernel's, and another each time.
    let words = |text: &str| {
        let mut words: Vec<String> =
            text.split_whitespace().map(|word| word.trim_end_matches(',').to_owned()).collect();
        words.sort();
        words
    };
    assert_eq!(words(shown), words(&real), "docs/NFTABLES.md shows\n{shown}\nbut it is\n{real}");
}
