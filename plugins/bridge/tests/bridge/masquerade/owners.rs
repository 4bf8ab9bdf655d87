use cnimble_cni::Code;
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade;
use cnimble_tests::{Ns, Snapshot, need};

use super::{add, check, owner, remove, ruleset, undo};

#[test]
fn adding_again_changes_nothing() {
    need!("nft");
    let ns = Ns::new();
    let pod = owner("net1", "pod1");
    add(&ns, &pod, &["10.1.0.5/16"]);
    let before = ruleset(&ns);
    let again = add(&ns, &pod, &["10.1.0.5/16", "10.1.0.5/16"]);
    assert_eq!(ruleset(&ns), before);
    // Its undo has nothing to remove.
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

    // The late DEL of the dead pod leaves foreign elements, with and without a stale hint.
    remove(&ns, &dead, &["10.1.0.5/16"]);
    remove(&ns, &dead, &[]);
    check(&ns, &pod, &["10.1.0.5/16"]).unwrap();

    // The undo restores it.
    undo(&ns, taken);
    assert_eq!(ruleset(&ns), before);
}

/// Each pod keeps its masquerading when the other is removed.
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
        let second_owner = owner(&both[second].network, "heir");
        add(&ns, &second_owner, &addrs);
        check(&ns, &second_owner, &addrs).unwrap();
        remove(&ns, &both[second], &addrs);
        remove(&ns, &second_owner, &addrs);
        assert!(!ruleset(&ns).contains("one") && !ruleset(&ns).contains("heir"), "{}", ruleset(&ns));
        remove(&ns, &both[second], &[]);
        assert_eq!(ruleset(&ns), "");
    }
}

/// An element beside another pod's stays there in an ADD after that pod's DEL: DEL with a hint looks for one element.
#[test]
fn a_place_beside_is_kept() {
    need!("nft");
    let ns = Ns::new();
    let addrs = ["10.1.0.5/16", "fd00::5/64"];
    let (one, two) = (owner("net1", "one"), owner("net2", "two"));
    add(&ns, &one, &addrs);
    add(&ns, &two, &addrs);
    // Other pods of both networks keep the sets.
    add(&ns, &owner("net1", "other"), &["10.1.0.6/16"]);
    remove(&ns, &one, &addrs);
    let before = ruleset(&ns);
    add(&ns, &two, &addrs);
    assert_eq!(ruleset(&ns), before);
    // Also if its rule was lost.
    ns.nft("flush chain inet cnimble postrouting");
    check(&ns, &two, &addrs).unwrap_err();
    add(&ns, &two, &addrs);
    check(&ns, &two, &addrs).unwrap();
    remove(&ns, &two, &addrs);
    let left = ruleset(&ns);
    assert!(!left.contains("two") && !left.contains("10.1.0.5") && !left.contains("fd00"), "{left}");
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
            // The hint is incomplete: a later DEL without one removes the rest.
            remove(&ns, &a, &[]);
        }
        remove(&ns, &a, hint);
        let now = ruleset(&ns);
        assert!(!now.contains("10.1.0.5") && !now.contains("fd01::5"), "{hint:?}: {now}");
        check(&ns, &b, &["10.1.0.6/16"]).unwrap();
    }
    assert!(before.contains("10.1.0.6"));
    // No table is made.
    let empty = Ns::new();
    remove(&empty, &a, &["10.1.0.5/16"]);
    remove(&empty, &a, &[]);
    assert_eq!(ruleset(&empty), "");
}

#[test]
fn undo_is_exact() {
    need!("nft");
    let ns = Ns::new();
    let before = Snapshot::of_ns(&ns);
    let made = add(&ns, &owner("net1", "a"), &["10.1.0.5/16", "fd01::5/64"]);
    undo(&ns, made);
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");

    // Another pod uses table and set.
    let first = add(&ns, &owner("net1", "a"), &["10.1.0.5/16", "fd01::5/64"]);
    let second = add(&ns, &owner("net1", "b"), &["10.1.0.6/16"]);
    undo(&ns, first);
    check(&ns, &owner("net1", "b"), &["10.1.0.6/16"]).unwrap();
    let now = ruleset(&ns);
    assert!(!now.contains("fd01") && !now.contains("10.1.0.5"), "{now}");
    undo(&ns, second);
    assert!(!ruleset(&ns).contains("10.1.0.6"));

    let before = ruleset(&ns);
    let third = add(&ns, &owner("net2", "c"), &["10.2.0.5/16"]);
    assert!(ruleset(&ns).contains("masq-10.2.0.0/16"));
    undo(&ns, third);
    assert_eq!(ruleset(&ns), before);
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
    // The table goes with the last network.
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
    // Undo and removal work after an operator's changes.
    remove(&ns, &pod, &["10.1.0.2/16"]);
    assert!(!ruleset(&ns).contains("10.1.0.2"));
}
