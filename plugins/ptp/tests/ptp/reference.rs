//! Equal results and routes; each plugin checks and removes the other's attachments.

use std::path::Path;

use serde_json::json;

use cnimble_tests::{
    Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, need_go, plugin_dir, wait_until,
};

use super::{config, host, routes, state, veth};

#[test]
fn result_and_routes_are_those_of_the_reference() {
    need_go!(go, "ip", "nft", "ping", "iptables");
    for version in configs::VERSIONS.iter().filter(|version| **version < "1.1.0") {
        for extra in [
            json!([]),
            json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.2.9"}, {"dst": "fd07::/64", "gw": "fd00:1:2::9"}]),
        ] {
            let seen = |plugins: &Path| {
                let host = Host::new();
                let pod = Pod::new();
                let net = Network::by(plugins, &host, config(&host))
                    .with("/cniVersion", json!(version))
                    .with("/ipam/routes", extra.clone());
                let outcome = net.add(&Attachment::new("a", &pod)).success();
                let name = host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
                let mut result = outcome.result();
                // Newer releases omit it from 1.0.0 on.
                if result["dns"] == json!({}) {
                    result.as_object_mut().unwrap().remove("dns");
                }
                let mut text = result.to_string();
                for (random, fixed) in [
                    (name.as_str(), "VETH"),
                    (host.link(&name)["address"].as_str().unwrap(), "HOST-MAC"),
                    (pod.link("eth0")["address"].as_str().unwrap(), "POD-MAC"),
                    (pod.path(), "SANDBOX"),
                ] {
                    text = text.replace(random, fixed);
                }
                Snapshot::of(&host); // waits for what the reference left tentative
                (text, routes(&pod, "eth0"), routes(&host, &name), host.addrs(&name), pod.addrs("eth0"))
            };
            assert_eq!(seen(plugin_dir()), seen(go), "version {version}, {extra}");
        }
    }
}

#[test]
fn pods_made_by_the_go_plugins_are_checked_and_torn_down() {
    need_go!(go, "ip", "nft", "ping", "iptables");
    for masquerade in [false, true] {
        let host = host();
        let net = Network::new(&host, config(&host))
            .with("/cniVersion", json!("1.0.0"))
            .with("/ipMasq", json!(masquerade));
        let theirs = net.served_by(go);
        let neighbour = Pod::new();
        let neighbour_att = Attachment::new("neighbour", &neighbour);
        let neighbour_result = theirs.added(&neighbour_att);
        let before = state(&host);
        for netns in ["given", "empty", "gone", "empty but there"] {
            for prev in [true, false] {
                let what = format!("ipMasq {masquerade}, netns {netns}, prevResult {prev}");
                if netns == "empty but there" && !prev {
                    continue; // nothing on the host says whose it is
                }
                let pod = Pod::new();
                let mut att = Attachment::new("upgraded", &pod);
                let result = theirs.added(&att);
                Snapshot::of(&host); // waits for duplicate address detection
                net.check(&att, &result).success();
                let pod = if netns == "given" || netns == "empty but there" {
                    Some(pod)
                } else {
                    drop(pod);
                    None
                };
                assert!(pod.is_some() || wait_until(PATIENCE, || host.link(veth(&result)).is_null()));
                if netns.starts_with("empty") {
                    att.netns = String::new();
                }
                net.deleted(&att, prev.then_some(&result));
                before.assert_same(&state(&host), &what);
            }
        }
        assert!(neighbour.pings("10.1.2.1"), "ipMasq {masquerade}");
        net.deleted(&neighbour_att, Some(&neighbour_result));
        assert!(state(&host).mentions("neighbour").is_empty());
    }
}

#[test]
fn our_pods_are_checked_and_torn_down_by_the_go_plugins() {
    need_go!(go, "ip", "nft", "ping", "iptables");
    for masquerade in [false, true] {
        let host = host();
        // An old Go plugin has no other backend.
        let net = Network::new(&host, config(&host))
            .with("/cniVersion", json!("1.0.0"))
            .with("/ipMasqBackend", json!("iptables"))
            .with("/ipMasq", json!(masquerade));
        let neighbour = Pod::new();
        net.added(&Attachment::new("neighbour", &neighbour));
        let before = state(&host);
        for prev in [true, false] {
            let pod = Pod::new();
            let att = Attachment::new("downgraded", &pod);
            let result = net.added(&att);
            let theirs = net.served_by(go);
            theirs.check(&att, &result).success();
            theirs.deleted(&att, prev.then_some(&result));
            before.assert_same(&state(&host), &format!("ipMasq {masquerade}, prevResult {prev}"));
        }
        assert!(neighbour.pings_once("10.1.2.1"));
    }
}
