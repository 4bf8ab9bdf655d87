//! Renewals change nothing else in the pod.

use changes::{bound, log, start_daemon};
use cnimble_tests::need;
use cnimble_tests::stream::Stream;
use real::{Dnsmasq, Kea};
use server::REQUEST;

use super::*;

/// Only the routers lead there.
const FAR: &str = "10.99.0.1";

/// Two routers on the bridge.
fn routed() -> Host {
    let host = host();
    host.ip("address add 10.8.0.2/24 dev br0");
    host.ip(&format!("address add {FAR}/32 dev lo"));
    host.ip("link set lo up");
    host
}

/// Software in the pod adds them. The address depends on the first one of its network. The second route has the
/// destination of a lease's route.
const OWN_ADDRESS: &str = "10.8.0.200/24";
const OWN_ROUTES: [&str; 3] = [
    "192.0.2.0/24 via 10.8.0.7 dev eth0",
    "172.16.0.0/16 via 10.8.0.8 dev eth0",
    "default via 10.8.0.1 dev eth0 metric 500",
];

fn add_own(pod: &Pod) {
    pod.set_sysctl("ipv4/conf/all/promote_secondaries", "0");
    pod.set_sysctl("ipv4/conf/eth0/promote_secondaries", "0");
    pod.ip(&format!("address add {OWN_ADDRESS} dev eth0"));
    OWN_ROUTES.iter().for_each(|route| drop(pod.ip(&format!("route append {route}"))));
}

#[track_caller]
fn assert_own(pod: &Pod, when: &str) {
    let routes = pod.ip("route show");
    for route in OWN_ROUTES {
        assert!(routes.lines().any(|line| line.trim() == route), "{when}: {route} is not in\n{routes}");
    }
    assert!(ipv4(pod).contains(&OWN_ADDRESS.to_owned()), "{when}: {:?}", ipv4(pod));
    assert_eq!(pod.sysctl("ipv4/conf/eth0/promote_secondaries"), "0", "{when}");
}

#[track_caller]
fn wait_for_routes(pod: &Pod, expected: &[String], when: &str) {
    let routes = || {
        let all = pod.ip("route show dev eth0");
        let of_lease = |line: &&str| !line.contains("proto kernel");
        let mut routes: Vec<String> =
            all.lines().map(str::trim).filter(of_lease).map(str::to_owned).collect();
        routes.retain(|route| !OWN_ROUTES.iter().any(|own| own.replace(" dev eth0", "") == *route));
        routes.sort();
        routes
    };
    let mut expected = expected.to_vec();
    expected.sort();
    assert!(wait_until(PATIENCE, || routes() == expected), "{when}: {:?}, expected {expected:?}", routes());
}

#[test]
fn a_connection_and_what_the_pod_added_survive_ten_renewals_that_change_an_option() {
    let (host, pod) = (routed(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let server = server(&host);
    let (network, attachment, result) = bound(&host, &server, &pod);
    let stream = Stream::between(&pod, &host, FAR);
    let mut begun = 0;
    for round in 0..=10_u8 {
        // The MTU also changes while the router stays.
        let mtu = [None, Some(1400_u16), Some(1300)][usize::from(round / 2 % 3)];
        let (router, by) = (1 + round / 4 % 2, 17 + round.div_ceil(2) % 3);
        let mut more = vec![(3, vec![10, 8, 0, router]), (33, vec![172, 16, 0, 0, 10, 8, 0, by])];
        more.extend(mtu.map(|mtu| (26, mtu.to_be_bytes().to_vec())));
        server.now(|manner| manner.more = more);
        let mtu = mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
        let expected =
            [format!("default via 10.8.0.{router}{mtu}"), format!("172.16.0.0/16 via 10.8.0.{by}{mtu}")];
        let when = format!("round {round}");
        wait_for_routes(&pod, &expected, &when);
        if round == 0 {
            add_own(&pod);
            begun = server.said(REQUEST).len();
        }
        assert_own(&pod, &when);
        stream.flows(&when);
        // It precedes the pod's own route.
        let way = pod.ip("route get 172.16.1.1");
        assert!(way.contains(&format!("via 10.8.0.{by} ")), "{when}: {way}");
    }
    assert!(server.said(REQUEST).len() >= begun + 10);
    assert_eq!(ipv4(&pod), ["10.8.0.50/24", OWN_ADDRESS]);
    stream.end();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn another_prefix_keeps_the_address_and_its_connections() {
    let (host, pod) = (routed(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let server = server(&host);
    let (network, attachment, result) = bound(&host, &server, &pod);
    let stream = Stream::between(&pod, &host, FAR);
    for prefix in [25, 16, 24] {
        server.now(|manner| manner.prefix = prefix);
        wait_for(&pod, &[&format!("10.8.0.50/{prefix}")]);
        stream.flows(&format!("/{prefix}"));
        wait_for_routes(&pod, &["default via 10.8.0.1".to_owned()], &format!("/{prefix}"));
    }
    stream.end();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn another_address_leaves_what_the_pod_added() {
    let (host, pod) = (routed(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, result) = bound(&host, &server, &pod);
    add_own(&pod);
    server.now(|manner| manner.first = Ipv4Addr::new(10, 8, 0, 60));
    let all = || ipv4(&pod).contains(&"10.8.0.60/24".to_owned()) && ipv4(&pod).len() == 2;
    assert!(wait_until(PATIENCE, all), "{:?}\n{}", ipv4(&pod), log(&host));
    assert_own(&pod, "another address");
    wait_for_routes(&pod, &["default via 10.8.0.1".to_owned()], "another address");
    assert!(pod.pings(FAR));
    network.deleted(&attachment, Some(&result));
}

#[test]
fn a_refused_route_is_logged_and_the_others_are_set() {
    let (host, pod) = (routed(), Pod::new());
    let server = server(&host);
    let _daemon = start_daemon(&host, &[]);
    let (network, attachment, result) = bound(&host, &server, &pod);
    server.now(|manner| {
        manner.more = vec![(33, vec![172, 16, 0, 0, 192, 0, 2, 9]), (3, vec![10, 8, 0, 2])];
    });
    wait_for_routes(&pod, &["default via 10.8.0.2".to_owned()], "a gateway that is not on the link");
    let logged = || log(&host).contains("but not in all: add route 172.16.0.0/16 via 192.0.2.9");
    assert!(wait_until(PATIENCE, logged), "{}", log(&host));
    network.deleted(&attachment, Some(&result));
}

/// Option 121: the on-link router, the default route, and one more.
fn cloud(more: [u8; 4]) -> String {
    let [a, b, c, d] = more;
    let bytes = [32, 10, 8, 0, 1, 0, 0, 0, 0, 0, 10, 8, 0, 1, 32, a, b, c, d, 10, 8, 0, 1];
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As `ip route` prints [`cloud`].
fn cloudy(more: &str) -> [String; 3] {
    ["10.8.0.1 scope link".to_owned(), "default via 10.8.0.1".to_owned(), format!("{more} via 10.8.0.1")]
}

#[test]
fn dnsmasq_changes_the_routes_of_a_32_bit_address_below_a_connection() {
    need!("dnsmasq");
    let (host, pod) = (routed(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let file = host.dir().join("options");
    let colons = |hex: &str| {
        hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap()).collect::<Vec<_>>().join(":")
    };
    let write = |more| std::fs::write(&file, format!("121,{}\n", colons(&cloud(more)))).unwrap();
    write([192, 0, 2, 1]);
    let file = format!("--dhcp-optsfile={}", file.display());
    let options = [
        "--dhcp-option=option:netmask,255.255.255.255",
        "--dhcp-option=option:T1,3",
        "--dhcp-option=option:T2,60",
        &file,
    ];
    let server = Dnsmasq::start(&host, host.dir(), "br0", "10.8.0", "2m", &options);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(address(&result).ends_with("/32"), "{result:#}");
    let stream = Stream::between(&pod, &host, FAR);
    for last in [2, 3] {
        write([192, 0, 2, last]);
        server.reload();
        wait_for_routes(&pod, &cloudy(&format!("192.0.2.{last}")), "a renewal by dnsmasq");
        stream.flows("behind a renewal by dnsmasq");
    }
    stream.end();
    assert_eq!(ipv4(&pod), [address(&result)]);
    network.deleted(&attachment, Some(&result));
}

#[test]
fn kea_changes_the_routes_of_a_32_bit_address_below_a_connection() {
    need!("kea-dhcp4");
    let (host, pod) = (routed(), Pod::new());
    let _daemon = start_daemon(&host, &[]);
    let subnet = |more| real::cloud(&cloud(more));
    let kea = Kea::start_with(&host, host.dir(), "br0", 50, &[], &subnet([192, 0, 2, 1]));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!(address(&result), "10.8.0.10/32");
    let stream = Stream::between(&pod, &host, FAR);
    for last in [2, 3] {
        kea.reload(&subnet([192, 0, 2, last]));
        wait_for_routes(&pod, &cloudy(&format!("192.0.2.{last}")), "a renewal by kea");
        stream.flows("behind a renewal by kea");
    }
    stream.end();
    assert_eq!(ipv4(&pod), ["10.8.0.10/32"]);
    network.deleted(&attachment, Some(&result));
}
