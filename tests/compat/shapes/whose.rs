//! DEL determines the owner of an interface. It removes that of the attachment after any change, and keeps that of
//! another one. An address in use keeps its lease.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Pod, configs, leases, need, need_go};

/// Changes to the host's end of a pod.
const DEEDS: &[(&str, &[&str])] = &[
    ("an alias of an administrator's", &["link set VETH alias uplink-of-web-1"]),
    ("no alias", &["link set VETH alias \"\""]),
    ("another name", &["link set VETH down", "link set VETH name cable7", "link set cable7 up"]),
    (
        "another name and alias",
        &["link set VETH down", "link set VETH name cable7", "link set cable7 alias web-1"],
    ),
];

fn network<'h>(host: &'h Host, kind: &str) -> Network<'h> {
    Network::new(host, configs::dual(host)).with("/type", json!(kind)).with("/ipMasq", json!(true))
}

fn veth(result: &Value) -> &str {
    let interfaces = result["interfaces"].as_array().unwrap();
    interfaces.iter().find_map(|i| i["name"].as_str().filter(|name| name.starts_with("veth"))).unwrap()
}

fn addresses(host: &Host) -> Vec<String> {
    let all = leases(&host.data_dir()).into_iter();
    all.filter(|line| line.contains("net64/10.") || line.contains("net64/fd")).collect()
}

fn done_to(ns: &Ns, deed: &[&str], veth: &str) {
    for command in deed {
        ns.sh(&format!("ip {}", command.replace("VETH", veth)));
    }
}

#[test]
fn del_removes_the_interface_whatever_became_of_its_host_end() {
    need!("ip", "nft");
    for kind in ["bridge", "ptp"] {
        let host = Host::hasty();
        let net = network(&host, kind);
        for (what, deed) in DEEDS {
            // Without a namespace and without a prevResult, only name and alias are known.
            let known = *what != "another name and alias";
            for (netns, prev) in [(true, true), (true, false), (false, true), (false, false)] {
                if !netns && !prev && !known {
                    continue;
                }
                let what = format!("{kind}, {what}, namespace {netns}, prevResult {prev}");
                let pod = Pod::new();
                let attachment = Attachment::new("one", &pod);
                let result = net.added(&attachment);
                done_to(&host, deed, veth(&result));
                let gone = if netns { attachment.clone() } else { attachment.clone().netns("") };
                net.deleted(&gone, prev.then_some(&result));
                assert_eq!(pod.links(), ["lo"], "{what}");
                assert_eq!(addresses(&host), [""; 0], "{what}");
                net.deleted(&gone, prev.then_some(&result));
            }
        }
    }
}

#[test]
fn del_removes_what_the_go_plugins_made_whatever_became_of_its_host_end() {
    need_go!(go, "ip", "nft");
    for kind in ["bridge", "ptp"] {
        let host = Host::hasty();
        let net = network(&host, kind).with("/cniVersion", json!("1.0.0"));
        let theirs = net.served_by(go);
        for (what, deed) in DEEDS {
            for del in [&net, &theirs] {
                let pod = Pod::new();
                let attachment = Attachment::new("one", &pod);
                let result = theirs.added(&attachment);
                done_to(&host, deed, veth(&result));
                del.deleted(&attachment, Some(&result));
                assert_eq!(pod.links(), ["lo"], "{kind}, {what}");
                assert_eq!(addresses(&host), [""; 0], "{kind}, {what}");
            }
        }
    }
}

#[test]
fn a_lease_stays_while_its_address_is_on_an_interface_that_cant_be_told() {
    need!("ip", "nft");
    for kind in ["bridge", "ptp"] {
        let host = Host::hasty();
        let net = network(&host, kind);
        let pod = Pod::new();
        let attachment = Attachment::new("one", &pod);
        let result = net.added(&attachment);
        // Nothing identifies it as the interface of the attachment any more, and it has its addresses.
        done_to(&host, DEEDS[3].1, veth(&result));
        pod.ip("link set eth0 address 02:00:00:00:be:ef");
        for _ in 0..2 {
            let outcome = net.del(&attachment, Some(&result));
            let told = format!("nothing shows that eth0 in {} is what was added; left alone", pod.path());
            assert!(outcome.stderr.contains(&told), "{kind}: {}", outcome.describe());
            let err = outcome.error();
            assert_eq!(err.code, 102, "{kind}: {err:?}");
            assert!(err.msg.contains("is in use by another interface eth0"), "{kind}: {err:?}");
        }
        assert_eq!(addresses(&host).len(), 2, "{kind}: {:?}", addresses(&host));
        assert!(!pod.link("eth0").is_null());
        pod.ip("link del eth0");
        net.deleted(&attachment, Some(&result));
        assert_eq!(addresses(&host), [""; 0], "{kind}");
    }
}

#[test]
fn an_interface_that_another_runtime_added_again_stays() {
    need!("ip", "nft");
    added_again(None);
}

#[test]
fn an_interface_that_a_go_plugin_added_again_stays() {
    need_go!(go, "ip", "nft");
    added_again(Some(go));
}

/// Tests a pod that lost its interface and got one of another attachment, by the plugins in `others`.
fn added_again(others: Option<&Path>) {
    for kind in ["bridge", "ptp"] {
        let host = Host::hasty();
        let net = network(&host, kind).with("/cniVersion", json!("1.0.0"));
        let others = others.map_or_else(|| net.clone(), |go| net.served_by(go));
        let pod = Pod::new();
        let (dead, alive) = (Attachment::new("dead", &pod), Attachment::new("alive", &pod));
        let result = net.added(&dead);
        host.ip(&format!("link del {}", veth(&result)));
        let again = others.added(&alive);
        net.deleted(&dead, Some(&result));
        assert!(!pod.link("eth0").is_null(), "{kind}");
        let left = addresses(&host);
        assert!(left.len() == 2 && left.iter().all(|lease| lease.contains("alive")), "{kind}: {left:?}");
        others.deleted(&alive, Some(&again));
        assert_eq!(pod.links(), ["lo"], "{kind}");
    }
}

/// A veth with both ends in the pod. The index of one end may equal that of a neighbour's port.
#[test]
fn an_index_in_the_pod_is_none_of_the_host() {
    need!("ip", "nft");
    let host = Host::hasty();
    let net = network(&host, "bridge");
    let (pod, neighbour) = (Pod::new(), Pod::new());
    let result = net.added(&Attachment::new("neighbour", &neighbour));
    let port = host.link(veth(&result))["ifindex"].as_u64().unwrap();
    let inner = neighbour.link("eth0")["ifindex"].as_u64().unwrap();
    pod.ip(&format!("link add eth0 index {inner} type veth peer name other index {port}"));
    // Without a prevResult the name is enough, as for the Go plugins.
    net.deleted(&Attachment::new("never", &pod), None);
    assert_eq!(pod.links(), ["lo"]);
    assert!(!neighbour.link("eth0").is_null());
}
