//! Many pods, one after the other and at once.

use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_tests::{Ns, need};

use super::{add, check, nets, owner, remove, ruleset, undo};

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
        let between = |a: cnimble_netlink::nft::Traffic, b: cnimble_netlink::nft::Traffic| {
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
