//! ADD as runtimes call it: keys in any case, `null`, and requested addresses and MACs.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Pod, configs, need, need_recent_go, plugin_dir};

#[test]
fn loopback_as_containerd_and_dockershim_call_it() {
    need!("ip");
    let host = Host::hasty();
    let up = |pod: &Ns| {
        let flags = pod.link("lo")["flags"].clone();
        flags.as_array().unwrap().contains(&json!("UP"))
    };
    // (version, CNI_IFNAME)
    for (version, ifname) in [("0.3.1", "lo"), ("0.2.0", "eth0"), ("0.2.0", "lo"), ("1.0.0", "eth0")] {
        let pod = Pod::new();
        pod.ip("link set lo down");
        let net =
            Network::new(&host, json!({"cniVersion": version, "name": "cni-loopback", "type": "loopback"}));
        let att = Attachment::new("one", &pod).ifname(ifname).args("no args at all;==");
        let call = net.call("ADD", &att, None).unset("PATH");
        let result = call.run().result();
        assert!(up(&pod), "{version} {ifname}");
        if version >= "0.3.0" {
            assert_eq!(result["interfaces"][0]["name"], "lo", "{result:#}");
        } else {
            assert_eq!(result["ip4"]["ip"], "127.0.0.1/8", "{result:#}");
        }
        net.call("DEL", &att, None).unset("PATH").run().success();
        assert!(!up(&pod));
        for gone in ["", "/var/run/netns/gone", "/proc/4194304/ns/net"] {
            net.call("DEL", &att.clone().netns(gone), None).run().success();
        }
    }
}

/// go-cni marshals structs without JSON tags, so every key begins with a capital.
#[test]
fn runtime_config_with_capitals() {
    need!("ip");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/ipam/ranges", json!([]));
    let net = net.with(
        "/runtimeConfig",
        json!({
            "PortMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}],
            "portMappings": [],
            "bandwidth": {"IngressRate": 1000000, "IngressBurst": 4294967295_u64, "EgressRate": 0, "EgressBurst": 34359738359_u64},
            "dns": {"Servers": ["192.0.2.53"], "Searches": ["a.example"], "Options": ["ndots:5"]},
            "ipRanges": [[{"Subnet": "10.77.0.0/24", "RangeStart": "10.77.0.20", "RangeEnd": "10.77.0.30", "Gateway": "10.77.0.9"}]],
            "cgroupPath": "/kubepods/pod1",
            "io.kubernetes.cri.pod-annotations": {"a": "b"},
        }),
    );
    let att = Attachment::new("one", &pod)
        .args("K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=0a1b;K8S_POD_INFRA_CONTAINER_ID=one;K8S_POD_NAMESPACE=default");
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.77.0.20/24", "{result:#}");
    assert_eq!(result["ips"][0]["gateway"], "10.77.0.9", "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
}

#[test]
fn keys_in_any_case_and_the_exact_one_wins() {
    need!("ip");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(
        &host,
        json!({
            "CNIVersion": configs::newest(), "NAME": "shouting", "Type": "bridge", "type": "bridge",
            "BRIDGE": "br7", "IsGateway": true, "MTU": 1400,
            "IPAM": {"TYPE": "host-local", "DataDir": host.data_dir(), "Subnet": "10.66.0.0/24", "subnet": "10.67.0.0/24"},
        }),
    );
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.67.0.2/24", "{result:#}");
    assert_eq!(host.addrs("br7"), ["10.67.0.1/24"]);
    assert_eq!(host.link("br7")["mtu"], 1400);
    net.deleted(&att, Some(&result));
}

#[test]
fn null_and_empty_stand_for_absent() {
    need!("ip", "nft");
    let host = Host::hasty();
    let nothing = json!({
        "args": null, "dns": {}, "runtimeConfig": null, "capabilities": null, "prevResult": null,
        "mtu": null, "bridge": "br0", "isDefaultGateway": null, "vlan": null, "vlanTrunk": null, "ipMasqBackend": "",
        "hairpinMode": null,
    });
    let mut net = Network::new(&host, configs::v4(&host));
    for (key, value) in nothing.as_object().unwrap() {
        net = net.with(&format!("/{key}"), value.clone());
    }
    for key in ["rangeStart", "rangeEnd", "gateway", "subnet"] {
        net = net.with(&format!("/ipam/{key}"), json!(null));
    }
    net = net.with("/ipam/resolvConf", json!(""));
    net = net.with("/ipam/routes", json!(null));
    for args in
        [json!(null), json!({}), json!({"cni": null}), json!({"cni": {}}), json!({"cni": {"ips": null}})]
    {
        let pod = Pod::new();
        let net = net.with("/args", args.clone());
        let att = Attachment::new("one", &pod);
        let result = net.added(&att);
        assert!(result["routes"].as_array().is_none_or(Vec::is_empty), "{result:#}");
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
    }
}

#[test]
fn addresses_and_macs_that_runtimes_ask_for() {
    need!("ip");
    let host = Host::hasty();
    let net = Network::new(&host, configs::dual(&host));
    let ask = |net: &Network<'_>, args: &str| -> (Vec<String>, String) {
        let pod = Pod::new();
        let att = Attachment::new("one", &pod).args(args);
        let result = net.added(&att);
        let addresses = result["ips"].as_array().unwrap();
        let addresses = addresses.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect();
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
        (addresses, result["interfaces"][2]["mac"].as_str().unwrap().to_owned())
    };
    // podman --ip and --mac-address, in any order, with and without a mask.
    let mac = "02:00:00:00:00:42";
    for args in [
        format!("IgnoreUnknown=1;IP=10.1.2.42;MAC={mac}"),
        format!("MAC={mac};IP=10.1.2.42/16;IgnoreUnknown=true"),
    ] {
        let (addresses, got) = ask(&net, &args);
        assert_eq!(addresses[0], "10.1.2.42/24", "{args}");
        assert_eq!(got, mac, "{args}");
    }
    // Two families are passed as the ips capability.
    let ips = json!({"ips": ["10.1.2.50/24", "fd00:1:2::50/64"], "mac": mac});
    let (addresses, _) = ask(&net.with("/runtimeConfig", ips), "");
    assert_eq!(addresses, ["10.1.2.50/24", "fd00:1:2::50/64"]);
    let ips: Value = json!({"cni": {"ips": ["10.1.2.51", "fd00:1:2::51"]}});
    let (addresses, _) = ask(&net.with("/args", ips), "");
    assert_eq!(addresses, ["10.1.2.51/24", "fd00:1:2::51/64"]);
    // ctr passes an empty string.
    ask(&net, "");
}

/// If the configuration's `dns` has any key, it replaces that of the IPAM plugin. An empty list counts.
#[test]
fn an_empty_list_of_name_servers_clears_those_of_ipam() {
    need!("ip");
    dns(plugin_dir());
}

#[test]
fn so_it_does_for_the_go_plugins() {
    need_recent_go!(go, "ip");
    dns(go);
}

fn dns(plugins: &Path) {
    let of_ipam = json!({"nameservers": ["192.0.2.53"], "domain": "ipam.example"});
    for kind in ["bridge", "ptp"] {
        for (given, expected) in [
            (json!({"nameservers": []}), json!(null)),
            (json!({"options": []}), json!(null)),
            (json!({"search": ["b.example"], "domain": ""}), json!({"search": ["b.example"]})),
            (json!({"domain": "c.example"}), json!({"domain": "c.example"})),
            (json!({"nameservers": null, "domain": ""}), of_ipam.clone()),
            (json!({}), of_ipam.clone()),
            (json!(null), of_ipam.clone()),
        ] {
            let (host, pod) = (Host::hasty(), Pod::new());
            let address = json!([{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}]);
            let ipam = json!({"type": "static", "addresses": address, "dns": of_ipam});
            let net = Network::by(plugins, &host, configs::layer2())
                .with("/cniVersion", json!("1.0.0"))
                .with("/type", json!(kind))
                .with("/ipam", ipam)
                .with("/dns", given.clone());
            let result = net.added(&Attachment::new("one", &pod));
            let dns = result.get("dns").filter(|dns| **dns != json!({})).cloned().unwrap_or_default();
            assert_eq!(dns, expected, "{kind}: {given}");
        }
    }
}
