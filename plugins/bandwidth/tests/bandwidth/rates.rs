use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use cnimble_tests::{LIMIT, Ns, PATIENCE, configs, need, skip, wait_until};

use super::{BURST, Chain, RATE, both};

fn connect(from: &Ns, to: &Ns, ip: &str) -> (TcpStream, TcpStream) {
    let listener = to.within(|| TcpListener::bind((ip, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let near = from.within(|| TcpStream::connect((ip, port)).unwrap());
    (near, listener.accept().unwrap().0)
}

/// Sends for the `wanted` time. Returns the payload in bits, and the seconds between first and last read. A slow
/// machine may take longer.
fn pump(mut sender: TcpStream, mut receiver: TcpStream, wanted: Duration) -> (f64, f64) {
    std::thread::scope(|scope| {
        let start = Instant::now();
        scope.spawn(move || {
            sender.set_write_timeout(Some(LIMIT)).unwrap();
            // Sends until the receiver has enough.
            while sender.write(&[0; 16 * 1024]).is_ok() {}
        });
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let mut bytes = 0;
        loop {
            bytes += receiver.read(&mut buffer).unwrap();
            if start.elapsed() >= wanted {
                drop(receiver);
                return (bytes as f64 * 8.0, start.elapsed().as_secs_f64());
            }
        }
    })
}

fn transfer(from: &Ns, to: &Ns, ip: &str) -> (f64, f64) {
    let (near, far) = connect(from, to, ip);
    pump(near, far, Duration::from_secs(2))
}

/// No transfer exceeds `rate` by more than a tenth after the burst, and one comes close. Others may suffer from a slow
/// machine. The kernel also counts headers, 66 bytes of 1514.
fn assert_rate(rate: u64, what: &str, transfer: impl Fn() -> (f64, f64)) {
    let mut seen = Vec::new();
    let reached = wait_until(PATIENCE, || {
        let (bits, seconds) = transfer();
        let (bits, allowed) = (bits * 1514.0 / 1448.0, rate as f64 * seconds);
        seen.push(format!("{:.2} Mbit/s in {seconds:.2} s", bits / seconds / 1e6));
        assert!(bits <= BURST as f64 + 1.1 * allowed, "{what}: {seen:?} of {rate}");
        bits >= 0.9 * allowed
    });
    eprintln!("{what}: {seen:?} of {:.2} Mbit/s", rate as f64 / 1e6);
    assert!(reached, "{what}: {seen:?} of {rate}");
}

#[test]
fn a_transfer_gets_the_rate_both_ways() {
    need!("ip");
    let chain = Chain::new();
    let ip = chain.pod.addrs("eth0")[0].split('/').next().unwrap().to_owned();
    let gateway = chain.host.addrs(chain.prev["interfaces"][0]["name"].as_str().unwrap())[0]
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let (bits, seconds) = transfer(&chain.host, &chain.pod, &ip);
    if bits / seconds < 5.0 * RATE as f64 {
        skip!("this machine transfers only {:.1} Mbit/s without a limit", bits / seconds / 1e6);
    }
    let net = chain.net(&both());
    let result = chain.add(&net);
    assert_rate(RATE, "ingress", || transfer(&chain.host, &chain.pod, &ip));
    assert_rate(RATE / 2, "egress", || transfer(&chain.pod, &chain.host, &gateway));
    net.check(&chain.att, &result).success();
}

/// Two far ends of each family, the second one on the lists.
const FAR: [[&str; 2]; 2] = [["198.51.100.1", "203.0.113.1"], ["2001:db8:1::1", "2001:db8:2::1"]];

#[test]
fn subnets_are_limited_or_not() {
    need!("ip", "tc");
    let chain = Chain::on(configs::dual);
    chain.host.ip("link set lo up");
    for ip in FAR.as_flattened() {
        let flag = if ip.contains(':') { "nodad" } else { "" };
        chain.host.ip(&format!("addr add {ip} dev lo {flag}"));
    }
    let bridge = chain.prev["interfaces"][0]["name"].as_str().unwrap();
    for gateway in chain.host.addrs(bridge).iter().filter(|addr| !addr.starts_with("fe80")) {
        let gateway = gateway.split('/').next().unwrap();
        let family = if gateway.contains(':') { "-6 " } else { "" };
        chain.pod.ip(&format!("{family}route replace default via {gateway} dev eth0"));
    }
    // The pod receives from `ip` with `down` and sends with `up`.
    let down = |ip: &str, wanted: Duration| {
        let (near, far) = connect(&chain.pod, &chain.host, ip);
        pump(far, near, wanted)
    };
    let up = |ip: &str, wanted: Duration| {
        let (near, far) = connect(&chain.pod, &chain.host, ip);
        pump(near, far, wanted)
    };
    // Packets arrive in pieces of 64 KiB here: a fortieth of the payload.
    let (long, short) = (Duration::from_secs(3), Duration::from_millis(200));
    let speed = |(bits, seconds): (f64, f64)| bits / seconds;
    let both_ways = |ip: &&str| speed(down(ip, short)).min(speed(up(ip, short)));
    let slowest = FAR.as_flattened().iter().map(both_ways).fold(f64::INFINITY, f64::min);
    if slowest < 5.0 * RATE as f64 {
        skip!("this machine transfers only {:.1} Mbit/s without a limit", slowest / 1e6);
    }
    // One fast transfer proves that there is no limit, even on a busy machine.
    let free = |what: &str, transfer: &dyn Fn() -> (f64, f64)| {
        assert!((0..10).any(|_| speed(transfer()) > 2.0 * RATE as f64), "{what} is limited");
    };
    for (family, key) in [(0, "shapedSubnets"), (1, "unshapedSubnets")] {
        let mut keys = both();
        keys["egressRate"] = json!(RATE);
        keys[key] = json!(["203.0.113.0/24", "2001:db8:2::/48"]);
        let net = chain.net(&keys);
        let result = chain.add(&net);
        net.check(&chain.att, &result).success();
        let [other, listed] = FAR[family];
        let (limited, not) = if key == "shapedSubnets" { (listed, other) } else { (other, listed) };
        assert_rate(RATE, &format!("from {limited}"), || down(limited, long));
        assert_rate(RATE, &format!("to {limited}"), || up(limited, long));
        free(&format!("from {not}"), &|| down(not, short));
        free(&format!("to {not}"), &|| up(not, short));
        net.deleted(&chain.att, Some(&result));
    }
}
