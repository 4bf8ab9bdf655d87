use std::path::Path;

use cnimble_tests::{configs, go_to_meet, skip, with_kind};

use super::*;

#[test]
fn either_set_checks_and_removes_what_the_other_made_and_results_are_the_same() {
    with_kind!("macvlan");
    let go = match go_to_meet() {
        Ok(go) if go.join("macvlan").exists() => go,
        Ok(_) => skip!("these Go plugins have no macvlan"),
        Err(why) => skip!("{why}"),
    };
    for mode in ["bridge", "private", "vepa", "passthru"] {
        let host = Host::hasty();
        let _lan = Lan::behind(&host, "uplink");
        let mut config = config(&host);
        config["cniVersion"] = "1.0.0".into();
        config["mode"] = mode.into();
        config["mtu"] = 1400.into();
        // The Go plugin compares it with the result's.
        config["ipam"]["routes"] = json!([{"dst": "10.99.0.0/16", "gw": "10.7.0.1"}]);
        if mode != "passthru" {
            config["mac"] = "02:00:00:00:00:07".into();
        }
        let ours = Network::new(&host, config);
        let theirs = ours.served_by(go);
        let mut seen = Vec::new();
        for (one, other) in [(&ours, &theirs), (&theirs, &ours)] {
            let pod = Pod::new();
            let attachment = Attachment::new("c1", &pod).args("IgnoreUnknown=1;IP=10.7.0.77");
            let mut result = one.added(&attachment);
            other.check(&attachment, &result).success();
            let (mut link, routes) = (pod.link("eth0"), pod.ip("route show"));
            for (key, value) in [
                ("ifalias", json!(null)),
                ("ifindex", json!(0)),
                ("address", json!("")),
                ("inet6_addr_gen_mode", json!("")),
            ] {
                link[key] = value;
            }
            // They differ from link to link.
            link.as_object_mut().unwrap().retain(|key, _| !key.starts_with("gso") && !key.starts_with("gro"));
            result["interfaces"][0]["sandbox"] = json!("");
            // Before 1.9, the Go plugin printed an empty `dns`, and no length.
            result.as_object_mut().unwrap().retain(|key, value| key != "dns" || *value != json!({}));
            link["txqlen"] = json!(null);
            if mode == "passthru" {
                result["interfaces"][0]["mac"] = json!("");
            }
            result["ips"].as_array_mut().unwrap().truncate(1);
            seen.push((result, link, routes, pod.addrs("eth0")[0].clone()));
            other.deleted(&attachment, None);
            assert_eq!((leases(&host), pod.links()), (Vec::new(), vec!["lo".to_owned()]));
        }
        assert_eq!(seen[0], seen[1], "{mode}");
    }
}

#[test]
fn the_result_has_the_bytes_of_the_reference_in_every_version() {
    with_kind!("macvlan");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/results");
    for version in configs::VERSIONS {
        let (host, pod) = (Host::hasty(), Pod::new());
        let _lan = Lan::behind(&host, "uplink");
        let mut config = config(&host);
        (config["cniVersion"], config["mac"]) = (json!(version), json!("02:00:00:00:00:01"));
        config["dns"] = json!({"nameservers": ["10.1.0.53"]});
        config["ipam"] = json!({
            "type": "static",
            "addresses": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"address": "fd00::2/64"}],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        let printed = Network::new(&host, config).add(&Attachment::new("c1", &pod)).success().text();
        let wanted = std::fs::read_to_string(golden.join(version).join("macvlan.json")).unwrap();
        assert_eq!(printed.replace(pod.path(), "/run/netns/pod"), wanted, "{version}");
    }
}
