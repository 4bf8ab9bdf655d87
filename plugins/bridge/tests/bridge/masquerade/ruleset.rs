use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_tests::{Ns, need};

use super::{add, nets, owner, remove, ruleset};

/// `nft -f` loads the listing, which is then the same.
fn assert_reloads(ns: &Ns) {
    let listed = ruleset(ns);
    let other = Ns::new();
    let loaded = other.run_with("nft -f -", listed.as_bytes());
    assert_eq!(loaded.status, 0, "{loaded:?}\n{listed}");
    assert_eq!(ruleset(&other), listed);
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

/// The two pods of docs/NFTABLES.md.
fn documented() -> Ns {
    let ns = Ns::new();
    let mac = |n: u8| cnimble_netlink::link::Mac([0x0a, 0x58, 0x0a, 0x01, 0, n]);
    ns.within(|| {
        let mut nft = Nft::new();
        for (id, ips, port) in [
            ("web-5d9f7c", ["10.1.0.2/16", "fd00:10:1::2/64"], Some(("veth2c26b46b", 2))),
            ("db-0", ["10.1.0.3/16", "fd00:10:1::3/64"], None),
        ] {
            let pod = owner("cluster", id);
            masquerade::add(Backend::Nftables, &mut nft, &pod, &nets(&ips)).unwrap();
            if let Some((port, n)) = port {
                cnimble_rules::spoof::add(&mut nft, &pod, port, mac(n)).unwrap();
            }
        }
    });
    ns
}

#[test]
fn the_documented_ruleset_is_real() {
    need!("nft");
    let real = documented().nft("list ruleset");
    let page = include_str!("../../../../../docs/NFTABLES.md");
    let shown = page.split("```nft\n").nth(1).unwrap().split("```").next().unwrap();
    // Elements are listed in a random order.
    let words = |text: &str| {
        let mut words: Vec<String> =
            text.split_whitespace().map(|word| word.trim_end_matches(',').to_owned()).collect();
        words.sort();
        words
    };
    assert_eq!(words(shown), words(&real), "docs/NFTABLES.md shows\n{shown}\nbut it is\n{real}");
}

#[test]
fn a_del_behind_one_that_was_killed_removes_what_that_had_emptied() {
    need!("nft");
    for addrs in [&["10.1.0.5/16"][..], &[]] {
        let ns = Ns::new();
        add(&ns, &owner("net1", "pod1"), &["10.1.0.5/16"]);
        // As after a killed DEL.
        ns.nft("flush set inet cnimble masq-10.1.0.0/16");
        remove(&ns, &owner("net1", "pod1"), addrs);
        assert_eq!(ruleset(&ns), "");
    }
}
