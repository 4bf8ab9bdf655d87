//! A bridge as gateway, in a network with a DHCP server's router.

use cnimble_tests::Ns;
use server::RELEASE;

use super::*;

#[test]
fn a_bridge_never_takes_the_address_of_a_router_elsewhere_on_the_lan() {
    let (host, pod, lan) = (Host::hasty(), Pod::new(), Ns::new());
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.cable("uplink", &lan, "lan0");
    host.ip("link set uplink master br0");
    lan.ip("address add 10.8.0.1/24 dev lan0");
    let server = Server::start(&lan, OWN, Manner::new(FIRST, 3600));
    server.now(|manner| manner.more = vec![(3, OWN.octets().to_vec())]);
    for (times, key) in ["/isGateway", "/isDefaultGateway", "/forceAddress"].into_iter().enumerate() {
        let network = network(&host).with("/isGateway", json!(true)).with(key, json!(true));
        let err = network.add(&Attachment::new("c1", &pod)).error();
        assert!(err.code == 102 && err.all().contains("can't be the gateway 10.8.0.1"), "{key}: {err:?}");
        assert!(err.all().contains("hint: leave isGateway"), "{key}: {err:?}");
        server.wait(RELEASE, times + 1);
        assert_eq!(host.addrs("br0"), Vec::<String>::new(), "{key}");
        assert_eq!((host.sysctl("ipv4/ip_forward").as_str(), pod.links()), ("0", vec!["lo".to_owned()]));
    }
    // The pod uses the LAN's router.
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert!(pod.pings("10.8.0.1"));
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
}

#[test]
fn a_bridge_with_the_servers_address_is_the_gateway_whatever_the_mask() {
    let host = host();
    let server = server(&host);
    let network = network(&host).with("/isDefaultGateway", json!(true));
    for prefix in [24, 25, 16] {
        server.now(|manner| (manner.prefix, manner.more) = (prefix, vec![(3, OWN.octets().to_vec())]));
        let pod = Pod::new();
        let attachment = Attachment::new(&format!("c{prefix}"), &pod);
        let result = network.added(&attachment);
        assert_eq!(host.addrs("br0"), ["10.8.0.1/24"], "/{prefix}");
        assert_eq!(host.sysctl("ipv4/ip_forward"), "1");
        assert!(pod.ip("route show default").contains("via 10.8.0.1 dev eth0"));
        assert!(pod.pings("10.8.0.1"), "/{prefix}");
        network.check(&attachment, &result).success();
        network.deleted(&attachment, Some(&result));
        assert_eq!(host.addrs("br0"), ["10.8.0.1/24"], "/{prefix}");
    }
}
