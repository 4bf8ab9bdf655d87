//! Options to a server, and the use of a server's options.

use server::{DECLINE, DISCOVER, RELEASE, REQUEST};

use super::*;

#[test]
fn the_server_gets_the_client_id_and_the_configured_options() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let provide = json!([
        {"option": "host-name", "fromArg": "K8S_POD_NAME"},
        {"option": "60", "value": "cnimble"},
    ]);
    let request = json!([{"skipDefault": true}, {"option": "3"}, {"option": "subnet-mask"}]);
    let network = network(&host).with("/ipam/provide", provide).with("/ipam/request", request);
    let attachment = Attachment::new("c1", &pod).args("IgnoreUnknown=1;K8S_POD_NAME=web");
    network.added(&attachment);
    for kind in [DISCOVER, REQUEST] {
        let said = server.wait(kind, 1);
        let option = |code: u8| said.options.get(&code).map(Vec::as_slice);
        assert_eq!(option(61), Some(&b"\0c1/lan/eth0"[..]), "the Go daemon's");
        assert_eq!((option(12), option(60)), (Some(&b"web"[..]), Some(&b"cnimble"[..])));
        assert_eq!(option(55), Some(&[3, 1][..]));
    }
    network.deleted(&attachment, None);
    let said = server.wait(RELEASE, 1);
    assert_eq!((said.has, said.options[&61].as_slice()), (FIRST, &b"\0c1/lan/eth0"[..]));
}

#[test]
fn the_servers_options_are_in_the_result_and_in_the_pod() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| {
        manner.more = vec![
            (3, OWN.octets().to_vec()),
            (6, vec![192, 0, 2, 53, 192, 0, 2, 54]),
            (15, b"example.org".to_vec()),
            (119, b"\x01a\x07example\x03org\x00\x01b\xc0\x02".to_vec()),
            (26, vec![5, 0]),
            (33, vec![172, 16, 0, 0, 10, 8, 0, 9]),
        ];
    });
    let network = network(&host).with("/ipam/priority", json!(77));
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    assert_eq!(result["ips"][0]["gateway"], "10.8.0.1");
    let route = |dst: &str, gw: &str| json!({"dst": dst, "gw": gw, "mtu": 1280, "priority": 77});
    let expected = json!([route("172.16.0.0/16", "10.8.0.9"), route("0.0.0.0/0", "10.8.0.1")]);
    assert_eq!(result["routes"], expected);
    let dns = json!({
        "nameservers": ["192.0.2.53", "192.0.2.54"],
        "domain": "example.org",
        "search": ["a.example.org", "b.example.org"],
    });
    assert_eq!(result["dns"], dns);
    let default = pod.ip("route show default");
    assert!(default.contains("metric 77") && default.contains("mtu 1280"), "{default}");
    network.check(&attachment, &result).success();
    network.deleted(&attachment, None);
}

#[test]
fn garbage_is_ignored() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| manner.babbles = true);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    assert_eq!(address(&network.added(&attachment)), "10.8.0.50/24");
    network.deleted(&attachment, None);
}

#[test]
fn an_address_of_another_host_is_declined() {
    let (host, pod, other) = (host(), Pod::new(), Pod::new());
    let server = server(&host);
    host.cable("other", &other, "eth0");
    host.ip("link set other master br0");
    other.ip("address add 10.8.0.50/24 dev eth0");
    assert!(other.pings("10.8.0.1"));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| network.added(&attachment));
        let said = server.wait(DECLINE, 1);
        assert_eq!(said.options[&50], FIRST.octets());
        server.now(|manner| manner.first = Ipv4Addr::new(10, 8, 0, 60));
        assert_eq!(address(&added.join().unwrap()), "10.8.0.60/24");
    });
    network.deleted(&attachment, None);
}

#[test]
fn without_the_interface_add_asks_no_server() {
    let (host, pod) = (host(), Pod::new());
    let mut network = network(&host);
    network.config["type"] = json!("dhcp");
    let err = network.add(&Attachment::new("c1", &pod)).error();
    assert!(err.code == 3 && err.all().contains("the pod has no interface eth0"), "{err:?}");
    network.deleted(&Attachment::new("c1", &pod), None);
    assert_ended(&host);
}
