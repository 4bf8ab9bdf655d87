//! From the Go plugins to these while pods run. Each port stays with its pod.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Network, need, need_go, need_recent_go, skip};

use super::reference::go_table;
use super::{Site, pod_ip};

/// As from older plugins.
fn plain(result: &Value) -> Value {
    let mut plain = result.clone();
    plain["cniVersion"] = json!("1.0.0");
    for interface in plain["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mtu");
    }
    plain
}

fn mapping(port: u16, protocol: &str, host_ip: &str) -> Value {
    json!({"hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": host_ip})
}

/// The first pod has 8080 and 8081 (on one address) in `form`, then comes the second.
fn assert_kept(site: &Site, ours: &Network<'_>, form: &str) {
    let (att, prev) = (site.attachment(1), plain(&site.results[1]));
    let add = |mappings: Value| {
        ours.with("/runtimeConfig/portMappings", mappings).call("ADD", &att, Some(&prev)).run()
    };
    let before = site.ruleset();
    for (mappings, port) in [
        (json!([mapping(8080, "tcp", "")]), "host port 8080/tcp is already taken"),
        (json!([mapping(7000, "udp", ""), mapping(8080, "TCP", "0.0.0.0")]), "host port 8080/tcp is"),
        (json!([mapping(8080, "tcp", "192.0.2.1")]), "host port 8080/tcp of 192.0.2.1 is"),
        (json!([mapping(8081, "tcp", "")]), "host port 8081/tcp is already taken"),
        (json!([mapping(8081, "tcp", "192.0.2.1")]), "host port 8081/tcp of 192.0.2.1 is"),
    ] {
        let err = add(mappings.clone()).error();
        assert_eq!(err.code, 102, "{form}: {mappings}: {}", err.all());
        assert!(err.msg.contains(port) && err.all().contains("id: pod0"), "{form}: {}", err.all());
        assert!(err.all().contains("Go plugins"), "{form}: {}", err.all());
        assert_eq!(site.ruleset(), before, "{form}: {mappings}");
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"), "{form}");
        assert!(tcp(&site.world, "192.0.2.1:8081").unwrap().starts_with("pod0"), "{form}");
    }
    // Ports without a collision are added.
    add(json!([
        mapping(8080, "udp", ""),
        mapping(8081, "tcp", "10.1.2.1"),
        mapping(8081, "tcp", "::"),
        mapping(9090, "tcp", ""),
    ]))
    .success();
    assert!(tcp(&site.world, "192.0.2.1:9090").unwrap().starts_with("pod1"), "{form}");
    assert!(tcp(&site.host, "10.1.2.1:8081").unwrap().starts_with("pod1"), "{form}");
    assert!(tcp(&site.world, "[2001:db8::1]:8081").unwrap().starts_with("pod1"), "{form}");
    assert!(tcp(&site.world, "192.0.2.1:8081").unwrap().starts_with("pod0"), "{form}");
    ours.deleted(&att, None);
    let own = ours
        .with("/name", json!("another"))
        .with("/runtimeConfig/portMappings", json!([mapping(8080, "tcp", "")]));
    own.call("ADD", &site.attachment(0), Some(&plain(&site.results[0]))).run().success();
    own.deleted(&site.attachment(0), None);
}

/// Free after the Go pod's DEL.
fn assert_free(site: &Site, ours: &Network<'_>, form: &str) {
    let net = ours.with("/runtimeConfig/portMappings", json!([mapping(8080, "tcp", "")]));
    net.call("ADD", &site.attachment(1), Some(&plain(&site.results[1]))).run().success();
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod1"), "{form}");
}

/// On port 80 of each pod.
fn servers(site: &Site) -> [Server; 2] {
    [Server::start(&site.pods[0], 80, "pod0"), Server::start(&site.pods[1], 80, "pod1")]
}

fn served() -> Value {
    json!([mapping(8080, "tcp", ""), mapping(8081, "tcp", "192.0.2.1")])
}

#[test]
fn a_port_of_a_go_pod_in_iptables_is_not_taken() {
    need_go!(go, "nft", "ip", "iptables-nft-save");
    for backend in ["nftables", "iptables"] {
        let site = Site::new();
        let _servers = servers(&site);
        let ours =
            site.network(served()).with("/cniVersion", json!("1.0.0")).with("/backend", json!(backend));
        let theirs = ours.with("/backend", json!("iptables")).served_by(go);
        let (att, prev) = (site.attachment(0), plain(&site.results[0]));
        theirs.call("ADD", &att, Some(&prev)).run().result();
        assert_kept(&site, &ours, &format!("iptables, ours {backend}"));
        theirs.del(&att, Some(&prev)).success();
        assert_free(&site, &ours, backend);
    }
}

#[test]
fn a_port_of_a_go_pod_in_nftables_is_not_taken() {
    need!("nft", "ip");
    for (release, backend) in [("early", "nftables"), ("1.6.1", "iptables"), ("1.9", "nftables")] {
        let site = Site::new();
        let _servers = servers(&site);
        let ours =
            site.network(served()).with("/cniVersion", json!("1.0.0")).with("/backend", json!(backend));
        let (att, prev) = (site.attachment(0), plain(&site.results[0]));
        let table = go_table(release, "ip", "192.0.2.1", &pod_ip(&prev, false));
        site.host.run_with("nft -f -", table.as_bytes()).success();
        assert_kept(&site, &ours, &format!("cni_hostport of {release}, ours {backend}"));
        ours.with("/runtimeConfig", Value::Null).deleted(&att, None);
        assert_free(&site, &ours, release);
    }
}

/// The table is one that a Go plugin makes here, not a copy of what a release has made.
#[test]
fn a_port_of_the_installed_go_plugin_in_nftables_is_not_taken() {
    need_recent_go!(go, "nft", "ip");
    let site = Site::new();
    let _servers = servers(&site);
    let ours = site.network(served()).with("/cniVersion", json!("1.0.0")).with("/backend", json!("nftables"));
    let (att, prev) = (site.attachment(0), plain(&site.results[0]));
    ours.served_by(go).call("ADD", &att, Some(&prev)).run().result();
    assert!(site.ruleset().contains("cni_hostport"), "{}", site.ruleset());
    assert_kept(&site, &ours, "cni_hostport");
    ours.with("/runtimeConfig", Value::Null).deleted(&att, None);
    assert_free(&site, &ours, "cni_hostport");
}

#[test]
fn a_port_of_our_other_backend_is_not_taken() {
    need!("nft", "ip", "iptables-nft-save");
    for (old, new) in [("iptables", "nftables"), ("nftables", "iptables"), ("iptables", "iptables")] {
        let site = Site::new();
        let _servers = servers(&site);
        let net = |backend: &str| site.network(served()).with("/backend", json!(backend));
        site.add(&net(old), 0);
        let before = site.ruleset();
        let err = net(new).call("ADD", &site.attachment(1), Some(&site.results[1])).run().error();
        assert!(err.code == 102 && err.all().contains("id: pod0"), "{old}, {new}: {}", err.all());
        assert_eq!(site.ruleset(), before, "{old}, {new}");
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"), "{old}, {new}");
        // The pod's own plugin, with another configuration.
        net(old).deleted(&site.attachment(0), None);
        site.add(&net(new), 1);
        assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod1"), "{old}, {new}");
    }
}

#[test]
fn a_port_of_a_go_pod_in_legacy_iptables_is_not_taken() {
    need!("nft", "ip", "iptables-legacy", "iptables-legacy-save");
    let site = Site::new();
    if site.host.run("iptables-legacy -t nat -S").status != 0 {
        skip!("this kernel has no legacy iptables");
    }
    need_go!(go, "ip");
    let _servers = servers(&site);
    let bin = site.host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{action}");
            std::os::unix::fs::symlink(target, bin.join(format!("{family}{action}"))).unwrap();
        }
    }
    let ours = site.network(served()).with("/cniVersion", json!("1.0.0")).with("/backend", json!("nftables"));
    let mut theirs = ours.with("/backend", json!("iptables")).served_by(go);
    theirs.path = Some(format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
    let (att, prev) = (site.attachment(0), plain(&site.results[0]));
    theirs.call("ADD", &att, Some(&prev)).run().result();
    assert_kept(&site, &ours, "legacy iptables");
    theirs.del(&att, Some(&prev)).success();
    assert_free(&site, &ours, "legacy iptables");
}
