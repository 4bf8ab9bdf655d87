//! Rules of others for NAT are a station, and notes of the doctor.

use cnimble_tests::{Outcome, Pod, need, plugin_dir};
use serde_json::{Value, json};

use super::{FAR, Site, document, stations};

/// Rules, a receiver that meets them and one that does not, and the words about them.
struct Rule {
    make: &'static str,
    undo: &'static str,
    met: &'static str,
    other: &'static str,
    says: &'static str,
    shows: &'static str,
    /// The beginning of the doctor's note, if the rule may decide about packets that rules of cnimble translate.
    note: Option<&'static str>,
}

const RULES: [Rule; 4] = [
    Rule {
        make: "iptables-nft -t nat -I POSTROUTING -s 10.214.1.0/24 -d 192.0.2.1 -j SNAT --to-source 10.7.0.2",
        undo: "iptables-nft -t nat -D POSTROUTING -s 10.214.1.0/24 -d 192.0.2.1 -j SNAT --to-source 10.7.0.2",
        met: FAR,
        other: "10.7.0.1",
        says: "rule SNAT of chain ip nat POSTROUTING, handle ",
        shows: "nft -a list chain ip nat POSTROUTING",
        note: Some("may give what pods of net send another source"),
    },
    Rule {
        make: "iptables-nft -t nat -I PREROUTING -p tcp --dport 8080 -j DNAT --to-destination 10.7.0.1:80",
        undo: "iptables-nft -t nat -D PREROUTING -p tcp --dport 8080 -j DNAT --to-destination 10.7.0.1:80",
        met: "192.0.2.1:8080",
        other: "192.0.2.1:8081",
        says: "may lead it to another address",
        shows: "nft -a list chain ip nat PREROUTING",
        note: None,
    },
    Rule {
        make: "iptables-legacy -t nat -I POSTROUTING -d 192.0.2.1 -j SNAT --to-source 10.7.0.2",
        undo: "iptables-legacy -t nat -F POSTROUTING",
        met: FAR,
        other: "10.7.0.1",
        says: "rule 1 (SNAT) of chain POSTROUTING in the legacy table nat of ip",
        shows: "iptables-legacy -t nat -S POSTROUTING 1",
        note: Some("may give what pods of net send another source"),
    },
    // It does what cnimble's rule would.
    Rule {
        make: "iptables-nft -t nat -I POSTROUTING -d 192.0.2.1 -j MASQUERADE",
        undo: "iptables-nft -t nat -D POSTROUTING -d 192.0.2.1 -j MASQUERADE",
        met: "",
        other: FAR,
        says: "",
        shows: "",
        note: None,
    },
];

/// The doctor's notes. They are no fault, so nothing else is found.
fn notes(site: &Site) -> Vec<String> {
    let leases = site.node.host.data_dir();
    let args = ["doctor", "--json", "--data-dir", leases.to_str().unwrap()];
    let outcome = site.node.cnimble(plugin_dir(), &args).run();
    assert_eq!(outcome.status, 0, "{}", outcome.describe());
    let notes = document(&outcome)["notes"].clone();
    notes.as_array().unwrap().iter().map(|note| note.as_str().unwrap().to_owned()).collect()
}

/// The texts and commands of the stations of NAT.
fn of_nat(traced: &Outcome) -> Vec<(String, String)> {
    let stations = document(traced)["stations"].as_array().unwrap().clone();
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let of_nat = stations.iter().filter(|of| of["station"] == "nat" && of["way"] == "out");
    of_nat.map(|of| (text(of, "text"), text(of, "try"))).collect()
}

#[test]
fn a_rule_of_others_that_translates_is_named() {
    need!("ip", "nft", "iptables-nft", "iptables-legacy");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let _pod = site.add("net", "web");
    assert_eq!(notes(&site), [] as [String; 0]);
    for Rule { make, undo, met, other, says, shows, note } in RULES {
        site.node.host.shell(make);
        let passed = site.trace(&["web", other, "--no-probe"]);
        assert_eq!(of_nat(&passed), [], "{make}: {}", passed.describe());
        if !met.is_empty() {
            let traced = site.trace(&["web", met, "--no-probe"]);
            let named = of_nat(&traced);
            assert!(named.len() == 1 && named[0].0.contains(says), "{make}: {}", traced.describe());
            assert_eq!(named[0].1, shows);
            assert_eq!(traced.status, 8, "{}", traced.describe());
        }
        let told = notes(&site);
        match note {
            None => assert_eq!(told, [] as [String; 0], "{make}"),
            Some(note) => {
                assert!(
                    told.len() == 1 && told[0].contains(note) && told[0].contains(says),
                    "{make}: {told:?}"
                );
            }
        }
        site.node.host.shell(undo);
    }
    assert_eq!(notes(&site), [] as [String; 0]);
}

/// The router has no route to pods, so an exempted packet gets no answer. The trace names the rule and not the router.
#[test]
fn a_rule_that_exempts_explains_a_missing_answer() {
    need!("ip", "nft", "iptables-nft", "iptables");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    site.node.host.shell("iptables-nft -t nat -I POSTROUTING -d 192.0.2.1 -j ACCEPT");
    // It comes after the rule, so its rules are in iptables.
    let _pod = site.add("net", "web");
    let told = notes(&site);
    let says = "rule ACCEPT of chain ip nat POSTROUTING, handle ";
    let may = "may exempt what pods of net send from masquerading";
    assert!(told.len() == 1 && told[0].starts_with(says) && told[0].contains(may), "{told:?}");
    let traced = site.trace(&["web", FAR, "--wait", "1"]);
    assert_eq!(traced.status, 6, "{}", traced.describe());
    let stops = stations(&traced, "stops");
    assert!(stops[0].starts_with(&format!("out host masquerade: {says}")), "{stops:?}");
    let answered = site.trace(&["web", "10.7.0.1"]);
    assert_eq!(answered.status, 0, "{}", answered.describe());
}

/// A rule that takes the packets of a published port is named with the port's network.
#[test]
fn a_rule_for_a_published_port_is_named() {
    need!("ip", "nft", "iptables-nft");
    let site = Site::new();
    let node = &site.node;
    let bridge = json!({
        "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.214.1.0/24"}]],
                 "routes": [{"dst": "0.0.0.0/0"}]},
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap]}));
    let pod = Pod::new();
    let ports =
        json!({"portMappings": [{"hostPort": 8001, "containerPort": 80, "protocol": "tcp"}]}).to_string();
    let args = ["add", "net", pod.path(), "--container-id", "web", "--cap-args", &ports];
    node.cnimble(plugin_dir(), &args).run().success();
    node.host
        .shell("iptables-nft -t nat -I PREROUTING -p tcp --dport 8002 -j DNAT --to-destination 10.7.0.1:80");
    assert_eq!(notes(&site), [] as [String; 0]);
    node.host.shell("iptables-nft -t nat -N DOCKER");
    node.host.shell("iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER");
    node.host.shell("iptables-nft -t nat -A DOCKER -p tcp --dport 8001 -j DNAT --to-destination 10.7.0.1:80");
    let told = notes(&site);
    let says = "(made by Docker, judging by the chain's name) may lead what comes for published ports of net to another address";
    assert!(told.len() == 1 && told[0].contains(says), "{told:?}");
}
