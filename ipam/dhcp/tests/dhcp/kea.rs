use cnimble_tests::{Ns, need};
use real::{Kea, relay};

use super::*;

/// For every lease that kea gives or renews.
const GIVEN: &str = "DHCP4_LEASE_ALLOC";
const RELEASED: &str = "DHCP4_RELEASE ";

#[track_caller]
fn wait(kea: &Kea, what: &str, times: usize) {
    assert!(wait_until(PATIENCE, || kea.count(what) >= times), "{times} times {what}: {}", kea.log());
}

#[test]
fn kea_gives_an_address_prolongs_it_and_gets_it_back() {
    need!("kea-dhcp4");
    let (host, pod) = (host(), Pod::new());
    let kea = Kea::start(&host, host.dir(), "br0", 50, &[]);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!((address(&result), &result["ips"][0]["gateway"]), ("10.8.0.10/24", &json!("10.8.0.1")));
    wait(&kea, GIVEN, 4);
    network.check(&attachment, &result).success();
    assert_eq!(ipv4(&pod), ["10.8.0.10/24"]);
    network.deleted(&attachment, None);
    wait(&kea, RELEASED, 1);
    assert_ended(&host);
}

#[test]
fn the_pod_follows_a_kea_that_has_given_its_address_away() {
    need!("kea-dhcp4");
    let (host, pod) = (host(), Pod::new());
    let kea = Kea::start(&host, host.dir(), "br0", 5, &[]);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    drop(kea);
    // It has forgotten the lease, and refuses to renew it.
    let kea = Kea::start(&host, host.dir(), "br0", 5, &["10.8.0.10"]);
    wait_for(&pod, &["10.8.0.11/24"]);
    assert!(pod.pings("10.8.0.1"));
    wait(&kea, GIVEN, 3);
    network.deleted(&attachment, None);
    wait(&kea, RELEASED, 1);
    assert_ended(&host);
}

#[test]
fn behind_a_relay_a_lease_is_given_prolonged_and_given_back() {
    need!("kea-dhcp4", "dnsmasq");
    let (host, pod, far) = (host(), Pod::new(), Ns::new());
    host.cable("uplink", &far, "eth0");
    host.ip("address add 10.6.0.1/24 dev uplink");
    host.set_sysctl("ipv4/ip_forward", "1");
    far.ip("address add 10.6.0.2/24 dev eth0");
    far.ip("route add 10.8.0.0/24 via 10.6.0.1");
    let kea = Kea::start(&far, host.dir(), "eth0", 50, &[]);
    let _relay = relay(&host, "10.8.0.1", "10.6.0.2");
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!(address(&result), "10.8.0.10/24");
    // Directly now, through the router.
    wait(&kea, GIVEN, 4);
    network.check(&attachment, &result).success();
    assert_eq!(ipv4(&pod), ["10.8.0.10/24"]);
    network.deleted(&attachment, None);
    wait(&kea, RELEASED, 1);
    assert_ended(&host);
}
