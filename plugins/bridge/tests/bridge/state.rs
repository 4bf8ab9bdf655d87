//! The state of host and pod when ADD returns.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, need, wait_until};

#[test]
fn what_the_host_has_when_add_returns() {
    need!("ip", "nft");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host));
    let result = net.added(&Attachment::new("one", &pod));
    // lo, the bridge and one veth.
    let links = host.links();
    assert_eq!(links.len(), 3, "{links:?}");
    let veth = links.iter().find(|name| name.starts_with("veth")).expect("a veth");
    assert_eq!(veth.len(), 12, "veth and 8 hex digits: {veth}");
    assert_eq!(result["interfaces"][1]["name"], *veth);
    assert_eq!(result["interfaces"][0]["name"], "br0");
    assert_eq!(result["interfaces"][0]["mac"], host.link("br0")["address"]);
    assert_eq!(result["interfaces"][1]["mac"], host.link(veth)["address"]);
    // The kernel may report the bridge as up some time after its port.
    assert!(wait_until(PATIENCE, || host.link("br0")["operstate"] == "UP"), "{}", host.link("br0"));
    let port = host.link(veth);
    assert_eq!(port["operstate"], "UP");
    assert_eq!(port["master"], "br0");
    assert_eq!(port["linkinfo"]["info_slave_data"]["state"], "forwarding");
    assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], false);
    assert_eq!(port["linkinfo"]["info_slave_data"]["isolated"], false);
    assert_eq!(host.addrs("br0"), ["10.1.2.1/24", "fd00:1:2::1/64"]);
    assert_eq!(host.sysctl("ipv6/conf/br0/accept_ra"), "0");
    // The port needs no address, not even a link-local one.
    assert_eq!(host.ip(&format!("addr show dev {veth} to 0/0")), "");
    assert_eq!(host.ip(&format!("-6 addr show dev {veth}")), "");
    assert_eq!(host.sysctl("ipv4/ip_forward"), "1");
    assert_eq!(host.sysctl("ipv6/conf/all/forwarding"), "1");
}

#[test]
fn what_the_pod_has_when_add_returns() {
    need!("ip", "nft", "ping");
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host));
    let result = net.added(&Attachment::new("one", &pod));
    let link = pod.ip_json("addr show dev eth0")[0].clone();
    assert_eq!(link["operstate"], "UP", "{link:#}");
    assert_eq!(link["address"], result["interfaces"][2]["mac"]);
    let addrs = link["addr_info"].as_array().unwrap();
    let local: Vec<&Value> = addrs.iter().filter(|addr| addr["scope"] == "link").collect();
    assert_eq!(local.len(), 1, "link-local v6: {link:#}");
    let tentative = |addr: &&Value| addr["tentative"] == true;
    assert!(!addrs.iter().filter(|addr| addr["scope"] == "global").any(|addr| tentative(&addr)), "{link:#}");
    // The kernel's own address, completed by a worker.
    let settled = || !pod.ip("-6 addr show dev eth0 scope link").contains("tentative");
    assert!(wait_until(PATIENCE, settled), "{link:#}");
    assert_eq!(pod.addrs("eth0"), ["10.1.2.2/24", "fd00:1:2::2/64"]);
    // The IPv4 address has its broadcast address, as with `ip addr add … brd +`.
    let v4 = addrs.iter().find(|addr| addr["family"] == "inet").unwrap();
    assert_eq!(v4["broadcast"], "10.1.2.255", "{v4:#}");
    // A pod can send when ADD returns.
    for target in ["10.1.2.1", "fd00:1:2::1"] {
        assert!(pod.pings_once(target), "{target}");
    }
    assert!(pod.ip("-4 route").contains("default via 10.1.2.1 dev eth0"));
    assert!(pod.ip("-6 route").contains("default via fd00:1:2::1 dev eth0"));
    // No announcement: the MAC is derived from the address.
    assert_eq!(link["address"], "0a:58:0a:01:02:02");
    assert_eq!(pod.sysctl("ipv4/conf/eth0/arp_notify"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_dad"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/disable_ipv6"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/keep_addr_on_down"), "1");
    assert_eq!(pod.sysctl("ipv4/ip_forward"), host_default_forwarding(), "the pod is no router");
}

/// In a private procfs.
#[test]
fn switches_among_hundreds_of_pods() {
    need!("ip", "nft", "unshare", "mount", "strace");
    let host = Host::hasty();
    let pod = Pod::new();
    // The 501st pod's number. `ip netns set` needs a name in /run/netns, which is private here.
    host.shell(&format!(
        "exec unshare --mount sh -ec 'mkdir -p /run/netns; mount -t tmpfs none /run/netns; : >/run/netns/pod
        mount --no-canonicalize --bind {} /run/netns/pod; ip netns set pod 500'",
        pod.path()
    ));
    let net = Network::new(&host, configs::dual(&host));
    let one = Attachment::new("one", &pod);
    // Without the right to mount a procfs.
    for wrapper in [&[][..], &["strace", "-o", "/dev/null", "-e", "inject=fsopen:error=EPERM"]] {
        net.call("ADD", &one, None).under(wrapper).run().success();
        assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_dad"), "0");
        assert_eq!(pod.sysctl("ipv6/conf/eth0/keep_addr_on_down"), "1");
        assert!(pod.pings("fd00:1:2::1"));
        net.call("DEL", &one, None).run().success();
        assert_eq!(pod.links(), ["lo"]);
    }
}

/// The MTU is too small for IPv6: no address modes.
#[test]
fn an_mtu_without_ipv6() {
    need!("ip", "nft", "ping");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/mtu", json!(1000));
    let one = Attachment::new("one", &pod);
    let result = net.added(&one);
    assert_eq!(host.link(result["interfaces"][1]["name"].as_str().unwrap())["mtu"], 1000);
    assert_eq!(pod.link("eth0")["mtu"], 1000);
    assert!(pod.pings("10.1.2.1"));
    net.call("CHECK", &one, Some(&result)).run().success();
    net.call("DEL", &one, Some(&result)).run().success();
}

/// Of a new namespace.
fn host_default_forwarding() -> String {
    Pod::new().sysctl("ipv4/ip_forward")
}

#[test]
fn the_bridge_keeps_its_mac() {
    need!("ip");
    // The lowest MAC of the ports, unless one was set.
    for gateway in [false, true] {
        let host = Host::new();
        let net = Network::new(&host, configs::v4(&host)).with("/isGateway", json!(gateway));
        let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
        net.added(&Attachment::new("first", &pods[0]));
        let mac = host.link("br0")["address"].clone();
        for (number, pod) in pods.iter().enumerate().skip(1) {
            let att = Attachment::new(&format!("pod{number}"), pod);
            let result = net.added(&att);
            assert_eq!(result["interfaces"][0]["mac"], mac);
            assert_eq!(host.link("br0")["address"], mac);
        }
        // The lowest possible MAC joins, and the first port leaves.
        host.ip("link add low address 02:00:00:00:00:01 type veth peer name lowpeer");
        host.ip("link set low master br0 up");
        net.deleted(&Attachment::new("first", &pods[0]), None);
        assert_eq!(host.link("br0")["address"], mac, "isGateway {gateway}");
    }
}
