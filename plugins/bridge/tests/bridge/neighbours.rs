use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, configs, need, wait_until};

#[test]
fn an_address_that_was_known_under_another_mac_is_announced() {
    need!("ip");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let pods: Vec<Pod> = (0..3).map(|_| Pod::new()).collect();
    net.added(&Attachment::new("zero", &pods[0]));
    let known = |ip: &str| host.ip_json(&format!("neigh show {ip} dev br0"))[0]["lladdr"].clone();
    // As after a pod of another plugin set.
    for ip in ["10.1.2.3", "10.1.2.4"] {
        host.ip(&format!("neigh replace {ip} lladdr 02:00:00:00:00:77 dev br0 nud stale"));
    }
    net.added(&Attachment::new("one", &pods[1]));
    assert_eq!(pods[1].sysctl("ipv4/conf/eth0/arp_notify"), "1");
    // The kernel processes the announcement some time later.
    assert!(wait_until(PATIENCE, || known("10.1.2.3") == "0a:58:0a:01:02:03"), "{}", known("10.1.2.3"));
    // A configured MAC is always announced.
    let own = net.with("/args", json!({"cni": {"mac": "02:00:00:00:00:11"}}));
    let result = own.added(&Attachment::new("two", &pods[2]));
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:11");
    assert!(wait_until(PATIENCE, || known("10.1.2.4") == "02:00:00:00:00:11"), "{}", known("10.1.2.4"));
}

/// The bridge drops frames until the kernel notifies it that the pod's interface is up. Each request is delayed, as on
/// a busy machine.
#[test]
fn an_address_is_announced_when_the_bridge_listens() {
    need!("ip", "strace");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let (first, pod) = (Pod::new(), Pod::new());
    net.added(&Attachment::new("first", &first));
    host.ip("neigh replace 10.1.2.3 lladdr 02:00:00:00:00:77 dev br0 nud stale");
    let add = net.call("ADD", &Attachment::new("second", &pod), None).under(&[
        "strace",
        "-qq",
        "-o/dev/null",
        "-etrace=sendto",
        "-einject=sendto:delay_enter=100000",
    ]);
    add.run().success();
    let known = || host.ip_json("neigh show 10.1.2.3 dev br0")[0]["lladdr"].clone();
    assert!(wait_until(PATIENCE, || known() == "0a:58:0a:01:02:03"), "{}", known());
}

#[test]
fn an_address_that_comes_back_is_heard_of() {
    need!("ip", "ping");
    let host = Host::new();
    let net = Network::new(&host, configs::v4(&host));
    let (old, new, neighbour) = (Pod::new(), Pod::new(), Pod::new());
    net.added(&Attachment::new("neighbour", &neighbour));
    let att = Attachment::new("old", &old).args("IgnoreUnknown=1;IP=10.1.2.9");
    net.added(&att);
    assert!(neighbour.pings_once("10.1.2.9"));
    net.deleted(&att, None);
    let result = net.added(&Attachment::new("new", &new).args("IgnoreUnknown=1;IP=10.1.2.9"));
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    // From the announcement, without a request.
    assert!(
        wait_until(PATIENCE, || neighbour.ip("neigh show 10.1.2.9").contains(mac)),
        "{}",
        neighbour.ip("neigh show")
    );
    assert!(neighbour.pings_once("10.1.2.9"));
}
