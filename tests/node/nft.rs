//! Tests nf_tables through netlink: batches, look-ups, listings, refusals.

use nix::errno::Errno;

use cnimble_netlink::NetNs;
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::{
    Batch, Element, Expr, Family, Header, Key, KeyType, Meta, Nft, REG1, REG2, Table, Verdict, word,
};
use cnimble_tests::{Ns, PATIENCE, need, wait_until};

const T: Table<'static> = Table::new(Family::Inet, "t");
const ADDRS: &[KeyType] = &[KeyType::Ipv4Addr];

fn ip(n: u32) -> Key {
    Key::ip(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into())
}

fn ruleset(ns: &Ns) -> String {
    ns.nft("-s list ruleset")
}

#[test]
fn maps_and_concatenations_are_listed_as_nft_would_make_them() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        batch.create_chain(T.chain("inner"));
        batch.create_chain(T.chain("outer"));
        batch.create_map(T.set("targets"), ADDRS, &[KeyType::Ipv4Addr, KeyType::InetService]);
        batch.create_set(T.set("pairs"), &[KeyType::Ifname, KeyType::EtherAddr]);
        let load = [
            Expr::meta(Meta::Nfproto, REG1),
            Expr::equal(REG1, &[2]),
            Expr::meta(Meta::L4proto, REG1),
            Expr::equal(REG1, &[6]),
        ];
        let source = Expr::payload(Header::Network, 12, 4, REG1);
        let translate = [Expr::map(REG1, "targets", REG2), Expr::dnat(Family::Ipv4, REG2, word(5))];
        batch.add_rule(T.chain("outer"), &[&load[..], &[source], &translate].concat(), "a comment");
        batch.add_rule(T.chain("inner"), &[Expr::verdict(Verdict::Goto("outer".into()))], "");
        let element = Element::mapped(ip(1), ip(9).and_service(80), "mine");
        batch.create_element(T.set("targets"), &element);
        batch.create_element(T.set("targets"), &Element::mapped(ip(2), ip(8).and_service(53), ""));
        let key = Key::ifname("veth0").and_mac(Mac([2, 0, 0, 0, 0, 9]));
        batch.create_element(T.set("pairs"), &Element::new(key.clone(), "ours"));
        nft.commit(&batch).unwrap();

        // Objects are read back one by one and as lists.
        assert_eq!(nft.element(T.set("targets"), &ip(1)).unwrap(), Some(element.clone()));
        assert_eq!(nft.element(T.set("targets"), &ip(3)).unwrap(), None);
        assert_eq!(nft.element(T.set("nothing"), &ip(1)).unwrap(), None);
        assert_eq!(nft.elements(T.set("targets")).unwrap().len(), 2);
        assert_eq!(nft.element(T.set("pairs"), &key).unwrap().unwrap().comment, "ours");
        let mut chains = nft.chains(T).unwrap();
        chains.sort();
        assert_eq!(chains, ["inner", "outer"]);
        assert_eq!(nft.sets(T).unwrap(), ["targets", "pairs"]);
        let rules = nft.rules(T, Some("outer")).unwrap();
        assert_eq!((rules.len(), rules[0].comment.as_str()), (1, "a comment"));
        assert!(rules[0].uses_set("targets") && !rules[0].uses_set("pairs"));
        assert_eq!(nft.rules(T, None).unwrap().len(), 2);
        assert_eq!(nft.rules(T, Some("inner")).unwrap()[0].target().as_deref(), Some("outer"));
    });
    let listed = ruleset(&ns);
    for line in [
        "dnat ip to ip saddr map @targets comment \"a comment\"",
        "10.0.0.1 comment \"mine\" : 10.0.0.9 . 80",
        "10.0.0.2 : 10.0.0.8 . 53",
        "goto outer",
        "\"veth0\" . 02:00:00:00:00:09 comment \"ours\"",
    ] {
        assert!(listed.contains(line), "{line}\n{listed}");
    }
    let other = Ns::new();
    other.run_with("nft -f -", listed.as_bytes()).success();
    assert_eq!(ruleset(&other), listed);
}

#[test]
fn a_refusal_names_the_object_and_changes_nothing() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        batch.create_set(T.set("s"), ADDRS);
        batch.create_element(T.set("s"), &Element::new(ip(1), ""));
        batch.create_element(T.set("missing"), &Element::new(ip(2), ""));
        batch.create_chain(Table::new(Family::Inet, "other").chain("c"));
        let err = nft.commit(&batch).unwrap_err();
        // The error is the first one, although the kernel refuses the next request as well.
        assert_eq!(err.what, "create element 10.0.0.2 in set inet t missing");
        assert_eq!(err.errno, Errno::ENOENT);
        // The socket remains usable for the next request.
        assert!(!nft.has_table(T).unwrap());
        let mut batch = Batch::new();
        batch.create_table(T);
        nft.commit(&batch).unwrap();
        let err = nft.commit(&batch).unwrap_err();
        assert_eq!((err.what.as_str(), err.errno), ("create table inet t", Errno::EEXIST));
    });
}

#[test]
fn trying_out_changes_nothing() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        nft.try_out(&batch).unwrap();
        assert!(!nft.has_table(T).unwrap());
        nft.commit(&batch).unwrap();
        assert_eq!(nft.try_out(&batch).unwrap_err().errno, Errno::EEXIST);
    });
}

#[test]
fn what_is_used_is_not_deleted() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        batch.create_chain(T.chain("c"));
        batch.create_set(T.set("s"), ADDRS);
        batch.create_element(T.set("s"), &Element::new(ip(1), ""));
        batch.add_rule(T.chain("c"), &[Expr::verdict(Verdict::Return)], "");
        nft.commit(&batch).unwrap();
        type Fill = fn(&mut Batch);
        // The kernel refuses the deletion of the set only since Linux 6.12, so it isn't tried.
        let refused: [Fill; 2] = [|b| b.delete_table(T), |b| b.delete_chain(T.chain("c"))];
        for fill in refused {
            let mut batch = Batch::new();
            fill(&mut batch);
            assert_eq!(nft.commit(&batch).unwrap_err().errno, Errno::EBUSY, "{batch:?}");
        }
        let mut batch = Batch::new();
        batch.delete_element(T.set("s"), &ip(1));
        nft.commit(&batch).unwrap();
        let mut batch = Batch::new();
        batch.flush_chain(T.chain("c"));
        batch.delete_chain(T.chain("c"));
        batch.delete_set(T.set("s"));
        batch.delete_table(T);
        nft.commit(&batch).unwrap();
    });
    assert_eq!(ruleset(&ns), "");
}

#[test]
fn a_socket_belongs_to_its_namespace() {
    need!("nft");
    let (here, there) = (Ns::new(), Ns::new());
    here.within(|| {
        let ns = NetNs::open(std::path::Path::new(there.path())).unwrap();
        let mut nft = Nft::open_in(&ns).unwrap();
        let mut batch = Batch::new();
        batch.create_table(T);
        nft.commit(&batch).unwrap();
        assert!(!Nft::new().has_table(T).unwrap());
    });
    assert_eq!(ruleset(&here), "");
    assert!(ruleset(&there).contains("table inet t"));
}

#[test]
fn large_batches_and_listings() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        batch.create_set(T.set("s"), ADDRS);
        nft.commit(&batch).unwrap();
        for chunk in 0..10 {
            let mut batch = Batch::new();
            for n in chunk * 400..chunk * 400 + 400 {
                batch.create_element(T.set("s"), &Element::new(ip(n), "x".repeat(100)));
            }
            nft.commit(&batch).unwrap();
        }
        // The listing has many datagrams. The kernel's hash table grows concurrently, so a listing may lack elements or
        // repeat them.
        assert!(wait_until(PATIENCE, || {
            let elements = nft.elements(T.set("s")).unwrap();
            let mut listed: Vec<&[u8]> = elements.iter().map(|element| element.key.bytes()).collect();
            listed.sort_unstable();
            listed.dedup();
            listed.len() == 4000
        }));

        // There are more refusals than the receive buffer holds. The first is reported, and the socket stays usable.
        let mut batch = Batch::new();
        for n in 0..1200 {
            batch.delete_element(T.set("s"), &ip(100_000 + n));
        }
        let err = nft.commit(&batch).unwrap_err();
        assert_eq!(err.what, "delete element 10.1.134.160 from set inet t s");
        assert_eq!(err.errno, Errno::ENOENT);
        assert!(nft.has_table(T).unwrap());

        // The batch exceeds the usual send buffer, which is enlarged.
        let mut batch = Batch::new();
        let more: Vec<Element> = (0..5_000).map(|n| Element::new(ip(50_000 + n), "x".repeat(100))).collect();
        batch.create_elements(T.set("s"), &more);
        nft.commit(&batch).unwrap();
        assert!(wait_until(PATIENCE, || nft.elements(T.set("s")).unwrap().len() == 9000));
        // One element exists already, so none is created.
        let mut batch = Batch::new();
        batch.create_elements(T.set("s"), [&Element::new(ip(60_000), ""), &Element::new(ip(50_007), "")]);
        assert_eq!(nft.commit(&batch).unwrap_err().errno, Errno::EEXIST);

        // The batch exceeds the limit. It is refused, not truncated.
        let mut batch = Batch::new();
        for n in 0..20_000 {
            batch.create_element(T.set("s"), &Element::new(ip(200_000 + n), "x".repeat(100)));
        }
        let err = nft.commit(&batch).unwrap_err();
        assert_eq!(err.errno, Errno::EMSGSIZE);
        assert!(err.to_string().contains("bytes don't fit"), "{err}");
        assert!(wait_until(PATIENCE, || nft.elements(T.set("s")).unwrap().len() == 9000));
    });
}

#[test]
fn without_privilege_it_is_refused() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        // SAFETY: a plain system call. Unlike the function of libc it affects this thread alone, which ends with the
        // test.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(dropped, 0);
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        assert_eq!(nft.commit(&batch).unwrap_err().errno, Errno::EPERM);
        assert_eq!(nft.has_table(T).unwrap_err().errno, Errno::EPERM);
    });
}

/// A removal for a generation happens only if nothing has changed since.
#[test]
fn a_batch_for_a_generation_is_refused_once_anything_has_changed() {
    need!("nft");
    let ns = Ns::new();
    ns.within(|| {
        let mut nft = Nft::new();
        let mut batch = Batch::new();
        batch.create_table(T);
        batch.create_set(T.set("s"), ADDRS);
        batch.create_element(T.set("s"), &Element::new(ip(1), "first"));
        nft.commit(&batch).unwrap();

        let generation = nft.generation().unwrap();
        let removal = |generation| {
            let mut batch = Batch::only_in(generation);
            batch.delete_element(T.set("s"), &ip(1));
            batch
        };
        let mut other = Batch::new();
        other.create_element(T.set("s"), &Element::new(ip(2), "another"));
        // The element exists already, so nothing changes and nothing is refused.
        other.add_element(T.set("s"), &Element::new(ip(1), "again"));
        Nft::new().commit(&other).unwrap();
        assert!(nft.commit(&removal(generation)).unwrap_err().is(Errno::ERESTART));
        assert_eq!(nft.element(T.set("s"), &ip(1)).unwrap().unwrap().comment, "first");
        let generation = nft.generation().unwrap();
        nft.commit(&removal(generation)).unwrap();
        assert_eq!(nft.elements(T.set("s")).unwrap().len(), 1);
    });
}
