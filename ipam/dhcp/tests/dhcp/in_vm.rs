//! Tests that need an ipvlan. The machine boots once per module.

use cnimble_tests::{Lan, need, with_kind};
use real::Dnsmasq;

use super::*;

/// A server tells ipvlans apart by client IDs, and must broadcast: one receives only packets for its addresses.
#[test]
fn pods_with_one_hardware_address_have_different_addresses() {
    with_kind!("ipvlan");
    need!("dnsmasq");
    let (host, pods) = (Host::hasty(), [Pod::new(), Pod::new()]);
    let lan = Lan::behind(&host, "uplink");
    let server = Dnsmasq::start(&lan, host.dir(), "lan0", "10.7.0", "2m", &[]);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(&host)});
    let config =
        json!({"cniVersion": "1.0.0", "name": "outside", "type": "ipvlan", "master": "uplink", "ipam": ipam});
    let network = Network::new(&host, config);
    let attachments = [("c1", &pods[0]), ("c2", &pods[1])].map(|(id, pod)| Attachment::new(id, pod));
    let results = attachments.each_ref().map(|one| network.added(one));
    assert_ne!(address(&results[0]), address(&results[1]));
    for ((pod, attachment), result) in pods.iter().zip(&attachments).zip(&results) {
        assert_eq!(ipv4(pod), [address(result)]);
        assert!(pod.pings("10.7.0.1"));
        network.check(attachment, result).success();
    }
    for attachment in &attachments {
        network.deleted(attachment, None);
    }
    let released = || server.counts("DHCPRELEASE").values().sum::<usize>() == 2;
    assert!(wait_until(PATIENCE, released), "{}", server.log());
    assert_ended(&host);
}
