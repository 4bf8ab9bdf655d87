//! The output of plugins: results, versions, and the text without a command.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, Pod, Sample, configs, copy, need, need_recent_go, plugin_dir,
};

/// The output of ADD, with the variable parts filled in.
#[test]
fn results_have_the_reference_form_in_every_version() {
    need!("ip", "nft");
    for version in configs::VERSIONS {
        if *version > configs::newest() {
            continue; // the reference plugins of this machine are older
        }
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::dual(&host)).with("/cniVersion", json!(version));
        let att = Attachment::new("one", &pod).args("MAC=0a:58:0a:01:02:02;IgnoreUnknown=1");
        let outcome = net.add(&att).success();
        let text = outcome.text();
        let bridge = host.link("br0")["address"].as_str().unwrap().to_owned();
        let veth = host.links().into_iter().find(|name| name.starts_with("veth")).unwrap();
        let veth_mac = host.link(&veth)["address"].as_str().unwrap().to_owned();
        let expected = match *version {
            "0.1.0" | "0.2.0" => include_str!("forms/old.json"),
            "0.3.0" | "0.3.1" | "0.4.0" => include_str!("forms/middle.json"),
            "1.0.0" => include_str!("forms/new.json"),
            _ => include_str!("forms/newest.json"),
        }
        .trim_end()
        .replace("VERSION", version)
        .replace("BRIDGE", &bridge)
        .replace("VETHMAC", &veth_mac)
        .replace("VETH", &veth)
        .replace("SANDBOX", pod.path());
        assert_eq!(text, expected, "version {version}");
        let prev: Value = serde_json::from_str(&text).unwrap();
        let check = net.check(&att, &prev);
        if *version < "0.4.0" {
            assert_eq!(check.error().code, 1, "CHECK came with 0.4.0: {}", check.describe());
        } else {
            check.success();
        }
        net.deleted(&att, (*version >= "0.4.0").then_some(&prev));
        assert_eq!(host.links(), ["br0", "lo"], "version {version}");
    }
}

#[test]
fn version_is_one_compact_line() {
    need!();
    let host = Host::new();
    for Sample { plugin, oldest, .. } in Sample::all() {
        // podman passes "dummy" for all variables.
        let outcome = host
            .call(plugin)
            .command("VERSION")
            .attachment("dummy", "dummy", "dummy")
            .env("CNI_PATH", "dummy")
            .config(&json!({"cniVersion": "1.0.0"}))
            .run()
            .success();
        let versions: Vec<String> = configs::VERSIONS
            .iter()
            .filter(|version| **version >= oldest.as_str() && **version <= configs::newest())
            .map(|version| format!("\"{version}\""))
            .collect();
        let expected = format!(
            "{{\"cniVersion\":\"{}\",\"supportedVersions\":[{}]}}\n",
            configs::newest(),
            versions.join(",")
        );
        assert_eq!(outcome.text(), expected, "{plugin}");
        assert_eq!(outcome.stderr, "", "{plugin}");
    }
}

#[test]
fn without_a_command_it_says_what_it_is() {
    need!();
    let host = Host::new();
    for Sample { plugin, oldest, .. } in Sample::all() {
        let outcome = host.call(plugin).unset("CNI_PATH").run().success();
        assert!(outcome.stdout.is_empty(), "{}", outcome.describe());
        assert!(outcome.stderr.contains(plugin), "{}", outcome.describe());
        let newest = configs::newest();
        for version in configs::VERSIONS.iter().filter(|v| **v >= oldest.as_str() && **v <= newest) {
            assert!(outcome.stderr.contains(version), "{}", outcome.describe());
        }
    }
}

/// nerdctl runs `firewall` without a command. It takes the rest of the first line with this prefix as a semantic
/// version, and uses `isolated` from 1.7.1 on.
#[test]
fn nerdctl_finds_the_version_of_the_features_on_stderr() {
    // The pattern of github.com/Masterminds/semver/v3, which nerdctl uses.
    const SEMVER: &str = concat!(
        r"^v?(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?(?:\.(0|[1-9]\d*))?",
        r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?",
        r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$",
    );
    let semver = regex_lite::Regex::new(SEMVER).unwrap();
    let host = Host::new();
    for Sample { plugin, .. } in Sample::all() {
        let outcome = host.call(plugin).run().success();
        let prefix = format!("CNI {plugin} plugin ");
        let version = outcome.stderr.lines().find_map(|line| line.strip_prefix(&prefix));
        let version = version.unwrap_or_else(|| panic!("{}", outcome.describe()));
        let found = semver.captures(version).unwrap_or_else(|| panic!("{version}"));
        let number = |part: usize| found[part].parse::<u32>().unwrap();
        assert!((number(1), number(2), number(3)) >= (1, 7, 1), "{version}");
        assert!(outcome.stderr.contains("cnimble v"), "{}", outcome.describe());
    }
}

/// Installers link the listed plugins, and each folder must be in the list.
#[test]
fn the_binary_names_every_plugin() {
    let output = Command::new(plugin_dir().join("bridge")).arg("--list-plugins").output().unwrap();
    let folders: String = Sample::all().iter().map(|sample| format!("{}\n", sample.plugin)).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), folders);
}

#[test]
fn a_copy_of_the_file_works_and_another_name_is_an_error() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let dir = host.dir().join("copies");
    std::fs::create_dir(&dir).unwrap();
    for name in ["bridge", "host-local", "loopback"] {
        copy(&plugin_dir().join(name), &dir.join(name));
    }
    copy(&plugin_dir().join("bridge"), &dir.join("other"));
    // Different files: the delegate is executed instead of being called in the process.
    let net = Network::by(&dir, &host, configs::dual(&host)).with("/ipMasq", json!(true));
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24", "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert!(!host.data_dir().join("net64/10.1.2.2").exists());
    let error = host.call_in(&dir, "other").command("VERSION").run().error();
    assert!(error.all().contains("other"), "{error:?}");
}

#[test]
fn the_sandbox_is_the_netns_to_the_letter() {
    need!("ip");
    let host = Host::new();
    let pod = Pod::new();
    let dir = host.dir().join("run");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(pod.path(), dir.join("ns")).unwrap();
    let path = format!("{}//./ns", dir.display());
    let net = Network::new(&host, configs::v4(&host));
    let att = Attachment::new("one", &pod).netns(&path);
    let result = net.added(&att);
    assert_eq!(result["interfaces"][2]["sandbox"], path.as_str(), "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
    assert_eq!(pod.links(), ["lo"]);
}

/// The code and the text of errors in the configuration. Runtimes show and match them.
#[test]
fn versions_and_verbs_are_refused_in_the_words_of_the_go_plugins() {
    need!();
    refused_in_these_words(plugin_dir());
}

#[test]
fn the_go_plugins_refuse_in_these_words() {
    need_recent_go!(go);
    refused_in_these_words(go);
}

fn refused_in_these_words(plugins: &Path) {
    let host = Host::new();
    let pod = Pod::new();
    let none = "failed to convert major version part \"x\"";
    for (verb, stdin, code, words) in [
        ("ADD", "null", 7, "missing network name"),
        ("CHECK", " null\n", 7, "missing network name"),
        ("GC", "null", 7, "missing network name"),
        ("ADD", r#"{"cniVersion":"x","name":"n"}"#, 1, "incompatible CNI versions"),
        ("CHECK", r#"{"cniVersion":"x","name":"n"}"#, 6, none),
        ("GC", r#"{"cniVersion":"x","name":"n"}"#, 6, none),
        ("STATUS", r#"{"cniVersion":"x","name":"n"}"#, 6, none),
        ("CHECK", r#"{"cniVersion":"1.y","name":"n"}"#, 6, "failed to convert minor version part \"y\""),
        ("CHECK", r#"{"cniVersion":"0.3.1","name":"n"}"#, 1, "config version does not allow CHECK"),
        ("GC", r#"{"cniVersion":"1.0.0","name":"n"}"#, 1, "config version does not allow GC"),
        ("STATUS", r#"{"name":"n"}"#, 1, "config version does not allow STATUS"),
    ] {
        let call = host.call_in(plugins, "bridge").command(verb).attachment("c1", pod.path(), "eth0");
        let err = call.stdin(stdin).run().error();
        assert!(err.code == code && err.msg.starts_with(words), "{verb} {stdin}: {err:?}");
    }
}
