//! Tests `validate --strict` with the corpus, and its checks against plugins, other files and the host.

use std::path::{Path, PathBuf};

use cnimble_tests::{Outcome, need, plugin_dir};
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
    for (folder, status, least) in [("good", 0, 40), ("broken", 3, 60)] {
        let files = corpus(folder);
        assert!(files.len() >= least);
        for file in files {
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
    assert_eq!(findings(&node, &["net", "--offline"]), []);
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
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
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
