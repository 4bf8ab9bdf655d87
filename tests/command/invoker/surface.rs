//! Tests arguments, variables, exit statuses and output.

use std::fs;

use serde_json::{Value, json};

use cnimble_tests::{Pod, go_plugins, need, plugin_dir, skip};

use super::{Node, RESULT, Run, command, scripts};

#[test]
fn cnitools_variables_and_container_ids_work() {
    need!();
    let node = Node::new();
    let dir = node.host.dir();
    let bin =
        scripts(dir, &[("it", &format!("cat >{0}/stdin; env >{0}/env; echo '{RESULT}'", dir.display()))]);
    node.network(
        "net",
        &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "it", "capabilities": {"portMappings": true}}]}),
    );
    let pod = Pod::new();
    let link = dir.join("test0");
    std::os::unix::fs::symlink(pod.path(), &link).unwrap();
    let result = node
        .cnimble(&bin, &["add", "net", link.to_str().unwrap()])
        .env("CAP_ARGS", r#"{"portMappings":[{"hostPort":80}],"unasked":1}"#)
        .env("CNI_ARGS", "IgnoreUnknown=1;A=b")
        .env("CNI_IFNAME", "net1")
        .env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .run()
        .result();
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    let stdin: Value = serde_json::from_slice(&fs::read(dir.join("stdin")).unwrap()).unwrap();
    assert_eq!(stdin["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
    let env = fs::read_to_string(dir.join("env")).unwrap();
    for line in [
        "CNI_COMMAND=ADD",
        "CNI_ARGS=IgnoreUnknown=1;A=b",
        "CNI_IFNAME=net1",
        &format!("CNI_NETNS={}", link.display()),
        "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ] {
        assert!(env.lines().any(|other| other == line), "{line}:\n{env}");
    }
    // The ID is derived from the path as given, not from its target. Flags take precedence.
    let id = env.lines().find_map(|line| line.strip_prefix("CNI_CONTAINERID=")).unwrap();
    assert!(id.starts_with("cnitool-") && id.len() == 28, "{id}");
    assert_eq!(node.entries(), [format!("net-{id}-net1")]);
    node.cnimble(&bin, &["add", "net", pod.path(), "--container-id", "mine", "-i", "net2"])
        .env("CNI_IFNAME", "net1")
        .run()
        .success();
    assert!(node.entries().contains(&"net-mine-net2".to_owned()));
}

#[test]
fn ordinary_programs_are_not_run_to_see_whether_they_are_plugins() {
    need!();
    let node = Node::new();
    let mark = node.host.dir().join("mark");
    let bin = scripts(node.host.dir(), &[("program", &format!("touch {}", mark.display()))]);
    let outcome = node.cnimble(&bin, &["plugins"]).env("PATH", bin.to_str().unwrap()).run();
    assert_eq!(outcome.status, 4, "{}", outcome.describe());
    assert!(outcome.stderr.contains("ordinary programs"), "{}", outcome.stderr);
    assert!(!mark.exists());
}

#[test]
fn exit_statuses_and_json_errors() {
    need!();
    let node = Node::new();
    let error =
        r#"cat >/dev/null; echo '{"cniVersion":"1.0.0","code":50,"msg":"full","details":"very"}'; exit 1"#;
    let bin = scripts(
        node.host.dir(),
        &[("refuses", error), ("garbage", "echo oops; exit 1"), ("slow", "sleep 1000")],
    );
    for plugin in ["refuses", "garbage", "slow", "missing"] {
        node.network(plugin, &json!({"cniVersion": "1.1.0", "name": plugin, "plugins": [{"type": plugin}]}));
    }
    let pod = Pod::new();
    let table: [(&[&str], i32, u32, &str); 13] = [
        (&["add", "refuses", pod.path()], 1, 50, "very"),
        (&["status", "refuses"], 1, 50, "very"),
        (&["add", "garbage", pod.path()], 4, 104, "oops"),
        (&["add", "missing", pod.path()], 4, 104, "no plugin"),
        (&["add", "slow", pod.path(), "--timeout", "1"], 4, 11, "no answer within 1s"),
        (&["add", "none", pod.path()], 3, 7, "there is only garbage, missing, refuses, slow"),
        (&["add", "/nonexistent/x.conflist", pod.path()], 3, 7, "can't be read"),
        (&["add", "refuses", "/nonexistent/ns"], 2, 4, "there is no network namespace /nonexistent/ns"),
        (&["add", "refuses"], 2, 4, "namespace"),
        (&["check", "refuses", "--container-id", "c"], 2, 4, "the cache doesn't know it"),
        (&["add", "refuses", pod.path(), "--args", "x"], 2, 4, "KEY=VALUE"),
        (&["add", "refuses", pod.path(), "--cap-args", "[]"], 2, 4, "no JSON object"),
        (&["check", "refuses", pod.path()], 5, 103, "no result of an ADD"),
    ];
    for (args, status, code, why) in table {
        let outcome = node.cnimble(&bin, args).json().run();
        assert_eq!(outcome.status, status, "{}", outcome.describe());
        let value: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert_eq!(value["code"], code, "{}", outcome.describe());
        assert_eq!(value["exitStatus"], status);
        assert!(outcome.text().contains(why), "{why}: {}", outcome.describe());
        // Without --json the same text is on stderr, and stdout is empty.
        let outcome = node.cnimble(&bin, args).run();
        assert_eq!((outcome.status, outcome.text().as_str()), (status, ""));
        assert!(outcome.stderr.starts_with("cnimble: "), "{}", outcome.describe());
        assert!(outcome.stderr.contains(why.trim_end_matches('x')), "{why}: {}", outcome.describe());
    }
    for args in
        [&["add"][..], &["frob"], &["gc", "net", "--all", "--gone"], &["add", "a", "b", "--timeout", "x"]]
    {
        assert_eq!(node.cnimble(&bin, args).run().status, 2, "{args:?}");
    }
}

#[test]
fn a_hint_names_the_attachment() {
    need!();
    let node = Node::new();
    let refuse = r#"cat >/dev/null; echo '{"cniVersion":"1.0.0","code":103,"msg":"it differs"}'; exit 1"#;
    // A plugin of another set may mean something else by this code.
    let bin = scripts(node.host.dir(), &[("tuning", refuse)]);
    node.network("demo", &json!({"cniVersion": "1.0.0", "name": "demo", "plugins": [{"type": "tuning"}]}));
    let pod = Pod::new();
    for more in ["--container-id web", "--container-id web -i net1"] {
        let words: Vec<&str> = more.split(' ').collect();
        let outcome = node.cnimble(&bin, &[&["add", "demo", pod.path()], words.as_slice()].concat()).run();
        let cache = node.cache();
        let wanted = format!(
            "`cnimble del demo {} {more} --cache-dir {}`, and add it again",
            pod.path(),
            cache.display()
        );
        assert!(outcome.stderr.contains(&wanted), "{}", outcome.describe());
    }
}

#[test]
fn plugins_and_networks_are_listed() {
    need!();
    let node = Node::new();
    let bin = scripts(
        node.host.dir(),
        &[
            ("good", r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'"#),
            ("odd", "echo hello"),
        ],
    );
    node.bridge("b", "1.0.0");
    fs::write(node.conf().join("a.conflist"), "{").unwrap();
    let listed = node.cnimble(&bin, &["plugins"]).run().success().text();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "PLUGIN  CNI VERSIONS       PATH");
    assert_eq!(lines[1], format!("good    0.3.1 to 1.0.0     {}/good", bin.display()));
    assert_eq!(lines[2], format!("odd     not a CNI plugin?  {}/odd", bin.display()));
    let listed: Value =
        serde_json::from_slice(&node.cnimble(&bin, &["plugins", "--json"]).run().success().stdout).unwrap();
    assert_eq!(listed[0]["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0"]));
    assert!(listed[1]["error"].as_str().unwrap().contains("not JSON"), "{listed}");
    let outcome = node.cnimble(&bin, &["networks"]).run();
    assert_eq!(outcome.status, 3);
    let file = node.conf().join("b.conflist");
    assert_eq!(
        outcome.text(),
        format!("NETWORK  CNI    PLUGINS  FILE\nb        1.0.0  bridge   {}\n", file.display())
    );
    assert!(outcome.stderr.contains("a.conflist:1:1: EOF"), "{}", outcome.stderr);
    let outcome = node.cnimble(&bin, &["networks", "--json"]).run();
    let listed: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(listed["networks"][0]["plugins"], json!(["bridge"]));
    assert_eq!(listed["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn validate_looks_at_the_plugins() {
    need!();
    let node = Node::new();
    node.bridge("new", "1.1.0");
    let valid = node.cnimble(plugin_dir(), &["validate", "new", "--json"]).run().result();
    assert_eq!(valid["plugins"], json!(["bridge"]));
    let empty = scripts(node.host.dir(), &[]);
    let outcome = node.cnimble(&empty, &["validate", "new"]).run();
    assert_eq!(outcome.status, 4);
    for name in ["bridge", "host-local"] {
        assert!(outcome.stderr.contains(&format!("no plugin \"{name}\"")), "{}", outcome.stderr);
    }
}

/// Debian 12's plugins support versions up to 1.0.0, newer ones 1.1.0.
#[test]
fn validate_looks_at_the_versions_of_the_go_plugins() {
    need!();
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let node = Node::new();
    node.bridge("new", "1.1.0");
    let outcome = node.cnimble(go, &["validate", "new"]).run();
    let old = node.cnimble(go, &["plugins"]).run().success().text().contains("to 1.0.0");
    assert_eq!(outcome.status, if old { 4 } else { 0 }, "{}", outcome.describe());
}

#[test]
fn people_read_words_and_programs_json() {
    need!("script");
    let node = Node::new();
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; echo '{RESULT}'"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    let on_terminal = |args: &str, variable: (&str, &str)| {
        let line = format!(
            "{} {args} net {} --cache-dir {}",
            command().display(),
            pod.path(),
            node.cache().display()
        );
        let mut script = node.host.command("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env(variable.0, variable.1);
        script.env("CNI_PATH", &bin).env("NETCONFPATH", node.conf());
        let outcome = Run { command: script, stdin: Vec::new() }.run().success();
        outcome.text().replace('\r', "")
    };
    let plain = on_terminal("add", ("NO_COLOR", "1"));
    assert!(plain.starts_with(&format!("ok {} is on net\n  container  cnitool-", pod.path())), "{plain}");
    assert!(plain.contains("\n  address    10.0.0.2/24\n"), "{plain}");
    assert!(on_terminal("check", ("NO_COLOR", "")).starts_with("\x1b[32mok\x1b[0m no plugin of net found"));
    assert!(on_terminal("del --json", ("NO_COLOR", "")).starts_with("{\n    \"cniVersion\": \"1.0.0\""));
}

/// A command in a hint looks where the call has looked.
#[test]
fn hints_name_the_directories_of_the_call() {
    need!();
    let node = Node::new();
    let full = r#"cat >/dev/null; echo '{"cniVersion":"1.0.0","code":101,"msg":"full"}'; exit 1"#;
    let bin = scripts(node.host.dir(), &[("host-local", full), ("calico", full)]);
    let (conf, cache) = (node.conf().join("my nets"), node.cache());
    fs::create_dir(&conf).unwrap();
    for plugin in ["host-local", "calico", "missing"] {
        let network = json!({"cniVersion": "1.0.0", "name": plugin, "plugins": [{"type": plugin}]});
        fs::write(conf.join(format!("{plugin}.conflist")), network.to_string()).unwrap();
    }
    let (pod, conf) = (Pod::new(), conf.to_str().unwrap());
    let run = |args: &[&str]| {
        let outcome = node.cnimble(&bin, &[args, &["--conf-dir", conf]].concat()).run();
        assert_ne!(outcome.status, 0, "{}", outcome.describe());
        outcome.stderr
    };
    let options = format!(" --conf-dir '{conf}' --cache-dir {}", cache.display());
    for (args, hint) in [
        (&["add", "nett", pod.path()][..], format!("`cnimble networks --conf-dir '{conf}'` lists them;")),
        (&["add", "missing", pod.path()], format!("`cnimble plugins --cni-path {}` lists", bin.display())),
        (&["add", "host-local", pod.path()], format!("`cnimble doctor{options}` lists leases")),
        (
            &["tree", "nobody"],
            format!(
                "`cnimble network ls{options}` lists the networks, `cnimble ls{options}` the attachments"
            ),
        ),
    ] {
        let told = run(args);
        assert!(told.contains(&hint), "{hint}: {told}");
    }
    // By its own code another plugin may mean anything.
    assert!(!run(&["add", "calico", pod.path()]).contains("cnimble doctor"));
    let told = run(&["tree", "nobody"]);
    assert!(told.contains("no record that was read is of a pod, container or namespace nobody"), "{told}");
    let help = node.cnimble(&bin, &["--help"]).run().text();
    for status in ["tree --check or --cri,", "or the record of a del stays"] {
        assert!(help.contains(status), "{status}: {help}");
    }
}
