//! A pod's packet rules, added together.

use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::Nft;
use cnimble_rules::filters::{self, Masqueraded, PodRules};
use cnimble_rules::masquerade::{self, Backend};
use cnimble_rules::{isolation, spoof};
use cnimble_tests::{Ns, Snapshot, need};

fn owner(id: &str) -> Owner {
    Owner {
        network: "net1".into(),
        attachment: Attachment { container_id: id.into(), ifname: "eth0".into() },
    }
}

fn wanted(n: u8, port: &str) -> PodRules<'_> {
    let ip = [10, 5, 0, n].into();
    PodRules {
        port,
        mac: Some(Mac([2, 0, 0, 0, 0, n])),
        isolated: Some(vec![ip]),
        masquerade: Some(Masqueraded {
            addrs: vec![format!("{ip}/24").parse().unwrap()],
            ..Masqueraded::default()
        }),
    }
}

fn generation(ns: &Ns) -> u32 {
    ns.within(|| Nft::new().generation().unwrap())
}

#[test]
fn the_rules_of_a_pod_are_made_in_one_transaction_and_taken_back() {
    need!("nft");
    let ns = Ns::new();
    let before = Snapshot::of_ns(&ns);
    let mut undos = Vec::new();
    // The first pod needs the tables, too.
    for (n, port) in [(1, "veth1"), (2, "veth2")] {
        let first = generation(&ns);
        let add = || filters::add(&mut Nft::new(), &owner(port), &wanted(n, port)).unwrap();
        undos.push(ns.within(add));
        assert_eq!(generation(&ns), first + 1, "{port}");
    }
    for undo in undos.into_iter().rev() {
        ns.within(|| undo.run().unwrap());
    }
    before.assert_same(&Snapshot::of_ns(&ns), "after undo");
}

#[test]
fn rules_that_are_made_together_equal_those_that_are_made_one_by_one() {
    need!("nft");
    let (together, each) = (Ns::new(), Ns::new());
    for (n, port) in [(1, "veth1"), (2, "veth2"), (3, "veth2")] {
        let (owner, wanted) = (owner(&format!("c{n}")), wanted(n, port));
        together.within(|| filters::add(&mut Nft::new(), &owner, &wanted).map(drop).unwrap());
        each.within(|| {
            let nft = &mut Nft::new();
            spoof::add(nft, &owner, port, wanted.mac.unwrap()).unwrap();
            isolation::add(nft, &owner, port, wanted.isolated.as_ref().unwrap()).unwrap();
            let addrs = &wanted.masquerade.as_ref().unwrap().addrs;
            masquerade::add(Backend::Nftables, nft, &owner, addrs).unwrap();
        });
        assert_eq!(together.nft("-s list ruleset"), each.nft("-s list ruleset"), "{port} of c{n}");
    }
}
