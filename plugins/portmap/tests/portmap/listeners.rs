//! Processes of the host that listen on a published port.

use std::net::{TcpListener, UdpSocket};

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Network, go_plugins, need, skip};

use super::Site;

/// The warnings of an ADD that succeeds. DEL follows.
fn warnings(site: &Site, net: &Network<'_>) -> Vec<String> {
    let attachment = site.attachment(0);
    let outcome = net.call("ADD", &attachment, Some(&site.results[0])).run().success();
    net.deleted(&attachment, Some(&site.results[0]));
    outcome.stderr.lines().filter(|line| line.contains("listens on")).map(str::to_owned).collect()
}

#[test]
fn a_process_that_listens_on_a_published_port_is_named() {
    need!("nft", "ip");
    let site = Site::new();
    let ports = |list: Value| site.network(list);
    let tcp_port = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    assert_eq!(warnings(&site, &ports(tcp_port.clone())), [] as [&str; 0]);

    let _tcp = site.host.within(|| TcpListener::bind("[::]:8080").unwrap());
    let _udp = site.host.within(|| UdpSocket::bind("127.0.0.53:53").unwrap());
    let warned = |at: &str| {
        format!("cnimble: warning: a process of the host listens on {at}: the port leads to the pod now")
    };
    assert_eq!(warnings(&site, &ports(tcp_port)), [warned("[::]:8080/tcp")]);
    let both = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp"},
    ]);
    assert_eq!(warnings(&site, &ports(both)), [warned("[::]:8080/tcp"), warned("127.0.0.53:53/udp")]);
    // Another protocol, address or port.
    let others = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp"},
    ]);
    assert_eq!(warnings(&site, &ports(others)), [] as [&str; 0]);
}

#[test]
fn a_listener_loses_its_connections_with_the_go_plugin_without_a_word() {
    need!("nft", "ip", "iptables-nft-save");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let site = Site::new();
    let _listener = site.host.within(|| TcpListener::bind("0.0.0.0:8080").unwrap());
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let mut prev = site.results[0].clone();
    prev["cniVersion"] = json!("1.0.0");
    for interface in prev["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mtu");
    }
    let ours = site
        .network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]))
        .with("/cniVersion", json!("1.0.0"));
    for (net, warns) in [(ours.served_by(go), false), (ours, true)] {
        let outcome = net.call("ADD", &site.attachment(0), Some(&prev)).run().success();
        assert_eq!(outcome.stderr.contains("listens on 0.0.0.0:8080/tcp"), warns, "{}", outcome.stderr);
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"));
        net.deleted(&site.attachment(0), Some(&prev));
    }
}
