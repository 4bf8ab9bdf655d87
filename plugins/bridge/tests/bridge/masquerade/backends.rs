use ipnetwork::IpNetwork;

use cnimble_cni::{Code, Owner};
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_tests::{Ns, Snapshot, need};

use super::{Path, add, check, nets, owner, ruleset, undo};

#[test]
fn backends_are_chosen_by_name_or_by_what_works() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        assert_eq!(masquerade::choose(None, &mut nft).unwrap(), Backend::Auto);
        assert_eq!(masquerade::choose(Some("nftables"), &mut nft).unwrap(), Backend::Nftables);
        assert_eq!(masquerade::choose(Some("iptables"), &mut nft).unwrap(), Backend::Iptables);
        let err = masquerade::choose(Some("pf"), &mut nft).unwrap_err();
        assert_eq!(err.code, Code::INVALID_CONFIG);
        assert!(err.to_string().contains("\"nftables\"") && err.to_string().contains("\"iptables\""));
        masquerade::status(Some("nftables")).unwrap();
        masquerade::status(None).unwrap();
    });
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
        ["224.0.0.0/4 return", "ff00::/8 return", "masquerade", "drop", "jump masq-invalid"]
            .map(|rule| listed.matches(rule).count())
    };
    // Multicast is in two chains.
    const WHOLE: [usize; 5] = [2, 2, 1, 1, 1];
    assert_eq!(whole(&ruleset(&path.node)), WHOLE);
    for damage in [
        "flush table inet cnimble",
        "delete chain inet cnimble postrouting",
        "flush chain inet cnimble masq-invalid",
        "delete chain inet cnimble masq-guard",
        "flush ruleset",
    ] {
        path.node.nft(damage);
        let undone = add(&path.node, &pod, &["10.1.0.5/16"]);
        check(&path.node, &pod, &["10.1.0.5/16"]).unwrap();
        assert_eq!(whole(&ruleset(&path.node)), WHOLE, "{damage}");
        assert_eq!(path.seen("192.0.2.9"), "192.0.2.1", "{damage}");
        undo(&path.node, undone);
        assert!(!ruleset(&path.node).contains("10.1.0.5"), "{damage}");
        add(&path.node, &owner("net1", "pod2"), &["10.1.0.6/16"]);
    }
    // Also with the pod's own element.
    add(&path.node, &pod, &["10.1.0.5/16"]);
    path.node.nft("flush table inet cnimble");
    add(&path.node, &pod, &["10.1.0.5/16"]);
    check(&path.node, &pod, &["10.1.0.5/16"]).unwrap();
}

#[test]
fn where_nf_tables_cannot_masquerade_iptables_does() {
    need!("nft", "iptables-nft-save");
    let ns = Ns::new();
    // A chain of the wrong type has the error of a kernel without NAT in nf_tables, EOPNOTSUPP.
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

/// Both interfaces of a container in one network use its chain.
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
    // Rules for traffic inside a network come first.
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
    // Without a prevResult all interfaces' rules go: the owner of a rule is unknown, and the container is gone.
    add(&one, &addrs1);
    add(&two, &addrs2);
    removed(&two, &[]);
    assert_eq!(rules(), Vec::<String>::new());
}
