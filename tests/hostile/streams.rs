//! Input that is endless, of the wrong kind or hard to parse, and output that is full or closed.

use serde_json::json;

use cnimble_tests::{
    Attachment, Call, Host, Network, Outcome, Pod, Snapshot, announce, configs, leases, need,
};

/// A bridge with many options, and a pod for it.
struct Stage {
    host: Host,
    pod: Pod,
    before: Snapshot,
}

impl Stage {
    fn new() -> Self {
        let (host, pod) = (Host::hasty(), Pod::new());
        Stage { before: Snapshot::of(&host), host, pod }
    }

    fn call(&self, verb: &str) -> Call<'_> {
        let net = Network::new(&self.host, configs::dual(&self.host)).with("/ipMasq", json!(true));
        net.call(verb, &Attachment::new("c1", &self.pod), None)
    }

    /// Runs the plugin by `sh -c script`, with its path in $0.
    fn shell(&self, verb: &str, script: &str) -> Outcome {
        self.call(verb).under(&["sh", "-c", script]).run()
    }

    fn unchanged(&self, what: &str) {
        self.before.assert_same(&Snapshot::settled(&self.host), what);
        assert_eq!(self.pod.links(), ["lo"], "{what}");
    }
}

#[test]
fn stdin_that_is_no_configuration() {
    need!("ip", "nft");
    let stage = Stage::new();
    for (script, code) in [
        ("exec \"$0\" </dev/zero", 5),
        ("exec \"$0\" </", 5),
        ("exec \"$0\" <&-", 6),
        ("exec \"$0\" </dev/null", 6),
        ("exec \"$0\" 0>/dev/full", 6),
        ("exec \"$0\" </proc/kallsyms", 6),
    ] {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let error = stage.shell(verb, script).error();
            assert_eq!(error.code, code, "{verb}: {script}: {}", error.all());
        }
    }
    stage.unchanged("after stdin that is no configuration");
}

/// As in Go, the last of two equal keys wins, and the exact spelling wins over another one.
#[test]
fn keys_that_are_there_twice() {
    need!();
    let host = Host::new();
    let pod = Pod::new();
    let text = format!(
        r#"{{"name":"../evil","cniVersion":"9.9.9","name":"net4","NAME":"../evil","cniVersion":"1.0.0",
            "type":"host-local","ipam":{{"type":"host-local","dataDir":"/nowhere"}},
            "ipam":{{"type":"host-local","dataDir":{0:?},"DATADIR":"/nowhere","subnet":"10.9.0.0/24",
            "subnet":"10.1.2.0/24"}}}}"#,
        host.data_dir()
    );
    let call = host.call("host-local").command("ADD").attachment("c1", pod.path(), "eth0").stdin(text);
    assert_eq!(call.run().result()["ips"][0]["address"], "10.1.2.2/24");
    assert!(leases(&host.data_dir()).iter().any(|line| line.starts_with("net4/10.1.2.2 ")));
}

/// If its result cannot be delivered, an ADD is undone.
#[test]
fn a_result_that_nobody_gets() {
    need!("ip", "nft", "mkfifo");
    // A pipe that lost its only reader before the plugin starts. With `| exit` the reader may close it later.
    let unread = "mkfifo \"$1\" && exec 3<>\"$1\" 4>\"$1\" 3<&- && exec \"$0\" >&4 4>&-";
    for script in ["exec \"$0\" >/dev/full", "exec \"$0\" 1</dev/null", unread] {
        let stage = Stage::new();
        let pipe = stage.host.dir().join("unread").display().to_string();
        let script = script.replace("$1", &pipe);
        let outcome = stage.call("ADD").under(&["sh", "-c", &script]).run();
        assert_eq!(outcome.status, 1, "{}", outcome.describe());
        stage.unchanged(&script);
    }
}

/// A process that starts with closed descriptors opens files under their numbers. Its output to stdout or stderr must
/// not end up in these files.
#[test]
fn closed_descriptors_are_not_handed_to_files() {
    need!("ip", "nft");
    for closed in ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let stage = Stage::new();
        let call = stage.call("ADD").env("CNIMBLE_LOG", "trace");
        let config = stage.host.dir().join("config");
        std::fs::write(&config, configs::dual(&stage.host).to_string()).unwrap();
        // stdin is usable only if it isn't the closed one.
        let script = format!("exec \"$0\" <{} {closed}", config.display());
        call.under(&["sh", "-c", &script]).run();
        for line in leases(&stage.host.data_dir()) {
            let good = line.ends_with('/')
                || line.contains("/ 7")
                || line.contains("lock 750 \"\"")
                || line.ends_with("600 \"c1\\r\\neth0\"")
                || (line.contains("last_reserved_ip") && line.len() < 60);
            assert!(good, "{closed}: {line}");
        }
        stage.call("DEL").run().success();
        let left: Vec<_> = leases(&stage.host.data_dir());
        assert!(!left.iter().any(|line| line.contains("c1")), "{closed}: {left:?}");
        assert_eq!(stage.pod.links(), ["lo"]);
    }
    announce("NOTE", "a stdout that is closed counts as /dev/null, as in Go");
}
