//! A child waits for the kernel in a removal's place: whatever dies or fails, and whatever comes right behind it.

use std::process::{Command, Stdio};

use serde_json::json;

use cnimble_tests::{
    Attachment, Background, Host, LIMIT, Network, Outcome, Pod, announce, configs, need, plugin_dir,
};

use crate::fail::failures;
use crate::kill::killed;
use crate::site::Verb;

const DEL: &[Verb] = &[Verb::Del];

#[test]
fn killed_with_its_child() {
    killed("bridge by a child", DEL, 12, false);
    killed("bridge and portmap by a child", DEL, 10, false);
}

#[test]
fn killed_and_the_child_isnt_or_the_child_and_it_isnt() {
    killed("bridge by a child", DEL, 30, true);
    killed("ptp by a child", DEL, 10, true);
}

#[test]
fn errors_in_it_and_its_child() {
    failures("bridge by a child", &[Verb::Del, Verb::Gc], 12);
    failures("ptp by a child", &[Verb::Add], 10);
}

/// Name, addresses, MAC and port are free when DEL returns, and the namespace can go.
#[test]
fn an_add_right_behind_a_del_finds_nothing_of_it() {
    need!("ip", "nft");
    let host = Host::new();
    let mut config = configs::dual(&host);
    config["ipMasq"] = json!(true);
    config["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/30"}]]);
    config["ipam"].as_object_mut().unwrap().remove("routes");
    let net = Network::new(&host, config);
    let ports = json!({"cniVersion": net.config["cniVersion"], "name": net.config["name"], "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}});
    let ports = Network::new(&host, ports);
    let mut pod = Pod::new();
    for life in 0..lives(60) {
        let att = Attachment::new("again", &pod).args("MAC=02:00:00:00:00:07");
        let first = net.call("ADD", &att, None).run().result();
        assert_eq!(first["ips"][0]["address"], "10.1.2.2/30", "life {life}");
        let result = ports.call("ADD", &att, Some(&first)).run().result();
        for network in [&ports, &net] {
            network.call("DEL", &att, Some(&result)).env("CNIMBLE_DEL_WAIT", "0").run().success();
        }
        assert!(!host.links().iter().any(|name| name.starts_with("veth")), "life {life}: {:?}", host.links());
        assert!(!pod.links().contains(&"eth0".to_owned()), "life {life}");
        // Every fifth namespace goes while the kernel is still at it.
        if life % 5 == 4 {
            pod = Pod::new();
        }
    }
}

/// Process 1 of a PID namespace: what runs there, what it does about children, whether a child may be left to it.
type Init = (&'static str, &'static str, bool);

const INITS: &[Init] = &[
    ("ignores", r#"$SIG{CHLD} = "IGNORE"; select(undef, undef, undef, 0.01) while kill 0, $worker;"#, true),
    (
        "blocks",
        r#"my $chld = POSIX::SigSet->new(SIGCHLD); $SIG{CHLD} = sub {}; sigprocmask(SIG_BLOCK, $chld);
           for (my $lives = 1; $lives;) {
               sigprocmask(SIG_UNBLOCK, $chld); sigprocmask(SIG_BLOCK, $chld);
               while ((my $pid = waitpid(-1, WNOHANG)) > 0) { $lives = 0 if $pid == $worker }
               select(undef, undef, undef, 0.002);
           }"#,
        true,
    ),
    // Since before its first child ended.
    ("never looks", "waitpid($worker, 0);", false),
    ("waits for its own", "waitpid($worker, 0);", false),
];

/// Lives of a pod, one after the other, and then how many zombies there are; the last lines of stdout.
const WORKER: &str = r#"
    unshare --net sleep 1000 & pod=$!
    until [ "$(readlink /proc/$pod/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    export CNI_PATH=$1 CNI_CONTAINERID=z CNI_IFNAME=eth0 CNI_NETNS=/proc/$pod/ns/net CNIMBLE_LOG=info
    for life in $(seq "$2"); do
        CNI_COMMAND=ADD "$1/bridge" <"$3" >"$4.add" || { cat "$4.add"; exit 1; }
        CNI_COMMAND=DEL "$1/bridge" <"$3" 2>>"$4" || exit 1
    done
    kill $pod
    waiting() { grep -lsE '^Name:[[:space:]]*bridge' /proc/[0-9]*/status | xargs -r grep -LsE '^State:[[:space:]]*Z'; }
    while [ -n "$(waiting)" ]; do sleep 0.02; done
    # The last may be being reaped.
    for look in $(seq 50); do
        zombies=$(grep -lsE '^State:[[:space:]]*Z' /proc/[0-9]*/status | wc -l)
        [ "$zombies" -gt 0 ] || break
        sleep 0.02
    done
    echo "zombies $zombies"
"#;

#[test]
fn no_zombie_is_left_under_any_process_1() {
    need!("ip", "perl", "unshare");
    under(INITS, lives(25));
}

/// For the machine, whose kernel has CLONE_AUTOREAP.
pub fn no_zombie_where_children_need_no_reaping() {
    let log = under(&INITS[2..3], lives(5));
    assert!(log.contains("it needs no reaping"), "{log}");
}

fn lives(otherwise: u32) -> u32 {
    std::env::var("CNIMBLE_LIVES").map_or(otherwise, |lives| lives.parse().expect("CNIMBLE_LIVES: a number"))
}

/// So many lives under each of them; the last log.
fn under(inits: &[Init], lives: u32) -> String {
    let mut last = String::new();
    for (name, init, reaps) in inits {
        let host = Host::new();
        let (config, log) = (host.dir().join("config"), host.dir().join("log"));
        std::fs::write(&config, configs::v4(&host).to_string()).unwrap();
        let block = if *name == "never looks" { "sigprocmask(SIG_BLOCK, $all);" } else { "" };
        // It has reaped before.
        let main = format!(
            r#"use POSIX ":signal_h", ":sys_wait_h"; my $all = POSIX::SigSet->new; $all->fillset; {block}
               my $first = fork; exit 0 if !$first; waitpid($first, 0);
               my $worker = fork;
               if (!$worker) {{ sigprocmask(SIG_SETMASK, POSIX::SigSet->new); exec "bash", "-c", @ARGV }} {init}"#
        );
        let mut command: Command = host.command("unshare");
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "perl",
            "-e",
            &main,
            WORKER,
            "worker",
        ]);
        command.arg(plugin_dir()).arg(lives.to_string()).arg(&config).arg(&log);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = Outcome::from(name, Background::start(&mut command).finish(LIMIT));
        let said = outcome.text();
        let zombies: u32 =
            said.trim().strip_prefix("zombies ").and_then(|count| count.parse().ok()).unwrap_or_else(|| {
                panic!("{name}: {}", outcome.describe());
            });
        let log = std::fs::read_to_string(&log).unwrap();
        let by_a_child = log.lines().filter(|line| line.contains("by a child")).count();
        let by_us = log.lines().filter(|line| line.contains("by us")).count();
        announce(
            "NOTE",
            &format!("process 1 {name}: {by_a_child} by a child, {by_us} not; {zombies} zombies"),
        );
        assert_eq!(zombies, 0, "{name}: {log}");
        let may = *reaps || log.contains("it needs no reaping");
        assert_eq!(by_a_child > 0, may, "{name}: {log}");
        assert_eq!(by_a_child + by_us, usize::try_from(lives).unwrap(), "{name}: {log}");
        last = log;
    }
    last
}
