use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Snapshot, need};

use super::Site;

#[test]
fn nothing_to_map_is_passed_through() {
    need!("nft", "ip");
    let host = Host::new();
    let pod = Ns::new();
    let before = Snapshot::of(&host);
    let prev = json!({
        "cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"version": "4", "interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["192.0.2.53"]},
    });
    for more in [
        json!({}),
        json!({"runtimeConfig": null}),
        json!({"runtimeConfig": {}}),
        json!({"runtimeConfig": {"portMappings": null}}),
        json!({"RuntimeConfig": {"PortMappings": []}}),
        json!({"snat": true, "capabilities": {"portMappings": true}}),
    ] {
        let mut config = json!({"cniVersion": "0.4.0", "name": "n", "type": "portmap"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let net = Network::new(&host, config);
        let attachment = Attachment::new("c", &pod);
        let result = net.call("ADD", &attachment, Some(&prev)).run().result();
        assert_eq!(result, prev, "{more}");
        net.check(&attachment, &prev).success();
        net.deleted(&attachment, Some(&prev));
        // It must be chained even so.
        let err = net.add(&attachment).error();
        assert!(err.code == 7 && err.msg.contains("must be called as chained plugin"), "{}", err.all());
    }
    before.assert_same(&Snapshot::of(&host), "with nothing to map");
}

#[test]
fn bad_input_is_one_clear_error_and_changes_nothing() {
    need!("nft", "ip");
    let host = Host::new();
    let pod = Ns::new();
    let before = Snapshot::of(&host);
    let prev = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]});
    let net = |more: Value| {
        let mut config = json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Network::new(&host, config)
    };
    let ports = |list: Value| json!({"runtimeConfig": {"portMappings": list}});
    for (more, part) in [
        (ports(json!([{"hostPort": 0, "containerPort": 1}])), "hostPort: 0 is not a port"),
        (ports(json!([{"hostPort": 65536, "containerPort": 1}])), "portMappings[0].hostPort"),
        (ports(json!([{"hostPort": 1, "containerPort": "x"}])), "portMappings[0].containerPort"),
        (ports(json!([{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}])), "unknown protocol"),
        (ports(json!([{"hostPort": 1, "containerPort": 1, "hostIP": "::g"}])), "portMappings[0].hostIP"),
        (ports(json!({"hostPort": 1})), "portMappings"),
        (json!({"backend": "pf"}), "unknown backend"),
        (json!({"backend": "nftables", "conditionsV4": ["-d", "192.0.2.1"]}), "conditionsV4"),
        (json!({"markMasqBit": 99}), "markMasqBit"),
        (json!({"snat": "yes"}), "snat"),
    ] {
        let net = net(more.clone());
        for verb in ["ADD", "CHECK"] {
            let err = net.call(verb, &Attachment::new("c", &pod), Some(&prev)).run().error();
            assert_eq!(err.code, 7, "{more}: {}", err.all());
            assert!(err.msg.contains(part), "{more}: {}", err.all());
        }
    }
    before.assert_same(&Snapshot::of(&host), "after refusals");
}

#[test]
fn check_says_what_is_missing() {
    need!("nft", "ip");
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let attachment = site.attachment(0);
    net.status().success();
    for (damage, part) in [
        ("nft delete element inet cnimble portmap4 { tcp . 8080 }", "portmap4 has no element tcp . 8080"),
        ("nft flush chain inet cnimble portmap", "portmap has no rule for portmap4"),
        ("nft flush chain inet cnimble portmap-output", "portmap-output has no rule"),
        ("nft flush chain inet cnimble portmap-postrouting", "portmap-postrouting has no rule"),
        (
            "nft flush set inet cnimble portmap-hairpin-10.1.2.0/24",
            "portmap-hairpin-10.1.2.0/24 has no element",
        ),
        ("nft flush ruleset", "has no element"),
    ] {
        let site = Site::new();
        let net = net.with("/name", json!("net64"));
        let net = Network { host: &site.host, ..net };
        let attachment = site.attachment(0);
        site.add(&net, 0);
        net.check(&attachment, &site.results[0]).success();
        site.host.sh(damage);
        let err = net.check(&attachment, &site.results[0]).error();
        assert_eq!(err.code, 103, "{damage}: {}", err.all());
        assert!(err.all().contains(part), "{damage}: {}", err.all());
    }
    site.add(&net, 0);
    site.host.set_sysctl("ipv4/conf/br0/route_localnet", "0");
    let err = net.check(&attachment, &site.results[0]).error();
    assert!(err.code == 103 && err.all().contains("route_localnet"), "{}", err.all());
    // Other ports than the mapped ones.
    site.host.set_sysctl("ipv4/conf/br0/route_localnet", "1");
    net.check(&attachment, &site.results[0]).success();
    let err =
        site.network(json!([{"hostPort": 8081, "containerPort": 80}])).check(&attachment, &site.results[0]);
    assert_eq!(err.error().code, 103);
    let err =
        site.network(json!([{"hostPort": 8080, "containerPort": 81}])).check(&attachment, &site.results[0]);
    assert!(err.error().all().contains("leads elsewhere"));
}

/// With `route_localnet`, as kube-proxy sets it, the port would lead to what the host keeps on localhost.
#[test]
fn no_port_leads_to_the_hosts_own_localhost() {
    need!("nft", "ip");
    let (host, pod) = (Host::new(), Ns::new());
    let attachment = Attachment::new("c", &pod);
    let net = Network::new(
        &host,
        json!({"cniVersion": "1.0.0", "name": "n", "type": "portmap",
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 2379}]}}),
    );
    let before = Snapshot::of(&host);
    for ip in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0"] {
        let prefix = if ip.contains(':') { 128 } else { 8 };
        let prev = json!({"cniVersion": "1.0.0", "ips": [{"address": format!("{ip}/{prefix}")}]});
        let err = net.call("ADD", &attachment, Some(&prev)).run().error();
        assert!(
            err.code == 102 && err.msg.contains(&format!("the pod has the address {ip} of the host")),
            "{err:?}"
        );
        before.assert_same(&Snapshot::of(&host), ip);
        net.deleted(&attachment, Some(&prev));
    }
}

#[test]
fn a_port_of_a_family_that_the_pod_lacks_is_a_warning() {
    need!("nft", "ip");
    let site = Site::new();
    let net = site.network(json!([
        {"hostPort": 8080, "containerPort": 80, "hostIP": "192.0.2.1"},
        {"hostPort": 8081, "containerPort": 80, "hostIP": "::"},
        {"hostPort": 8082, "containerPort": 80},
    ]));
    let mut only_ipv4 = site.results[0].clone();
    let ips = only_ipv4["ips"].as_array_mut().unwrap();
    ips.retain(|ip| !ip["address"].as_str().unwrap().contains(':'));
    let outcome = net.call("ADD", &site.attachment(0), Some(&only_ipv4)).run().success();
    let warned = "[::]:8081/tcp leads nowhere: the pod has only 10.1.2.2, which is of another family";
    assert!(outcome.stderr.contains(warned), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("leads nowhere").count(), 1, "{}", outcome.stderr);
}
