use std::process::Command;

use ipnetwork::IpNetwork;

use cnimble_cni::Owner;
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade::{self, Backend};
use cnimble_tests::{Ns, need, skip};

use super::{add, check, nets, owner, remove, ruleset, undo};

/// The netlink messages that strace counts.
#[derive(Debug, PartialEq, Eq, Default)]
struct Traffic {
    requests: usize,
    bytes_out: usize,
    bytes_in: usize,
}

/// The pod, and the verb.
const POD: &str = "CNIMBLE_TEST_POD";
const VERB: &str = "CNIMBLE_TEST_VERB";

fn numbered(n: u32) -> (Owner, Vec<IpNetwork>) {
    let addr = format!("10.1.{}.{}/16", n / 200, n % 200 + 2);
    (owner("net1", &format!("pod{n:05}")), nets(&[&addr]))
}

/// Not a test on its own: [`a_pod_costs_the_same_at_500_pods`] runs it under strace.
#[test]
fn one_pod_under_strace() {
    let (Ok(pod), Ok(verb)) = (std::env::var(POD), std::env::var(VERB)) else { return };
    let (owner, addrs) = numbered(pod.parse().unwrap());
    match verb.as_str() {
        "add" => drop(masquerade::add(Backend::Nftables, &mut Nft::new(), &owner, &addrs).unwrap()),
        _ => masquerade::remove(&mut Nft::new(), &owner, &addrs).unwrap(),
    }
}

/// Returns `None` if strace isn't permitted.
fn traffic(ns: &Ns, verb: &str, n: u32) -> Option<Traffic> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("strace");
    let (_, module) = module_path!().split_once("::").unwrap();
    let output = ns.within(|| {
        Command::new("strace")
            .args(["-f", "-e", "trace=sendto,recvfrom", "-o"])
            .arg(&file)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::one_pod_under_strace")])
            .envs([(POD, n.to_string().as_str()), (VERB, verb)])
            .output()
            .unwrap()
    });
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("ptrace") && told.contains("not permitted") {
        return None;
    }
    assert!(output.status.success(), "{}{told}", String::from_utf8_lossy(&output.stdout));
    let mut traffic = Traffic::default();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let result = line.rsplit_once(" = ").and_then(|(_, result)| result.parse::<usize>().ok());
        match result {
            Some(length) if line.contains(" sendto(") => {
                traffic.requests += 1;
                traffic.bytes_out += length;
            }
            Some(length) if line.contains(" recvfrom(") => traffic.bytes_in += length,
            _ => {}
        }
    }
    Some(traffic)
}

#[test]
fn a_pod_costs_the_same_at_500_pods() {
    need!("nft", "strace");
    let ns = Ns::new();
    let plainly = |n: u32| {
        let (owner, addrs) = numbered(n);
        ns.within(|| masquerade::add(Backend::Nftables, &mut Nft::new(), &owner, &addrs).unwrap());
    };
    let cost = |n: u32| Some((traffic(&ns, "add", n)?, traffic(&ns, "remove", n)?));
    plainly(10_000);
    let Some(second) = cost(10_001) else { skip!("strace may not trace here") };
    (10_001..10_500).for_each(plainly);
    let last = cost(10_500).unwrap();
    assert_eq!(second, last);
    assert_eq!(last.0.requests, 5, "four questions and one batch add a pod: {last:?}");
    assert_eq!(ruleset(&ns).matches("comment").count(), 500);
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
                    // Half of them fail later.
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
                    // Half of the removals list rules, which concurrent changes interrupt.
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
