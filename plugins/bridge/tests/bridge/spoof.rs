use cnimble_cni::{Attachment, Code, Owner};
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::Nft;
use cnimble_rules::spoof;
use cnimble_tests::{Ns, Snapshot, need};

fn owner(id: &str) -> Owner {
    Owner {
        network: "net1".into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    }
}

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

fn add(ns: &Ns, owner: &Owner, port: &str, text: &str) -> spoof::Applied {
    ns.within(|| spoof::add(&mut Nft::new(), owner, port, mac(text)).unwrap())
}

fn ruleset(ns: &Ns) -> String {
    ns.nft("-s list ruleset")
}

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const EVIL: &str = "02:00:00:00:00:ee";

fn bridge() -> (Ns, Ns, Ns) {
    let (node, a, b) = (Ns::new(), Ns::new(), Ns::new());
    node.ip("link add br0 type bridge");
    node.ip("link set br0 up");
    for (pod, port, mac, n) in [(&a, "porta", A, 1), (&b, "portb", B, 2)] {
        node.cable(port, pod, "eth0");
        node.ip(&format!("link set {port} master br0"));
        pod.ip(&format!("link set eth0 address {mac}"));
        pod.ip(&format!("addr add 10.5.0.{n}/24 dev eth0"));
        pod.ip(&format!("-6 addr add fd05::{n}/64 dev eth0 nodad"));
    }
    (node, a, b)
}

/// As in the releases of the Go plugin.
fn chains_of_go(ns: &Ns, table: &str, base: &str, id: &str, port: &str) {
    let chain = format!("cni-br-iface-{id}-eth0");
    ns.nft(&format!("add table bridge {table}"));
    ns.nft(&format!("add chain bridge {table} {base} {{ type filter hook prerouting priority -300; }}"));
    for name in [chain.clone(), format!("{chain}-mac")] {
        ns.nft(&format!("add chain bridge {table} {name}"));
    }
    ns.nft(&format!("add rule bridge {table} {base} iifname {port} jump {chain}"));
    ns.nft(&format!("add rule bridge {table} {chain} jump {chain}-mac"));
    ns.nft(&format!("add rule bridge {table} {chain}-mac ether saddr {A} return"));
    ns.nft(&format!("add rule bridge {table} {chain}-mac drop"));
}

/// The Go plugin has no GC, and its chains name no network.
#[test]
fn gc_removes_what_the_go_plugin_left_of_ports_that_are_gone() {
    need!("nft", "ip");
    for (table, base) in [("nat", "PREROUTING"), ("cni_spoofcheck", "prerouting")] {
        let node = Ns::new();
        node.ip("link add porta type veth peer name far");
        chains_of_go(&node, table, base, "living", "porta");
        let before = Snapshot::of_ns(&node);
        chains_of_go(&node, table, base, "gone", "portb");
        node.within(|| spoof::gc(&mut Nft::new(), "net1", &[]).unwrap());
        before.assert_same(&Snapshot::of_ns(&node), table);
    }
}

#[test]
fn other_sources_are_dropped() {
    need!("nft", "ip", "ping");
    let (node, a, b) = bridge();
    assert!(a.pings("10.5.0.2") && a.pings("fd05::2"));
    let undo = add(&node, &owner("a"), "porta", A);
    node.within(|| spoof::check(&mut Nft::new(), &owner("a"), "porta", mac(A)).unwrap());
    assert!(a.pings("10.5.0.2") && a.pings("fd05::2") && b.pings("10.5.0.1"));

    // ARP, IPv4 and IPv6.
    a.ip(&format!("link set eth0 address {EVIL}"));
    for pod in [&a, &b] {
        pod.ip("neigh flush all");
    }
    assert!(a.misses("10.5.0.2"), "spoofed ARP got through");
    // Known neighbours: only IP packets are sent.
    for (pod, n, mac) in [(&a, 2, B), (&b, 1, EVIL)] {
        pod.ip(&format!("neigh replace 10.5.0.{n} lladdr {mac} dev eth0 nud permanent"));
        pod.ip(&format!("-6 neigh replace fd05::{n} lladdr {mac} dev eth0 nud permanent"));
    }
    assert!(a.misses("10.5.0.2"), "spoofed IPv4 got through");
    assert!(a.misses("fd05::2"), "spoofed IPv6 got through");

    node.within(|| undo.run().unwrap());
    assert!(a.pings("10.5.0.2") && a.pings("fd05::2"));
    assert_eq!(ruleset(&node), "");
}

#[test]
fn the_ruleset_can_be_listed_and_loaded() {
    need!("nft");
    let ns = Ns::new();
    add(&ns, &owner("a"), "veth1", A);
    add(&ns, &owner(&"b".repeat(100)), "veth2", B);
    let listed = ruleset(&ns);
    let rules = [
        "ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 iifname @ports drop",
        "iifname @ports iifname . ether saddr != @sources drop",
    ];
    assert!(rules.iter().all(|rule| listed.contains(rule)), "{listed}");
    assert!(listed.contains(&format!("\"veth1\" . {A}")), "{listed}");
    let other = Ns::new();
    let loaded = other.run_with("nft -f -", listed.as_bytes());
    assert_eq!(loaded.status, 0, "{loaded:?}");
    assert_eq!(ruleset(&other), listed);
}

#[test]
fn owners_keep_their_own() {
    need!("nft");
    let ns = Ns::new();
    let before = Snapshot::of_ns(&ns);
    let (a, b) = (owner("a"), owner("b"));
    let first = add(&ns, &a, "veth1", A);
    add(&ns, &a, "veth1", A);
    let listed = ruleset(&ns);
    ns.within(|| {
        let mut nft = Nft::new();
        // The DEL of another pod, with and without a stale port name.
        spoof::remove(&mut nft, &b, Some("veth1")).unwrap();
        spoof::remove(&mut nft, &b, None).unwrap();
    });
    assert_eq!(ruleset(&ns), listed);

    // The new owner's port refuses the old MAC.
    let taken = add(&ns, &b, "veth1", B);
    assert!(!ruleset(&ns).contains(A), "{}", ruleset(&ns));
    let err = ns.within(|| spoof::check(&mut Nft::new(), &a, "veth1", mac(A)).unwrap_err());
    assert_eq!(err.code, Code::CHECK_FAILED);
    ns.within(|| taken.run().unwrap());
    assert_eq!(ruleset(&ns), listed);
    ns.within(|| first.run().unwrap());
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");
}

#[test]
fn a_flushed_chain_is_filled_again() {
    need!("nft");
    let ns = Ns::new();
    add(&ns, &owner("a"), "veth1", A);
    let before = ruleset(&ns);
    for damage in ["flush table bridge cnimble", "delete chain bridge cnimble prerouting"] {
        ns.nft(damage);
        let check = || ns.within(|| spoof::check(&mut Nft::new(), &owner("a"), "veth1", mac(A)));
        assert!(check().unwrap_err().to_string().contains("has no rule"));
        add(&ns, &owner("a"), "veth1", A);
        check().unwrap();
        assert_eq!(ruleset(&ns), before);
    }
}

/// With only one rule. The next ADD completes it; CHECK is content before.
#[test]
fn a_table_of_an_earlier_version_is_completed() {
    need!("nft");
    let ns = Ns::new();
    add(&ns, &owner("a"), "veth1", A);
    let rules = || {
        let listed = ns.nft("-a list chain bridge cnimble prerouting");
        listed.lines().filter(|line| line.contains(" drop")).map(str::to_owned).collect::<Vec<_>>()
    };
    let [reserved, source] = rules().try_into().unwrap();
    let handle = reserved.rsplit(' ').next().unwrap();
    ns.nft(&format!("delete rule bridge cnimble prerouting handle {handle}"));
    assert_eq!(rules(), [source]);
    ns.within(|| spoof::check(&mut Nft::new(), &owner("a"), "veth1", mac(A)).unwrap());
    let undo = add(&ns, &owner("b"), "veth2", B);
    assert_eq!(rules().len(), 2, "{:?}", rules());
    add(&ns, &owner("c"), "veth3", EVIL);
    ns.within(|| undo.run().unwrap());
    assert_eq!(rules().len(), 2, "{:?}", rules());
}

#[test]
fn removal_and_gc() {
    need!("nft");
    let ns = Ns::new();
    for port in [Some("veth1"), None, Some("veth9")] {
        add(&ns, &owner("a"), "veth1", A);
        add(&ns, &owner("b"), "veth2", B);
        ns.within(|| {
            let mut nft = Nft::new();
            spoof::remove(&mut nft, &owner("a"), port).unwrap();
            spoof::remove(&mut nft, &owner("a"), port).unwrap();
            spoof::check(&mut nft, &owner("b"), "veth2", mac(B)).unwrap();
        });
        assert!(!ruleset(&ns).contains("veth1"), "{port:?}");
    }
    add(&ns, &owner("a"), "veth1", A);
    ns.within(|| spoof::gc(&mut Nft::new(), "net1", &[owner("b").attachment]).unwrap());
    assert!(!ruleset(&ns).contains("veth1") && ruleset(&ns).contains("veth2"));
    ns.within(|| spoof::gc(&mut Nft::new(), "other", &[]).unwrap());
    assert!(ruleset(&ns).contains("veth2"));
    ns.within(|| spoof::gc(&mut Nft::new(), "net1", &[]).unwrap());
    assert_eq!(ruleset(&ns), "");
    ns.within(|| spoof::status(&mut Nft::new()).unwrap());
    assert_eq!(ruleset(&ns), "");
}
