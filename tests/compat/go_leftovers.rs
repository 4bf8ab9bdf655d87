//! Rules that the Go plugins leave in nf_tables, also through iptables. Our plugins find and remove them, and the Go
//! plugins find and remove ours.

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use cnimble_cni::{Attachment as Id, Code, Owner};
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_rules::spoof;
use cnimble_tests::{Attachment, Host, Network, Ns, Snapshot, need, need_go};

fn owner(network: &str, id: &str) -> Owner {
    Owner { network: network.into(), attachment: Id { container_id: id.into(), ifname: "eth0".into() } }
}

fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br1", "isGateway": true,
        "ipMasq": true,
        "ipam": {
            "type": "host-local", "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]]
        }
    })
}

fn addrs(result: &Value) -> Vec<IpNetwork> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn iptables_chains_of_the_go_plugins_are_removed() {
    need_go!(go, "nft", "iptables-nft-save");
    let (host, pod1, pod2) = (Host::new(), Ns::new(), Ns::new());
    let net = Network::by(go, &host, config(&host));
    net.added(&Attachment::new("cont2", &pod2));
    let before = host.cni_nat();
    assert!(before.contains("-j MASQUERADE"), "{before}");
    let result = net.added(&Attachment::new("cont1", &pod1));
    let pod = owner("net1", "cont1");

    // CHECK accepts them for their address.
    host.within(|| {
        let mut nft = Nft::new();
        masquerade::check(&mut nft, &pod, &addrs(&result)).unwrap();
        let other: IpNetwork = "10.77.9.9/16".parse().unwrap();
        let err = masquerade::check(&mut nft, &pod, &[other]).unwrap_err();
        assert_eq!(err.code, Code::CHECK_FAILED);
    });
    // A rule in the format of older releases.
    let chain = cni_chain(&host, "cont1");
    host.shell(&format!(
        "iptables-nft -t nat -A POSTROUTING -s 10.77.0.3/16 -m comment --comment 'name: \"net1\" id: \"cont1\"' -j {chain}"
    ));
    assert_ne!(host.cni_nat(), before);
    host.within(|| masquerade::remove(&mut Nft::new(), &pod, &addrs(&result)).unwrap());
    assert_eq!(host.cni_nat(), before);
    host.within(|| masquerade::remove(&mut Nft::new(), &pod, &[]).unwrap());
    assert_eq!(host.cni_nat(), before);
    // The rest still works for the Go plugin.
    net.deleted(&Attachment::new("cont2", &pod2), None);
    assert_eq!(host.cni_nat(), "");
}

/// Returns the chain of a container, found by its comment.
fn cni_chain(ns: &Ns, id: &str) -> String {
    let rules = ns.cni_nat();
    let line = rules.lines().find(|line| line.starts_with("-A CNI-") && line.contains(id)).unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn gc_removes_iptables_chains_of_the_network_only() {
    need_go!(go, "nft", "iptables-nft-save");
    let host = Host::new();
    let pods: Vec<Ns> = (0..4).map(|_| Ns::new()).collect();
    let net1 = Network::by(go, &host, config(&host));
    let net2 = net1.with("/name", json!("net2"));
    net1.added(&Attachment::new("keep", &pods[0]));
    net1.added(&Attachment::new("stale1", &pods[1]));
    net1.added(&Attachment::new("stale2", &pods[2]));
    net2.added(&Attachment::new("stale1", &pods[3]).ifname("eth1"));
    // A chain of another plugin with a similar name.
    host.shell(
        "iptables-nft -t nat -N CNI-HOSTPORT-DNAT; iptables-nft -t nat -N CNI-0123456789abcdef01234567",
    );
    host.within(|| masquerade::gc(&mut Nft::new(), "net1", &[owner("net1", "keep").attachment]).unwrap());
    let left = host.cni_nat();
    assert!(!left.contains("net1\\\" id: \\\"stale"), "{left}");
    assert!(left.contains("net1\\\" id: \\\"keep") && left.contains("net2\\\" id: \\\"stale1"), "{left}");
    assert!(left.contains("CNI-HOSTPORT-DNAT") && left.contains("CNI-0123456789abcdef01234567"), "{left}");
}

#[test]
fn nft_rules_of_newer_go_plugins_are_removed() {
    need!("nft");
    let ns = Ns::new();
    let (pod, other) = (owner("net1", "cont1"), owner("net1", "cont2"));
    // The format of version 1.9. The packaged version is too old for it.
    let load = format!(
        "table inet cni_plugins_masquerade {{
            chain masq_checks {{
                ip saddr 10.77.0.2 ip daddr != 10.77.0.0/16 masquerade comment \"{0}\"
                ip6 saddr fd77::2 ip6 daddr != fd77::/64 masquerade comment \"{0}\"
                ip saddr 10.77.0.3 ip daddr != 10.77.0.0/16 masquerade comment \"{1}\"
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat; policy accept;
                ip daddr 224.0.0.0/4 return
                ip6 daddr ff00::/8 return
                goto masq_checks
            }}
        }}",
        pod.comment(),
        other.comment()
    );
    ns.run_with("nft -f -", load.as_bytes()).success();
    let addrs: Vec<IpNetwork> = ["10.77.0.2/16", "fd77::2/64"].map(|a| a.parse().unwrap()).to_vec();
    ns.within(|| {
        let mut nft = Nft::new();
        masquerade::check(&mut nft, &pod, &addrs).unwrap();
        masquerade::check(&mut nft, &other, &addrs).unwrap_err();
        masquerade::remove(&mut nft, &pod, &addrs).unwrap();
        masquerade::remove(&mut nft, &pod, &addrs).unwrap();
    });
    let left = ns.nft("list ruleset");
    assert!(!left.contains("10.77.0.2") && !left.contains("fd77::2") && left.contains("10.77.0.3"), "{left}");
    ns.within(|| masquerade::gc(&mut Nft::new(), "net2", &[]).unwrap());
    assert!(ns.nft("list ruleset").contains("10.77.0.3"));
    ns.within(|| masquerade::gc(&mut Nft::new(), "net1", std::slice::from_ref(&other.attachment)).unwrap());
    assert!(ns.nft("list ruleset").contains("10.77.0.3"));
    ns.within(|| masquerade::gc(&mut Nft::new(), "net1", &[]).unwrap());
    assert!(!ns.nft("list ruleset").contains("10.77.0.3"));
}

#[test]
fn our_iptables_backend_is_the_go_plugins() {
    need_go!(go, "nft", "iptables-nft-save");
    let (host, pod) = (Host::new(), Ns::new());
    let net = Network::by(go, &host, config(&host));
    let attachment = Attachment::new("cont1", &pod);
    let result = net.added(&attachment);
    let theirs = host.cni_nat();
    net.deleted(&attachment, Some(&result));
    assert_eq!(host.cni_nat(), "");

    // The same attachment without their masquerade, with ours.
    let result = net.with("/ipMasq", json!(false)).added(&attachment);
    let addrs = addrs(&result);
    let pod1 = owner("net1", "cont1");
    let ours = || host.within(|| masquerade::add(Backend::Iptables, &mut Nft::new(), &pod1, &addrs).unwrap());
    ours();
    let made = host.cni_nat();
    // The packaged host-local uses the next address.
    assert_eq!(made, theirs.replace("10.77.0.2/32", "10.77.0.3/32").replace("fd77::2/128", "fd77::3/128"));
    // A repeated call creates no duplicates, and its undo removes nothing.
    let again = ours();
    assert_eq!(host.cni_nat(), made);
    host.within(|| again.run().unwrap());
    assert_eq!(host.cni_nat(), made);
    // If half of it is removed, a call completes it.
    host.shell("iptables-nft -t nat -F POSTROUTING");
    ours();
    assert_eq!(host.cni_nat(), made);

    // The Go plugin removes it.
    net.deleted(&attachment, Some(&result));
    assert_eq!(host.cni_nat(), "");
}

#[test]
fn undo_of_the_iptables_backend_is_exact() {
    need!("nft", "iptables-nft-save");
    let ns = Ns::new();
    let before = Snapshot::of_ns(&ns);
    let addrs: Vec<IpNetwork> = ["10.77.0.2/16", "fd77::2/64"].map(|a| a.parse().unwrap()).to_vec();
    let add = |id: &str| {
        ns.within(|| masquerade::add(Backend::Iptables, &mut Nft::new(), &owner("net1", id), &addrs).unwrap())
    };
    let undo = add("cont1");
    assert!(ns.cni_nat().contains("MASQUERADE"));
    ns.within(|| undo.run().unwrap());
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");

    // With the rules of another container in the table.
    let undo = add("cont1");
    add("cont2");
    ns.within(|| undo.run().unwrap());
    let left = ns.cni_nat();
    assert!(left.contains("cont2") && !left.contains("cont1"), "{left}");

    ns.within(|| masquerade::status(Some("iptables")).unwrap());
}

#[test]
fn an_iptables_failure_half_way_leaves_nothing() {
    need!("nft", "iptables-nft-save");
    let ns = Ns::new();
    // IPv4 succeeds. For IPv6 there is a table that iptables can't use.
    ns.nft("add table ip6 nat");
    ns.shell("nft 'add chain ip6 nat POSTROUTING { type filter hook input priority 7; }'");
    let before = Snapshot::of_ns(&ns);
    let addrs: Vec<IpNetwork> = ["10.77.0.2/16", "fd77::2/64"].map(|a| a.parse().unwrap()).to_vec();
    let err = ns.within(|| {
        masquerade::add(Backend::Iptables, &mut Nft::new(), &owner("net1", "cont1"), &addrs).unwrap_err()
    });
    assert!(err.msg.contains("ip6tables-restore failed"), "{err}");
    before.assert_same(&Snapshot::of_ns(&ns), "after the failure");
}

#[test]
fn spoof_checks_of_the_go_plugins_are_removed() {
    need_go!(go, "nft");
    let (host, pod1, pod2) = (Host::new(), Ns::new(), Ns::new());
    let mut config = config(&host);
    config["ipMasq"] = json!(false);
    config["macspoofchk"] = json!(true);
    let net = Network::by(go, &host, config);
    let result = net.added(&Attachment::new("cont1", &pod1));
    let result2 = net.added(&Attachment::new("cont2", &pod2));
    let port = |result: &Value| result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let mac = |result: &Value| Mac::parse(result["interfaces"][2]["mac"].as_str().unwrap()).unwrap();
    let (one, two) = (owner("net1", "cont1"), owner("net1", "cont2"));
    host.within(|| {
        let mut nft = Nft::new();
        spoof::check(&mut nft, &one, &port(&result), mac(&result)).unwrap();
        // Another MAC, another port, another container.
        spoof::check(&mut nft, &one, &port(&result), mac(&result2)).unwrap_err();
        spoof::check(&mut nft, &one, &port(&result2), mac(&result)).unwrap_err();
        spoof::check(&mut nft, &two, &port(&result), mac(&result)).unwrap_err();
        spoof::remove(&mut nft, &one, Some(&port(&result))).unwrap();
        spoof::remove(&mut nft, &one, None).unwrap();
    });
    let left = host.nft("list ruleset");
    assert!(!left.contains("cont1") && left.contains("macspoofchk-cont2-eth0"), "{left}");
    // GC can't determine the owner while the port exists …
    host.within(|| spoof::gc(&mut Nft::new(), "net1", &[]).unwrap());
    assert!(host.nft("list ruleset").contains("cont2"));
    // … and can when it is gone.
    host.ip(&format!("link del {}", port(&result2)));
    host.within(|| spoof::gc(&mut Nft::new(), "net1", &[]).unwrap());
    let left = host.nft("list ruleset");
    assert!(!left.contains("cni-br-iface"), "{left}");
}

/// The same in the format of newer releases. The packaged version is too old for it.
#[test]
fn spoof_checks_of_newer_go_plugins_are_removed() {
    need!("nft", "ip");
    let ns = Ns::new();
    let (port, mac) = (["port1", "port2"], ["0a:58:0a:4d:00:02", "0a:58:0a:4d:00:03"]);
    for n in [0, 1] {
        ns.ip(&format!("link add {} type veth peer name far{n}", port[n]));
        let (id, chain) = (format!("cont{n}-eth0"), format!("cni-br-iface-cont{n}-eth0"));
        let load = format!(
            "table bridge cni_spoofcheck {{
                chain {chain}-mac {{
                    ether saddr {0} return comment \"macspoofchk-{id}\"
                    drop comment \"macspoofchk-{id}\"
                }}
                chain {chain} {{
                    jump {chain}-mac comment \"macspoofchk-{id}\"
                }}
                chain prerouting {{
                    type filter hook prerouting priority -300;
                    iifname {1} jump {chain} comment \"macspoofchk-{id}\"
                }}
            }}",
            mac[n], port[n]
        );
        ns.run_with("nft -f -", load.as_bytes()).success();
    }
    let mac = mac.map(|mac| Mac::parse(mac).unwrap());
    let one = owner("net1", "cont0");
    ns.within(|| {
        let mut nft = Nft::new();
        spoof::check(&mut nft, &one, port[0], mac[0]).unwrap();
        spoof::check(&mut nft, &one, port[0], mac[1]).unwrap_err();
        spoof::check(&mut nft, &one, port[1], mac[1]).unwrap_err();
        spoof::remove(&mut nft, &one, Some(port[0])).unwrap();
        spoof::remove(&mut nft, &one, None).unwrap();
        spoof::gc(&mut nft, "net1", &[]).unwrap();
    });
    let left = ns.nft("list ruleset");
    assert!(!left.contains("cont0") && left.contains("macspoofchk-cont1-eth0"), "{left}");
    ns.ip("link del port2");
    ns.within(|| spoof::gc(&mut Nft::new(), "net1", &[]).unwrap());
    let left = ns.nft("list ruleset");
    assert!(!left.contains("cni-br-iface"), "{left}");
}
