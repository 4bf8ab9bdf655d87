//! Fifty pods with short leases on one lease daemon, which is killed midway: `scripts/stress dhcp`.

use std::fs;
use std::time::{Duration, Instant};

use cnimble_tests::{announce, need};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use real::Dnsmasq;

use super::*;

const PODS: usize = 50;

/// The time that `scripts/stress` sets.
fn seconds() -> Option<u64> {
    Some(std::env::var("CNIMBLE_DHCP_SECONDS").ok()?.parse().unwrap())
}

#[derive(Debug, Default)]
struct Usage {
    /// In KiB. `pss` counts shared pages in proportion.
    rss: u64,
    pss: u64,
    /// Processor time in nanoseconds.
    busy: u64,
}

impl Usage {
    fn of(pid: i32) -> Usage {
        let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let number = |text: &str| text.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        let of = |key: &str| number(memory.lines().find_map(|line| line.strip_prefix(key)).unwrap());
        let busy = number(&fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap());
        Usage { rss: of("Rss:"), pss: of("Pss:"), busy }
    }
}

#[track_caller]
fn daemon_pid(host: &Host) -> i32 {
    let all = daemons(&socket(host));
    let [daemon] = all[..] else { panic!("{all:?}") };
    daemon
}

/// Until each lease was renewed this many more times.
#[track_caller]
fn renewed(server: &Dnsmasq, times: usize) {
    let before = server.counts("DHCPACK");
    assert_eq!(before.len(), PODS);
    let all = || {
        let now = server.counts("DHCPACK");
        before.iter().all(|(mac, count)| now[mac] >= count + times)
    };
    assert!(wait_until(PATIENCE, all), "{before:?}, then {:?}", server.counts("DHCPACK"));
}

#[test]
fn fifty_pods_on_a_killed_daemon_lose_no_lease() {
    need!("dnsmasq");
    let host = host();
    // dnsmasq accepts no T1 below 3. A short run does not test the end of a lease.
    let (lease, times) = if seconds().is_some() {
        ("2m", &["--dhcp-option=option:T1,10"][..])
    } else {
        // A lost request is repeated after half of the time until T2, most of an hour by default.
        ("1h", &["--dhcp-option=option:T1,3", "--dhcp-option=option:T2,12"][..])
    };
    let server = Dnsmasq::start(&host, host.dir(), "br0", "10.8.0", lease, times);
    let network = network(&host);
    let pods: Vec<Pod> = (0..PODS).map(|_| Pod::new()).collect();
    let attachments: Vec<Attachment> =
        pods.iter().enumerate().map(|(n, pod)| Attachment::new(&format!("c{n}"), pod)).collect();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let all: Vec<_> = attachments.iter().map(|one| scope.spawn(|| network.added(one))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    // The log has all messages before a lease.
    let said = || ["DHCPDISCOVER", "DHCPNAK", "DHCPRELEASE"].map(|kind| server.counts(kind));
    let (before, given) = (said(), server.counts("DHCPACK").values().sum::<usize>());
    // dnsmasq gives an address to one client only.
    assert!(server.counts("DHCPDECLINE").is_empty(), "{:?}", server.counts("DHCPDECLINE"));
    let begun = Instant::now();
    let rest = |part: u64| {
        let until = Duration::from_secs(seconds().unwrap_or(0) / part);
        std::thread::sleep(until.saturating_sub(begun.elapsed()));
        renewed(&server, 1);
    };

    rest(2);
    let first = daemon_pid(&host);
    let one = Usage::of(first);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    assert!(wait_until(PATIENCE, || daemons(&socket(&host)).is_empty()));
    // Any verb starts another daemon.
    network.check(&attachments[0], &results[0]).success();
    assert_ne!(daemon_pid(&host), first);
    rest(1);
    let two = Usage::of(daemon_pid(&host));
    let took = begun.elapsed();

    for ((pod, attachment), result) in pods.iter().zip(&attachments).zip(&results) {
        assert_eq!(ipv4(pod), [address(result)], "{}", attachment.id);
        network.check(attachment, result).success();
    }
    assert_eq!(said(), before, "a lease was lost");
    assert_eq!(leases(&host).len(), PODS);
    let renewals = server.counts("DHCPACK").values().sum::<usize>() - given;
    announce(
        "NOTE",
        &format!(
            "{PODS} pods, {} s, {renewals} renewals, none lost; daemon: RSS {} and {} KiB, PSS {} and {} KiB, \
             {:.2} s of a processor",
            took.as_secs(),
            one.rss,
            two.rss,
            one.pss,
            two.pss,
            (one.busy + two.busy) as f64 / 1e9,
        ),
    );
    std::thread::scope(|scope| {
        for one in &attachments {
            scope.spawn(|| network.deleted(one, None));
        }
    });
    assert!(wait_until(PATIENCE, || server.counts("DHCPRELEASE").len() == PODS));
    assert_ended(&host);
}
