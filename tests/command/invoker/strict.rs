//! Tests `validate --strict` with the corpus, and its checks against plugins, other files and the host.

use std::path::{Path, PathBuf};

use cnimble_tests::{Outcome, Pod, need, plugin_dir};
use serde_json::{Value, json};

use super::{Node, command, scripts};

fn corpus(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/insight/lint/corpus").join(folder);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn strict(node: &Node, args: &[&str]) -> Outcome {
    node.cnimble(plugin_dir(), &[&["validate", "--strict"], args].concat()).run()
}

/// Returns the findings as `rule`, `message`.
fn findings(node: &Node, args: &[&str]) -> Vec<(String, String)> {
    let outcome = strict(node, &[args, &["--json"]].concat());
    let report: Value =
        serde_json::from_slice(&outcome.stdout).unwrap_or_else(|_| panic!("{}", outcome.describe()));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files = report["files"].as_array().unwrap().iter();
    files
        .flat_map(|file| file["findings"].as_array().unwrap())
        .map(|finding| (text(&finding["rule"]), text(&finding["message"])))
        .collect()
}

fn bridge(name: &str, bridge: &str, subnet: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [{
        "type": "bridge", "bridge": bridge, "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
    }]})
}

#[test]
fn the_command_finds_the_faults_of_broken_configurations_and_none_in_sound_ones() {
    let node = Node::new();
    // The plugins of in-folder.conflist.
    let beside = node.host.dir().join("folder");
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("10-loopback.conf"), "{\"type\": \"loopback\"}").unwrap();
    for (folder, status, least) in [("good", 0, 40), ("broken", 3, 60)] {
        let files = corpus(folder);
        assert!(files.len() >= least);
        for original in files {
            let file = node.host.dir().join(original.file_name().unwrap());
            std::fs::copy(&original, &file).unwrap();
            let mut cnimble = std::process::Command::new(command());
            let outcome = cnimble.args(["validate", "--strict", "--offline"]).arg(&file).output().unwrap();
            let text = String::from_utf8_lossy(&outcome.stdout);
            assert_eq!(outcome.status.code(), Some(status), "{}: {text}", file.display());
        }
    }
}

#[test]
fn strict_shows_file_line_and_column_in_three_forms() {
    need!();
    let node = Node::new();
    let file = corpus("broken").into_iter().find(|path| path.ends_with("typo-isGatway.conflist")).unwrap();
    let file = file.to_str().unwrap();
    let outcome = strict(&node, &[file]);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    let line =
        format!("{file}:6:7: warning: bridge has no key isGatway: did you mean isGateway? [unknown-key]\n");
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), line);
    let sarif: Value = serde_json::from_slice(&strict(&node, &[file, "--sarif"]).stdout).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "unknown-key");
    let region = &result["locations"][0]["physicalLocation"]["region"];
    assert_eq!(
        (&region["startLine"], &region["startColumn"], &region["endColumn"]),
        (&json!(6), &json!(7), &json!(17))
    );
    let rules = sarif["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["id"] == "unknown-key"));
    let json: Value = serde_json::from_slice(&strict(&node, &[file, "--json"]).stdout).unwrap();
    assert_eq!((&json["warnings"], &json["files"][0]["findings"][0]["line"]), (&json!(1), &json!(6)));
}

#[test]
fn strict_tells_of_subnets_of_other_networks_of_the_bridge_and_of_the_hosts_routes() {
    need!();
    let node = Node::new();
    let found = |network: &str| findings(&node, &[network]);
    node.network("10-one", &bridge("one", "br1", "10.31.0.0/24"));
    assert_eq!(found("one"), []);
    node.network("20-two", &bridge("two", "br2", "10.31.0.0/16"));
    let of_two = found("two");
    assert_eq!(of_two.len(), 1, "{of_two:?}");
    assert!(of_two[0].1.contains("10.31.0.0/16 overlaps 10.31.0.0/24 of network one"), "{of_two:?}");
    assert_eq!(found("one"), [], "the first of two is not told of");
    // Another range of the same subnet on the same bridge shares the subnet.
    let mut shared = bridge("shared", "br1", "10.31.0.0/24");
    node.network("10-one", &{
        let mut one = bridge("one", "br1", "10.31.0.0/24");
        one["plugins"][0]["ipam"]["ranges"][0][0]["rangeEnd"] = "10.31.0.99".into();
        one
    });
    shared["plugins"][0]["ipam"]["ranges"][0][0]["rangeStart"] = "10.31.0.100".into();
    node.network("15-shared", &shared);
    assert_eq!(found("shared"), []);

    // A bridge has one IPv4 gateway.
    node.network("16-other", &bridge("other", "br1", "10.32.0.0/24"));
    let of_other = found("other");
    assert_eq!(of_other.len(), 2, "{of_other:?}");
    let refused = |name: &str| format!("the bridge has 10.31.0.1/24 of network {name}");
    assert!(of_other.iter().zip(["one", "shared"]).all(|(found, name)| found.1.contains(&refused(name))));
    let mut forced = bridge("other", "br1", "10.32.0.0/24");
    forced["plugins"][0]["forceAddress"] = true.into();
    node.network("16-other", &forced);
    assert_eq!(found("other"), []);

    node.network("30-three", &bridge("three", "br3", "10.33.0.0/24"));
    assert_eq!(found("three"), []);
    node.host.ip("link add up0 type bridge");
    node.host.ip("link set up0 up");
    node.host.ip("address add 10.33.0.9/23 dev up0");
    let of_three = found("three");
    assert!(
        of_three.len() == 1 && of_three[0].1.contains("the host's route to 10.33.0.0/23 by up0"),
        "{of_three:?}"
    );
    // A default route and a wide route through a router reserve no network.
    node.network("40-four", &bridge("four", "br4", "10.44.0.0/24"));
    node.host.ip("route add default via 10.33.0.1");
    node.host.ip("route add 10.40.0.0/13 via 10.33.0.1");
    assert_eq!(found("four"), []);
    // The network's own bridge: as ADD leaves it, then with a foreign address.
    node.host.ip("link add br4 type bridge");
    node.host.ip("link set br4 up");
    node.host.ip("address add 10.44.0.1/24 dev br4");
    assert_eq!(found("four"), []);
    node.host.ip("address add 10.44.0.254/24 dev br4");
    let of_four = found("four");
    assert!(of_four.len() == 1 && of_four[0].1.contains("br4 has the address 10.44.0.254/24"), "{of_four:?}");
}

/// STATUS has no ranges. From `capabilities` a plugin knows that they come with each attachment.
#[test]
fn strict_accepts_a_network_whose_ranges_come_with_each_attachment() {
    need!();
    let node = Node::new();
    let mut network = bridge("net", "br1", "10.31.0.0/24");
    network["plugins"][0]["ipam"] = json!({"type": "host-local"});
    network["plugins"][0]["capabilities"] = json!({"ipRanges": true});
    node.network("net", &network);
    assert_eq!(findings(&node, &["net"]), []);
    // The check still finds its other faults.
    network["plugins"][0]["ipam"]["dataDir"] = "a\u{0}b".into();
    node.network("net", &network);
    let found = findings(&node, &["net"]);
    assert!(found.iter().any(|(_, message)| message.contains("NUL")), "{found:?}");
}

#[test]
fn strict_asks_the_plugins_for_versions_and_what_they_refuse() {
    need!();
    let node = Node::new();
    let mut network = bridge("net", "br1", "10.31.0.0/24");
    network["cniVersion"] = "1.1.0".into();
    network["plugins"].as_array_mut().unwrap().push(json!({
        "type": "portmap", "capabilities": {"portMappings": true}, "conditionsV4": ["ip", "daddr", "192.0.2.1;"],
    }));
    node.network("net", &network);
    let found = findings(&node, &["net"]);
    assert!(found.len() == 1 && found[0].1.starts_with("portmap refuses it: conditionsV4: "), "{found:?}");
    // The command contains ADD's reader of the configuration.
    assert_eq!(findings(&node, &["net", "--offline"]), found);
    // A plugin of another version, and a missing plugin.
    let old = scripts(
        node.host.dir(),
        &[(
            "bridge",
            "cat >/dev/null; echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\"]}'",
        )],
    );
    let outcome = node.cnimble(&old, &["validate", "--strict", "net"]).run();
    let text = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(text.contains("bridge speaks 0.4.0, 1.0.0, and not 1.1.0"), "{text}");
    assert!(text.contains("no plugin \"portmap\""), "{text}");
    node.network("net", &bridge("net", "br1", "10.31.0.0/24"));
    let outcome = node.cnimble(Path::new("/nowhere"), &["validate", "--strict", "net"]).run();
    assert_eq!(outcome.status, 4, "what is missing is the plugin: {}", outcome.describe());
}

#[test]
fn strict_looks_at_all_networks_at_stdin_and_at_what_cannot_be_loaded() {
    need!();
    let node = Node::new();
    assert_eq!(strict(&node, &[]).status, 0, "no network is no fault");
    node.network("10-good", &bridge("good", "br1", "10.31.0.0/24"));
    std::fs::write(node.conf().join("20-cut.conflist"), "{\"name\": \"cut\",").unwrap();
    std::fs::write(
        node.conf().join("30-bad.conflist"),
        "{\"cniVersion\": \"1.0.0\", \"name\": \"bad\", \"plugins\": []}",
    )
    .unwrap();
    let found = findings(&node, &[]);
    let rules: Vec<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
    assert_eq!(rules, ["syntax", "missing-key"], "{found:?}");
    // The name selects the file, although no runtime would load it.
    assert_eq!(strict(&node, &["bad"]).status, 3);
    let outcome = strict(&node, &["nothing"]);
    assert_eq!(outcome.status, 3);
    assert!(outcome.stderr.contains("nothing"), "{}", outcome.describe());
    // Without --strict the exit statuses are those of validate.
    assert_eq!(node.cnimble(plugin_dir(), &["validate", "good"]).run().status, 0);
    assert_eq!(node.cnimble(plugin_dir(), &["validate"]).run().status, 2);
}

#[test]
fn completions_manual_and_explanations_are_there() {
    need!();
    let node = Node::new();
    let run = |args: &[&str]| node.cnimble(plugin_dir(), args).run();
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]).success().text();
        // The shell script calls the command.
        assert!(text.contains("CNIMBLE_COMPLETE") && text.contains("cnimble"), "{shell}: {text}");
    }
    assert!(run(&["man"]).success().text().contains(".TH cnimble 1"));
    let dir = node.host.dir().join("man1");
    run(&["man", dir.to_str().unwrap()]).success();
    assert!(std::fs::read_to_string(dir.join("cnimble-validate.1")).unwrap().contains("strict"));
    assert!(run(&["explain", "101"]).success().text().contains("no address can be given"));
    assert!(run(&["explain", "isGateway"]).success().text().contains("isGateway of bridge"));
    assert!(run(&["explain", "chain-order"]).success().text().contains("order"));
    let outcome = run(&["explain", "isGatway"]);
    assert!(
        outcome.status == 2 && outcome.stderr.contains("did you mean isGateway?"),
        "{}",
        outcome.describe()
    );
    let schema: Value = serde_json::from_slice(&run(&["schema", "bridge"]).success().stdout).unwrap();
    assert_eq!(schema["properties"]["isGateway"]["type"], "boolean");
}

#[test]
fn a_directory_without_networks_is_a_warning() {
    let node = Node::new();
    let outcome = strict(&node, &["--offline"]).success();
    assert!(outcome.stderr.contains("no file of a network is in "), "{}", outcome.describe());
}

/// A configuration, what strict says of it, and whether ADD takes it.
struct Case {
    name: &'static str,
    text: &'static str,
    /// The level and the beginning of the message, or `None`.
    said: Option<(&'static str, &'static str)>,
    /// The same with `--offline`, if that differs.
    offline: Option<(&'static str, &'static str)>,
    works: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "no-plugins.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n11"}"#,
        said: Some(("error", "network \"n11\" has no plugins: ")),
        offline: None,
        works: false,
    },
    Case {
        name: "static-no-addresses.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"iot","plugins":[{"type":"ptp",
            "ipam":{"type":"static","routes":[{"dst":"0.0.0.0/0","gw":"192.0.2.1"}]}}]}"#,
        said: Some(("note", "static has no addresses: ADD works only with IP in CNI_ARGS")),
        offline: None,
        works: false,
    },
    Case {
        name: "static-gateway-outside-on-bridge.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n5b","plugins":[{"type":"bridge","bridge":"rf5","ipam":{"type":"static",
            "addresses":[{"address":"10.66.1.5/24","gateway":"10.67.1.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}]}"#,
        said: Some(("warning", "gateway: 10.67.1.1 is in no network of the pod: bridge can't route to it")),
        offline: None,
        works: false,
    },
    Case {
        name: "static-gateway-outside-on-ptp.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n5p","plugins":[{"type":"ptp","ipam":{"type":"static",
            "addresses":[{"address":"10.66.1.5/24","gateway":"10.67.1.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}]}"#,
        said: None,
        offline: None,
        works: true,
    },
    Case {
        name: "static-single-address.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n5s","plugins":[{"type":"bridge","bridge":"rf5","ipam":{"type":"static",
            "addresses":[{"address":"10.66.1.5/32","gateway":"10.67.1.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}]}"#,
        said: None,
        offline: None,
        works: true,
    },
    Case {
        name: "static-gw-outside.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n3","plugins":[{"type":"bridge","bridge":"rf3","ipam":{"type":"static",
            "addresses":[{"address":"14.0.0.2/24","gateway":"14.0.0.1"}],"routes":[{"dst":"172.2.0.0/16","gw":"172.2.0.1"}]}}]}"#,
        said: Some(("error", "ipam.routes[0].gw: 172.2.0.1 is in no network of the pod")),
        offline: None,
        works: false,
    },
    Case {
        name: "hl-gw-outside.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n4","plugins":[{"type":"ptp","ipam":{"type":"host-local",
            "subnet":"10.66.1.0/24","routes":[{"dst":"172.2.0.0/16","gw":"172.2.0.1"}]}}]}"#,
        said: Some(("error", "ipam.routes[0].gw: 172.2.0.1 is in no network of the pod")),
        offline: None,
        works: false,
    },
    Case {
        name: "v02-no-ipam.conf",
        text: r#"{"cniVersion":"0.2.0","name":"n6","type":"bridge","bridge":"rf6"}"#,
        said: Some(("error", "bridge has no ipam, and a result of CNI 0.2.0 needs an address")),
        offline: None,
        works: false,
    },
    Case {
        name: "args-ip-outside.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n9","plugins":[{"type":"bridge","bridge":"rf9",
            "args":{"cni":{"ips":["11.11.11.11"]}},"ipam":{"type":"host-local","subnet":"10.66.5.0/24"}}]}"#,
        said: Some(("error", "11.11.11.11 is in no range of ipam")),
        offline: None,
        works: false,
    },
    Case {
        name: "resolv-missing.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n12","plugins":[{"type":"bridge","bridge":"rf12",
            "ipam":{"type":"host-local","subnet":"10.66.7.0/24","resolvConf":"/nonexistent/resolv.conf"}}]}"#,
        said: Some(("error", "ADD fails: ipam.resolvConf: reading /nonexistent/resolv.conf")),
        offline: Some(("note", "ipam.resolvConf: ADD reads /nonexistent/resolv.conf on the node")),
        works: false,
    },
    Case {
        name: "resolv-null.conflist",
        text: r#"{"cniVersion":"1.1.0","name":"n13","plugins":[{"type":"bridge","bridge":"rf13",
            "ipam":{"type":"host-local","subnet":"10.66.8.0/24","resolvConf":"/dev/null"}}]}"#,
        said: None,
        offline: Some(("note", "ipam.resolvConf: ADD reads /dev/null on the node")),
        works: true,
    },
    Case {
        name: "firewall-031.conflist",
        text: r#"{"cniVersion":"0.3.1","name":"n10","plugins":[{"type":"bridge","bridge":"rf10",
            "ipam":{"type":"host-local","subnet":"10.66.6.0/24"}},{"type":"firewall"}]}"#,
        said: Some(("error", "firewall speaks 0.4.0, 1.0.0, 1.1.0, and not 0.3.1")),
        offline: None,
        works: false,
    },
    Case {
        name: "comment.conflist",
        text: "{\n  // the pods' network\n  \"cniVersion\": \"1.0.0\", \"name\": \"c\", \"plugins\": [{\"type\": \"loopback\"}]\n}",
        said: Some(("error", "it is not valid JSON: key must be a string (JSON has no comments")),
        offline: None,
        works: false,
    },
    Case {
        name: "python-true.conflist",
        text: r#"{"cniVersion":"1.0.0","name":"p","plugins":[{"type":"bridge","isGateway":True}]}"#,
        said: Some(("error", "it is not valid JSON: expected value (JSON has the words true and false")),
        offline: None,
        works: false,
    },
    Case {
        name: "bom.conflist",
        text: "\u{feff}{\"cniVersion\":\"1.0.0\",\"name\":\"bom\",\"plugins\":[{\"type\":\"bridge\"}]}",
        said: Some(("error", "it is not valid JSON: expected value (JSON has no byte order mark")),
        offline: None,
        works: false,
    },
    Case {
        name: "dhcp-socket.conflist",
        text: r#"{"cniVersion":"1.0.0","name":"d","plugins":[{"type":"bridge","bridge":"rfd",
            "ipam":{"type":"dhcp","daemonSocketPath":"run/dhcp.sock"}}]}"#,
        said: Some(("error", "dhcp refuses it: ipam.daemonSocketPath: invalid path: run/dhcp.sock")),
        offline: None,
        works: false,
    },
    Case {
        name: "cluster-local-without-a-store.conflist",
        text: r#"{"cniVersion":"1.0.0","name":"cl","plugins":[{"type":"ptp",
            "ipam":{"type":"cluster-local","ranges":[[{"subnet":"10.66.0.0/16"}]]}}]}"#,
        said: Some(("error", "cluster-local refuses it: ipam.etcd.endpoints: give the URL")),
        offline: None,
        works: false,
    },
    Case {
        name: "sbr-gateways.conflist",
        text: r#"{"cniVersion":"1.0.0","name":"s","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.66.9.0/24"}},
            {"type":"sbr","gateways":["10.66.9.1","10.66.9.2"]}]}"#,
        said: Some(("error", "gateways: 10.66.9.2 is the second of its family")),
        offline: None,
        works: false,
    },
];

/// What strict says, and what ADD does, agree.
#[test]
fn strict_says_what_add_refuses() {
    need!("ip");
    let node = Node::new();
    for Case { name, text, said, offline, works } in CASES {
        let file = node.host.dir().join(name);
        // Leases of the test's own.
        let data = format!("\"host-local\",\"dataDir\":{},", json!(node.host.data_dir()));
        std::fs::write(&file, text.replace("\"host-local\",", &data)).unwrap();
        let path = file.to_str().unwrap();
        for (flags, said) in
            [(&[][..], said), (&["--offline"], if offline.is_some() { offline } else { said })]
        {
            let outcome = strict(&node, &[&[path, "--json"], flags].concat());
            let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
            let found = report["files"][0]["findings"].as_array().unwrap();
            let texts: Vec<(&str, &str)> = found
                .iter()
                .map(|one| (one["level"].as_str().unwrap(), one["message"].as_str().unwrap()))
                .collect();
            match (said, texts.as_slice()) {
                (None, []) => {}
                (Some((level, message)), [(found, text)]) if found == level && text.starts_with(message) => {}
                _ => panic!("{name} {flags:?}: expected {said:?}, found {texts:?}"),
            }
            let is_bad = said.is_some_and(|(level, _)| level != "note");
            assert_eq!(outcome.status, if is_bad { 3 } else { 0 }, "{name}: {}", outcome.describe());
        }
        let pod = Pod::new();
        let outcome = node.cnimble(plugin_dir(), &["add", path, pod.path()]).run();
        assert_eq!(outcome.status == 0, *works, "{name}: {}", outcome.describe());
        let is_told = |lacking: &str| {
            !said.is_some_and(|(_, text)| text.contains(lacking)) || outcome.stderr.contains(lacking)
        };
        assert!(
            is_told("JSON has no comments") && is_told("JSON has no byte order mark"),
            "{}",
            outcome.stderr
        );
    }
}

const MANIFEST: &str = r#"apiVersion: "k8s.cni.cncf.io/v1"
kind: NetworkAttachmentDefinition
metadata:
  name: macvlan-conf
spec:
  config: '{
      "cniVersion": "0.3.1",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "host-local",
        "subnet": "192.0.2.0/24",
        "routes": [
          { "dst": "0.0.0.0/0" }
        ],
        "gateway": "192.0.2.1"
      }
    }'
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: kube-flannel-cfg
data:
  cni-conf.json: |
    {
      "name": "cbr0",
      "cniVersion": "0.3.1",
      "plugins": [
        { "type": "bridge", "isGatway": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } }
      ]
    }
  net-conf.json: |
    { "Network": "10.244.0.0/16" }
"#;

#[test]
fn strict_reads_manifests_and_finds_lines_in_the_yaml() {
    need!();
    let node = Node::new();
    let file = node.host.dir().join("nad.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, MANIFEST).unwrap();
    for flags in [&[][..], &["--offline"]] {
        let outcome = strict(&node, &[&[path], flags].concat());
        let line = format!(
            "{path}:31:29: warning: bridge has no key isGatway: did you mean isGateway? [unknown-key]\n"
        );
        assert_eq!((outcome.status, outcome.text()), (3, line), "{}", outcome.stderr);
    }
    // A name in this directory.
    let outcome =
        node.cnimble(plugin_dir(), &["validate", "--strict", "nad.yaml"]).current_dir(node.host.dir()).run();
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    let valid = MANIFEST.split("---").next().unwrap();
    std::fs::write(&file, valid).unwrap();
    let outcome = strict(&node, &[path]).success();
    assert_eq!(outcome.text(), "");
    // A cluster's nodes have plugins that this machine lacks.
    let outcome = node.cnimble(Path::new("/nowhere"), &["validate", "--strict", path]).run();
    assert_eq!(outcome.status, 4, "{}", outcome.describe());
    assert!(outcome.text().contains(": warning: no plugin \"macvlan\""), "{}", outcome.describe());
    std::fs::write(&file, valid.replace("192.0.2.1\"", "${GATEWAY}\"")).unwrap();
    let outcome = strict(&node, &[path]).success();
    assert!(
        outcome.text().contains("nad.yaml:6:11: note: it is a template with ${GATEWAY}"),
        "{}",
        outcome.text()
    );
    std::fs::write(&file, "kind: Pod\n").unwrap();
    let outcome = strict(&node, &[path]).success();
    assert!(outcome.stderr.contains("has no NetworkAttachmentDefinition"), "{}", outcome.describe());
}

#[test]
fn the_name_of_a_file_here_is_told_to_be_written_as_a_path() {
    need!();
    let node = Node::new();
    // Two files of one network.
    node.network("10-podman", &bridge("podman", "br1", "10.31.0.0/24"));
    node.network("20-podman", &bridge("podman", "br1", "10.31.0.0/24"));
    let file = node.host.dir().join("demo.conflist");
    std::fs::write(&file, bridge("demo", "br2", "10.32.0.0/24").to_string()).unwrap();
    let pod = Pod::new();
    for args in [&["validate", "--strict", "demo.conflist"][..], &["add", "demo.conflist", pod.path()]] {
        let outcome = node.cnimble(plugin_dir(), args).current_dir(node.host.dir()).run();
        assert_eq!(outcome.status, 3, "{}", outcome.describe());
        assert!(
            outcome.stderr.contains("write ./demo.conflist for the file in this directory"),
            "{}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.lines().any(|line| line.ends_with("there is only podman")),
            "{}",
            outcome.stderr
        );
    }
    let outcome = strict(&node, &["no-such-file.conflist"]);
    let list =
        format!("`cnimble networks --conf-dir {}` lists them", node.host.dir().join("net.d").display());
    assert!(outcome.stderr.contains(&list), "{}", outcome.stderr);
}

#[test]
fn explanations_of_plugins_variables_capabilities_and_routes_are_there() {
    need!();
    let node = Node::new();
    for (word, text) in [
        ("static", "static, a plugin: "),
        ("CNI_ARGS", "a variable of every plugin"),
        ("capabilities.portMappings", "runtimeConfig.portMappings"),
        ("bridge.ipam.routes", "ipam.routes of host-local"),
        ("gw", "ipam.routes[].gw of any network"),
        ("104", "static without ipam.addresses"),
    ] {
        let outcome = node.cnimble(plugin_dir(), &["explain", word]).run().success();
        assert!(outcome.text().contains(text), "{word}: {}", outcome.text());
    }
}
