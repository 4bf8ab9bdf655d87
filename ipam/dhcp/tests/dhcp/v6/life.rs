//! dnsmasq as server and router.

use cnimble_tests::{Lan, Ns, Snapshot, need, with_kind};

use super::*;
use crate::server as four;
use server::SOLICIT;

/// With a prefix of 64 bits, as server of stateful addresses, and as router.
fn dnsmasq(ns: &Ns, dir: &Path, interface: &str, prefix: &str, more: &[String]) -> Background {
    let mut command = ns.command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--bind-dynamic",
        "--enable-ra",
    ]);
    command.args(["--user=root", "--pid-file=", "--dhcp-authoritative", "--log-dhcp", "--no-ping"]);
    command.arg(format!("--dhcp-leasefile={}", dir.join("leases").display()));
    command.arg(format!("--interface={interface}"));
    command.arg(format!("--dhcp-range={prefix}::1000,{prefix}::1fff,64,2m"));
    command.args(["--dhcp-option=option6:dns-server,[2001:db8::53]", "--domain=example.org"]);
    command.arg("--dhcp-option=option6:domain-search,example.org,example.net").args(more);
    command.arg("--log-facility=-").stderr(std::fs::File::create(dir.join("dnsmasq.log")).unwrap());
    Background::start(command.stdin(Stdio::null()))
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("dnsmasq.log")).unwrap()
}

/// The lines of IPv6 leases.
fn known(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("leases")).unwrap_or_default();
    text.lines().filter(|line| line.contains(" fd")).map(str::to_owned).collect()
}

/// Once a router has announced its prefix and itself.
#[track_caller]
fn assert_reaches(pod: &Pod, to: &str) {
    let routed = || pod.ip("-6 route show default").contains("via fe80::");
    assert!(wait_until(PATIENCE, routed), "{}", pod.ip("-6 route show"));
    assert!(wait_until(PATIENCE, || pod.pings_once(to)), "{}", pod.ip("-6 route show"));
}

#[test]
fn on_a_bridge_dnsmasq_gives_and_releases_addresses() {
    need!("dnsmasq");
    let (host, pod) = (host(), Pod::new());
    let _server = dnsmasq(&host, host.dir(), "br0", "fd00:8", &[]);
    let network = network(&host);
    network.status().success();
    let attachment = Attachment::new("c1", &pod);
    // The bridge has had a port before.
    network.added(&attachment);
    network.deleted(&attachment, None);
    let before = Snapshot::of(&host);
    let result = network.added(&attachment);
    assert!(address(&result).starts_with("fd00:8::1") && address(&result).ends_with("/128"), "{result:#}");
    assert_eq!(ipv6(&pod), [address(&result)]);
    assert!(result["ips"][0].get("gateway").is_none() && result.get("routes").is_none(), "{result:#}");
    assert_eq!(result["dns"]["nameservers"], json!(["2001:db8::53"]));
    assert_eq!(result["dns"]["search"], json!(["example.org", "example.net"]));
    assert_reaches(&pod, OWN);
    // The kernel knows the end. There is no address of a router's prefix.
    let mut ends = None;
    let lent = wait_until(PATIENCE, || {
        ends = lifetimes(&pod);
        ends.is_some()
    });
    assert!(lent && ends.is_some_and(|(preferred, valid)| preferred <= valid && valid <= 120), "{ends:?}");
    assert_eq!(ipv6(&pod), [address(&result)]);
    network.check(&attachment, &result).success();
    let bare = address(&result).trim_end_matches("/128").to_owned();
    assert!(wait_until(PATIENCE, || known(host.dir()).iter().any(|line| line.contains(&bare))));
    network.deleted(&attachment, Some(&result));
    assert!(wait_until(PATIENCE, || known(host.dir()).is_empty()), "{}", log(host.dir()));
    assert_ended(&host);
    before.without("leases").assert_same(&Snapshot::of(&host).without("leases"), "after DEL");
}

#[test]
fn on_a_macvlan_one_add_gets_both_families() {
    need!("dnsmasq");
    with_kind!("macvlan");
    let (host, pod) = (Host::hasty(), Pod::new());
    let lan = Lan::behind(&host, "uplink");
    let four = ["--dhcp-range=10.7.0.10,10.7.0.99,2m".to_owned()];
    let _server = dnsmasq(&lan, host.dir(), "lan0", "fd00:7", &four);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(&host), "families": ["ipv4", "ipv6"]});
    let config = json!({"cniVersion": "1.0.0", "name": "outside", "type": "macvlan", "master": "uplink", "ipam": ipam});
    let network = Network::new(&host, config);
    let attachment = Attachment::new("c1", &pod);
    // IPv6 is disabled on new interfaces.
    pod.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    pod.set_sysctl("ipv6/conf/lo/disable_ipv6", "1");
    let result = network.added(&attachment);
    let ips: Vec<&str> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    assert!(ips[0].starts_with("10.7.0.") && ips[1].starts_with("fd00:7::1") && ips.len() == 2, "{ips:?}");
    assert_eq!((ipv4(&pod), ipv6(&pod)), (vec![ips[0].to_owned()], vec![ips[1].to_owned()]));
    assert_eq!(leases(&host).len(), 2);
    assert!(pod.pings("10.7.0.1") && pod.pings("::1"));
    assert_reaches(&pod, "fd00:7::1");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
    assert_eq!(pod.links(), ["lo"]);
    assert!(wait_until(PATIENCE, || known(host.dir()).is_empty()), "{}", log(host.dir()));
    assert!(wait_until(PATIENCE, || log(host.dir()).contains("DHCPRELEASE")), "{}", log(host.dir()));
    assert_ended(&host);
}

#[test]
fn if_one_family_fails_the_others_lease_is_released() {
    let (host, pod) = (host(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let six = server(&host);
    six.now(|manner| manner.silent = true);
    let four = four_server(&host, None);
    for families in [json!(["ipv4", "ipv6"]), json!(["ipv6", "ipv4"])] {
        let network = network(&host).with("/ipam/families", families);
        let mut alone = self::network(&host);
        alone.config["type"] = json!("dhcp");
        let attachment = Attachment::new("c1", &pod);
        let released = four.said(four::RELEASE).len();
        let solicited = six.said(SOLICIT).len();
        std::thread::scope(|scope| {
            let added = scope.spawn(|| network.add(&attachment).error());
            six.wait(SOLICIT, solicited + 1);
            assert!(wait_until(PATIENCE, || leases(&host).len() == 1), "{:?}", leases(&host));
            // Another ADD replaces the one that still waits for IPv6.
            let err = alone.add(&attachment).error();
            assert!(err.code == 11 && err.all().contains("given back"), "{err:?}");
            let err = added.join().unwrap();
            assert!(err.code == 11 && err.all().contains("given back"), "{err:?}");
        });
        four.wait(four::RELEASE, released + 1);
        assert_eq!(pod.links(), ["lo"]);
        assert!(lease_files(&host).is_empty(), "{:?}", lease_files(&host));
    }
}
