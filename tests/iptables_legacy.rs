//! Masquerading through iptables' legacy variant: the Go plugins' leftovers, and our own
//! backend on a host that has no other.
//!
//! One test in a process of its own, because it changes PATH: there, `iptables` is legacy.
#![cfg(test)]

use std::os::unix::fs::symlink;

use ipnetwork::IpNetwork;
use serde_json::json;

use cnimble_cni::{Attachment as Id, Owner};
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_tests::{Attachment, Host, Network, Ns, need_go, skip};

fn owner(network: &str, id: &str) -> Owner {
    Owner { network: network.into(), attachment: Id { container_id: id.into(), ifname: "eth0".into() } }
}

fn rules(ns: &Ns) -> String {
    ns.shell("iptables-legacy-save -t nat; ip6tables-legacy-save -t nat")
        .lines()
        .filter(|line| line.contains("CNI-"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn legacy_tables_are_cleaned_and_filled() {
    need_go!(go, "nft", "iptables-legacy", "iptables-legacy-save");
    let host = Host::new();
    if host.run("iptables-legacy -t nat -S").status != 0 {
        skip!("this kernel has no legacy iptables");
    }
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{action}");
            symlink(target, bin.join(format!("{family}{action}"))).unwrap();
        }
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    // SAFETY: the only test of this process, and nothing else reads the environment now.
    unsafe { std::env::set_var("PATH", &path) };

    let pods: Vec<Ns> = (0..3).map(|_| Ns::new()).collect();
    let config = json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "bridge", "bridge": "br1", "isGateway": true,
        "ipMasq": true,
        "ipam": {
            "type": "host-local", "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]]
        }
    });
    let net = Network::by(go, &host, config);
    let add = |id: &str, pod: &Ns| {
        net.call("ADD", &Attachment::new(id, pod), None).env("PATH", &path).run().result()
    };
    let addrs = |result: &serde_json::Value| -> Vec<IpNetwork> {
        let ips = result["ips"].as_array().unwrap();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().parse().unwrap()).collect()
    };

    // Removal of one attachment.
    let keep = add("keep", &pods[0]);
    let before = rules(&host);
    let one = add("cont1", &pods[1]);
    let theirs = rules(&host);
    assert!(theirs.contains("cont1") && host.nft("list ruleset").is_empty(), "{theirs}");
    host.within(|| {
        let mut nft = Nft::new();
        masquerade::check(&mut nft, &owner("net1", "cont1"), &addrs(&one)).unwrap();
        masquerade::remove(&mut nft, &owner("net1", "cont1"), &addrs(&one)).unwrap();
        masquerade::remove(&mut nft, &owner("net1", "cont1"), &[]).unwrap();
        masquerade::check(&mut nft, &owner("net1", "cont1"), &addrs(&one)).unwrap_err();
    });
    assert_eq!(rules(&host), before);

    // GC of the network.
    add("stale", &pods[2]);
    host.within(|| {
        masquerade::gc(&mut Nft::new(), "net2", &[]).unwrap();
        masquerade::gc(&mut Nft::new(), "net1", &[owner("net1", "keep").attachment]).unwrap();
    });
    assert_eq!(rules(&host), before);

    // Our backend, with the command that PATH has: the same rules as theirs.
    let pod = owner("net1", "cont1");
    let ours =
        || host.within(|| masquerade::add(Backend::Iptables, &mut Nft::new(), &pod, &addrs(&one)).unwrap());
    let undo = ours();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&rules(&host)), sorted(&theirs));
    ours();
    assert_eq!(sorted(&rules(&host)), sorted(&theirs));
    // A second interface in the same network shares the chain.
    let mut second = owner("net1", "cont1");
    second.attachment.ifname = "eth1".into();
    let more: Vec<IpNetwork> = ["10.77.9.9/16", "fd77::99/64"].map(|net| net.parse().unwrap()).to_vec();
    host.within(|| {
        let mut nft = Nft::new();
        masquerade::check(&mut nft, &second, &more).unwrap_err();
        masquerade::add(Backend::Iptables, &mut nft, &second, &more).unwrap();
        masquerade::check(&mut nft, &second, &more).unwrap();
        masquerade::check(&mut nft, &pod, &addrs(&one)).unwrap();
        masquerade::remove(&mut nft, &second, &more).unwrap();
        masquerade::check(&mut nft, &second, &more).unwrap_err();
    });
    assert_eq!(sorted(&rules(&host)), sorted(&theirs));
    host.within(|| undo.run().unwrap());
    assert_eq!(rules(&host), before);
    host.within(|| masquerade::remove(&mut Nft::new(), &owner("net1", "keep"), &addrs(&keep)).unwrap());
    assert_eq!(rules(&host), "");
    assert_eq!(host.nft("list ruleset"), "");
}
