//! The undo of an ADD beside other pods.

use serde_json::json;

use cnimble_netlink::nft::Nft;
use cnimble_rules::portmap::{self, Backend, Forward};
use cnimble_tests::trace::{Fate, untraceable};
use cnimble_tests::{Ns, Snapshot, need, skip};
use nix::errno::Errno;

use super::{Site, forward, owner};

fn with_bridge() -> Ns {
    let host = Ns::new();
    host.ip("link add br0 type bridge");
    host.ip("addr add 10.1.2.1/24 dev br0");
    host.ip("link set br0 up");
    host
}

#[test]
fn undo_is_exact() {
    need!("nft", "ip");
    let host = with_bridge();
    let before = Snapshot::of_ns(&host);
    let add = |id: &str, forward: &Forward| {
        host.within(|| portmap::add(Backend::Auto, &mut Nft::new(), &owner(id), forward, &|_| false).unwrap())
    };
    // Table and localhost go with it.
    let one = forward(&[80, 81], &["10.1.2.3/24", "fd00::3/64"]);
    let undo = add("a", &one);
    assert_ne!(host.sysctl("ipv4/conf/br0/route_localnet"), "0");
    host.within(|| undo.run().unwrap());
    before.assert_same(&Snapshot::of_ns(&host), "undo of the only one");

    // Another pod needs them.
    let undo = add("a", &one);
    let two = forward(&[82], &["10.1.2.4/24"]);
    let second = add("b", &two);
    host.within(|| undo.run().unwrap());
    let ruleset = host.nft("-s list ruleset");
    assert!(!ruleset.contains("id: a") && ruleset.contains("id: b"), "{ruleset}");
    assert_ne!(host.sysctl("ipv4/conf/br0/route_localnet"), "0");
    host.within(|| portmap::check(&mut Nft::new(), &owner("b"), &two).unwrap());
    host.within(|| second.run().unwrap());
    assert!(!host.nft("-s list ruleset").contains("id: "));
}

#[test]
fn masquerading_and_mapping_share_the_table() {
    need!("nft", "ip");
    use cnimble_rules::masquerade;
    let host = Ns::new();
    let before = Snapshot::of_ns(&host);
    let addrs = vec!["10.1.2.3/24".parse().unwrap()];
    let mut one = forward(&[80], &["10.1.2.3/24"]);
    one.snat = false;
    let masq = |id: &str| {
        host.within(|| {
            masquerade::add(masquerade::Backend::Nftables, &mut Nft::new(), &owner(id), &addrs).unwrap()
        })
    };
    let map = |id: &str| {
        host.within(|| {
            portmap::add(Backend::Nftables, &mut Nft::new(), &owner(id), &one, &|_| false).unwrap()
        })
    };
    for order in 0..4 {
        let (masquerading, mapping) = if order & 1 == 0 {
            let masquerading = masq("a");
            (masquerading, map("a"))
        } else {
            let mapping = map("a");
            (masq("a"), mapping)
        };
        host.within(|| {
            masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap();
            portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap();
        });
        if order & 2 == 0 {
            host.within(|| masquerading.run().unwrap());
            host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
            host.within(|| mapping.run().unwrap());
        } else {
            host.within(|| mapping.run().unwrap());
            host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
            host.within(|| masquerading.run().unwrap());
        }
        before.assert_same(&Snapshot::of_ns(&host), &format!("order {order}"));
    }
    let _ = (masq("a"), map("a"));
    host.within(|| masquerade::remove(&mut Nft::new(), &owner("a"), &[]).unwrap());
    host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
    masq("a");
    host.within(|| portmap::remove(&mut Nft::new(), &owner("a"), None).unwrap());
    host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
    map("a");
    host.within(|| masquerade::gc(&mut Nft::new(), "net64", &[]).unwrap());
    host.within(|| portmap::check(&mut Nft::new(), &owner("a"), &one).unwrap());
    masq("a");
    host.within(|| portmap::gc(&mut Nft::new(), "net64", &[]).unwrap());
    host.within(|| masquerade::check(&mut Nft::new(), &owner("a"), &addrs).unwrap());
}

/// GC may be the last call.
#[test]
fn gc_of_the_last_leaves_no_table() {
    need!("nft", "ip");
    use cnimble_rules::masquerade;
    let host = Ns::new();
    let before = Snapshot::of_ns(&host);
    let addrs = ["10.1.2.3/24".parse().unwrap(), "fd00::3/64".parse().unwrap()];
    let backend = masquerade::Backend::Nftables;
    let gc = |valid: &[&str]| {
        let valid: Vec<_> = valid.iter().map(|id| owner(id).attachment).collect();
        host.within(|| masquerade::gc(&mut Nft::new(), "net64", &valid).unwrap());
    };
    for (id, addr) in ["a", "b"].iter().zip(addrs) {
        host.within(|| masquerade::add(backend, &mut Nft::new(), &owner(id), &[addr]).unwrap());
    }
    gc(&["b"]);
    assert!(Snapshot::of_ns(&host).mentions("a").is_empty());
    host.within(|| masquerade::check(&mut Nft::new(), &owner("b"), &addrs[1..]).unwrap());
    gc(&[]);
    before.assert_same(&Snapshot::of_ns(&host), "GC of the last");
}

/// A killed DEL had removed the mappings.
#[test]
fn the_next_del_or_gc_removes_what_a_killed_del_has_emptied() {
    need!("nft", "ip");
    let host = with_bridge();
    let before = Snapshot::of_ns(&host);
    let one = forward(&[80], &["10.1.2.3/24", "fd00::3/64"]);
    let del = || portmap::remove(&mut Nft::new(), &owner("a"), Some(&one)).unwrap();
    let del_without_result = || portmap::remove(&mut Nft::new(), &owner("a"), None).unwrap();
    let gc = || portmap::gc(&mut Nft::new(), "net64", &[]).unwrap();
    for (who, next) in
        [("DEL", &del as &(dyn Fn() + Sync)), ("DEL without a result", &del_without_result), ("GC", &gc)]
    {
        host.within(|| {
            portmap::add(Backend::Nftables, &mut Nft::new(), &owner("a"), &one, &|_| false).unwrap()
        });
        for line in host.nft("list table inet cnimble").lines() {
            if let Some((kind @ ("map" | "set"), name)) = line.trim().trim_end_matches(" {").split_once(' ')
                && name != "portmap-localnet"
            {
                host.nft(&format!("flush {kind} inet cnimble {name}"));
            }
        }
        assert_ne!(host.sysctl("ipv4/conf/br0/route_localnet"), "0");
        host.within(next);
        before.assert_same(&Snapshot::of_ns(&host), who);
    }
}

/// Each message once: success means a published port.
#[test]
fn a_refusal_of_the_kernel_is_an_error() {
    need!("nft", "ip");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80}]));
    let (att, result) = (site.attachment(0), &site.results[0]);
    site.add(&site.network(json!([{"hostPort": 8081, "containerPort": 80}])), 1);
    let before = Snapshot::of_ns(&site.host);
    let call = net.call("ADD", &att, Some(result));
    let (outcome, traced) = call.traced(&Fate::Watched);
    outcome.success();
    net.deleted(&att, Some(result));
    let messages: Vec<_> = traced
        .calls
        .into_iter()
        .filter(|call| ["sendto", "sendmsg"].contains(&call.name().as_str()))
        .collect();
    assert!(messages.len() > 3, "only {} messages?", messages.len());
    let mut refused = 0;
    for message in messages {
        let fate = Fate::Told { call: message.number, nth: message.nth, error: Errno::EPERM };
        let (outcome, traced) = call.traced(&fate);
        assert!(traced.met, "{message:?}");
        if outcome.status == 0 {
            net.check(&att, result).success();
        } else {
            outcome.error();
            before.assert_same(&Snapshot::of_ns(&site.host), "a refused ADD");
            refused += 1;
        }
        net.deleted(&att, Some(result));
    }
    assert!(refused > 0);
}

#[test]
fn an_unread_result_is_undone() {
    need!("nft", "ip");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let net = site
            .network(json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 53, "containerPort": 53, "protocol": "udp"}]))
            .with("/backend", json!(backend));
        // Shared chains stay, as with the Go plugin.
        site.add(&net, 1);
        net.deleted(&site.attachment(1), None);
        site.host.set_sysctl("ipv4/conf/br0/route_localnet", if backend == "iptables" { "1" } else { "0" });
        let before = Snapshot::of_ns(&site.host);
        let call = net.call("ADD", &site.attachment(0), Some(&site.results[0]));
        let outcome = call.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        before.assert_same(&Snapshot::of_ns(&site.host), backend);
    }
}
