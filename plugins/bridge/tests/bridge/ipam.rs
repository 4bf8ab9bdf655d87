//! The pod's MAC, and the hosts and plugins that have seen it.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, configs, copy, need, plugin_dir, script};

/// `seeing` reads the interface as a DHCP client does, and writes it to `seen`.
fn plugins(host: &Host) -> std::path::PathBuf {
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(plugin_dir().join(name), bin.join(name)).unwrap();
    }
    let sees = format!(
        "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n\
         nsenter --net=$CNI_NETNS ip -json link show dev $CNI_IFNAME >{}\n\
         echo '{{\"cniVersion\": \"1.0.0\", \"ips\": [{{\"address\": \"10.1.2.9/24\"}}]}}'\n",
        host.dir().join("seen").display()
    );
    script(&bin.join("seeing"), &sees);
    bin
}

fn seen(dir: &Path) -> Value {
    let text = std::fs::read_to_string(dir.join("seen")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0]["address"].clone()
}

#[test]
fn a_foreign_ipam_plugin_sees_the_mac_that_the_pod_keeps() {
    need!("ip", "nft", "ping", "nsenter");
    let host = Host::new();
    let net = Network::by(&plugins(&host), &host, configs::v4(&host))
        .with("/ipam", json!({"type": "seeing"}))
        .with("/macspoofchk", json!(true));
    // Each pod has the same address with another MAC. Hosts get an announcement.
    for id in ["one", "two"] {
        let pod = Pod::new();
        let attachment = Attachment::new(id, &pod);
        let result = net.added(&attachment);
        let mac = pod.link("eth0")["address"].clone();
        assert_eq!(seen(host.dir()), mac);
        assert_eq!(result["interfaces"][2]["mac"], mac, "{result:#}");
        assert_ne!(mac, "0a:58:0a:01:02:09");
        assert!(host.pings_once("10.1.2.9") && pod.pings_once("10.1.2.1"), "{id}");
        net.check(&attachment, &result).success();
        net.deleted(&attachment, Some(&result));
    }
    let pod = Pod::new();
    let asked_for = net.with("/runtimeConfig", json!({"mac": "02:00:5e:10:00:01"}));
    asked_for.added(&Attachment::new("three", &pod));
    assert_eq!(
        (seen(host.dir()), &pod.link("eth0")["address"]),
        (json!("02:00:5e:10:00:01"), &json!("02:00:5e:10:00:01"))
    );
}

#[test]
fn only_our_own_ipam_plugin_lets_the_mac_go_with_the_address() {
    need!("ip");
    let host = Host::new();
    let bin = plugins(&host);
    let net = Network::by(&bin, &host, configs::v4(&host));
    let first = Pod::new();
    let result = net.added(&Attachment::new("one", &first));
    assert_eq!(result["interfaces"][2]["mac"], "0a:58:0a:01:02:02", "{result:#}");
    // Another file of that name may be any program.
    std::fs::remove_file(bin.join("host-local")).unwrap();
    copy(&plugin_dir().join("host-local"), &bin.join("host-local"));
    let second = Pod::new();
    let result = net.added(&Attachment::new("two", &second));
    assert_ne!(result["interfaces"][2]["mac"], "0a:58:0a:01:02:03", "{result:#}");
}

#[test]
fn an_answer_of_ipam_without_a_version_has_the_configurations() {
    need!("ip");
    let (host, pod) = (Host::new(), Pod::new());
    let bin = plugins(&host);
    for (version, answer) in [
        ("1.0.0", r#"{"ips": [{"address": "10.1.2.9/24"}]}"#),
        ("0.4.0", r#"{"cniVersion": "", "ips": [{"version": "4", "address": "10.1.2.9/24"}]}"#),
        ("0.2.0", r#"{"ip4": {"ip": "10.1.2.9/24"}}"#),
    ] {
        let answers = format!("#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\necho '{answer}'\n");
        script(&bin.join("silent"), &answers);
        let net = Network::by(&bin, &host, configs::v4(&host))
            .with("/cniVersion", json!(version))
            .with("/ipam", json!({"type": "silent"}));
        let attachment = Attachment::new("one", &pod);
        net.added(&attachment);
        assert_eq!(pod.addrs("eth0")[0], "10.1.2.9/24", "{version}");
        net.deleted(&attachment, None);
    }
}
