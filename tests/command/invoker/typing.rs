//! Tests messages for the command line: help, mistakes, and options without effect.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Pod, command, need, run_limited};

use super::{Node, RESULT, scripts};

#[test]
fn help_is_a_verb() {
    for (args, words) in [
        (&["help"][..], "Usage: cnimble"),
        (&["help", "add"], "Usage: cnimble add"),
        (&["help", "pod", "down"], "Usage: cnimble pod down"),
        (&["--json", "--help"], "Usage: cnimble"),
    ] {
        let output = run_limited(Command::new(command()).args(args), b"", LIMIT);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(words), "{args:?}: {text}");
    }
}

#[test]
fn an_interface_before_the_verb_is_the_verbs() {
    need!();
    let node = Node::new();
    let dir = node.host.dir();
    let line = format!("cat >/dev/null; echo $CNI_IFNAME >>{}/names; echo '{RESULT}'", dir.display());
    let bin = scripts(dir, &[("it", &line)]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    for args in [
        &["-i", "net1", "add", "net", pod.path()][..],
        &["add", "-i", "net2", "net", pod.path()],
        &["-i", "net1", "add", "net", pod.path(), "-i", "net3"],
        &["add", "net", pod.path()],
    ] {
        node.cnimble(&bin, args).env("CNI_IFNAME", "net4").run().success();
    }
    let names = fs::read_to_string(dir.join("names")).unwrap();
    assert_eq!(names.lines().collect::<Vec<_>>(), ["net1", "net2", "net3", "net4"]);
    let outcome = node.cnimble(&bin, &["-i", "net1", "networks"]).run();
    assert_eq!(outcome.status, 2, "{}", outcome.describe());
}

#[test]
fn empty_variables_are_none() {
    need!();
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; env; echo '{RESULT}'"))]);
    let pod = Pod::new();
    let mut run = node.cnimble(&bin, &["add", "there-is-no-such-network", pod.path()]);
    for name in ["NETCONFPATH", "CNI_PATH", "CNI_IFNAME", "CNI_ARGS", "CAP_ARGS", "CNIMBLE_LOCK_DIR"] {
        run = run.env(name, "");
    }
    let outcome = run.run();
    assert_eq!(outcome.status, 3, "{}", outcome.describe());
    assert!(outcome.stderr.contains("/etc/cni/net.d"), "{}", outcome.describe());
}

#[test]
fn mistakes_are_json_where_that_is_asked_for() {
    need!();
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[]);
    for args in [
        &["--json", "frob"][..],
        &["add", "--json"],
        &["gc", "net", "--all", "--gone", "--json"],
        &["pod", "up", "--json"],
        &["run", "--json", "--parallel", "0"],
        &["run", "--json"],
        &["-i", "x", "tree", "--json"],
    ] {
        let outcome = node.cnimble(&bin, args).run();
        assert_eq!(outcome.status, 2, "{}", outcome.describe());
        let value: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
        assert_eq!((&value["code"], &value["exitStatus"]), (&json!(4), &json!(2)), "{}", outcome.describe());
        assert!(!value["details"].as_str().unwrap().is_empty(), "{value}");
        assert_eq!(outcome.stderr, "", "{}", outcome.describe());
    }
    // Options after `--` belong to the other command.
    let outcome = node.cnimble(&bin, &["pod", "exec", "--", "x", "--json"]).run();
    assert!(outcome.status == 2 && outcome.stderr.starts_with("error: "), "{}", outcome.describe());
}

#[test]
fn what_would_have_no_effect_is_a_warning() {
    need!();
    let node = Node::new();
    let version = r#"case $CNI_COMMAND in VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'; exit ;; esac"#;
    let line = format!("cat >/dev/null; {version}; echo '{RESULT}'");
    let bin = scripts(node.host.dir(), &[("it", &line), ("portmap", &line)]);
    let network = |name: &str, portmap: Value| {
        let plugins = json!([{"type": "it", "capabilities": {"mac": true}}, portmap]);
        node.network(name, &json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins}));
    };
    network("deaf", json!({"type": "portmap"}));
    network("off", json!({"type": "portmap", "capabilities": {"portMappings": false}}));
    network("good", json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    let pod = Pod::new();
    let stderr = |args: &[&str]| node.cnimble(&bin, args).run().success().stderr;
    let deaf = "plugin portmap of network";
    for name in ["deaf", "off"] {
        for verb in [&["add", name, pod.path()][..], &["validate", name]] {
            let text = stderr(verb);
            assert!(text.contains(&format!("warning: {deaf} {name} publishes no ports")), "{text}");
        }
    }
    let arguments = r#"{"portMappings":[],"mac":"02:00:00:00:00:01","bandwith":{}}"#;
    let text = stderr(&["add", "good", pod.path(), "--cap-args", arguments]);
    assert!(text.contains("no plugin of network good takes the capability argument bandwith"), "{text}");
    assert!(
        !text.contains(deaf) && !text.contains("argument mac") && !text.contains("portMappings"),
        "{text}"
    );
    assert_eq!(stderr(&["del", "good", pod.path()]), "");
}

#[test]
fn who_isnt_root_is_told_so_where_that_is_the_reason() {
    need!("setpriv");
    let node = Node::new();
    let dir = tempfile::tempdir().unwrap();
    let open = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    open(0o755);
    // A program that every user may run, and directories that only root may write.
    let program = dir.path().join("cnimble");
    fs::copy(command(), &program).unwrap();
    for name in ["net.d", "state", "bin"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}).to_string();
    fs::write(dir.path().join("net.d/net.conflist"), config).unwrap();
    let pod = Pod::new();
    let base = dir.path().display();
    let state = format!("--state-dir={base}/state/x --run-dir={base}/state/y");
    for line in [
        format!("add net {} --lock-dir {base}/state/locks", pod.path()),
        format!("gc net --all --lock-dir {base}/state/locks"),
        format!("run --manifests {base}/net.d {state}"),
        format!("pod ls {state}"),
        "doctor".to_owned(),
        "guard".to_owned(),
    ] {
        let mut run = node.host.command("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
        run.args(line.split(' ')).arg("--conf-dir").arg(dir.path().join("net.d"));
        run.env("CNI_PATH", dir.path().join("bin"));
        fs::write(dir.path().join("bin/it"), "#!/bin/sh\necho '{}'\n").unwrap();
        fs::set_permissions(dir.path().join("bin/it"), fs::Permissions::from_mode(0o755)).unwrap();
        let output = run_limited(&mut run, b"", LIMIT);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("run it as root"), "{line}: {text}");
    }
    // If root wouldn't help, the message doesn't mention it.
    let mut run = node.host.command("setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
    let output = run_limited(run.args(["add", "none", pod.path()]), b"", LIMIT);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !text.contains("root"), "{text}");
}
