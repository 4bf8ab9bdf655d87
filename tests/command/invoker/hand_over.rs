//! Tests `cnimble hand-over`: the Go plugins' DEL must remove cnimble's pods completely.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{
    Outcome, PATIENCE, Pod, Sample, Snapshot, need, need_go, plugin_dir, script, wait_until,
};

use super::{Node, Run};

/// A chain with all plugins that make rules. The same address in any namespace of the machine is evidence for a pod, so
/// each test has its own network.
fn network(node: &Node, third: u8, portmap: &Value) {
    let chain = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
                "ipam": {
                    "type": "host-local", "dataDir": node.host.data_dir(),
                    "ranges": [
                        [{"subnet": format!("10.211.{third}.0/24")}],
                        [{"subnet": format!("fd00:211:{third}::/64")}],
                    ],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            portmap,
            {"type": "firewall", "ingressPolicy": "same-bridge"},
        ],
    });
    node.network("net", &chain);
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

/// Returns a container ID as runtimes make it, too long for a comment.
fn id(letter: char) -> String {
    letter.to_string().repeat(64)
}

impl Node {
    fn call(&self, plugins: &Path, verb: &str, pod: &Pod, id: &str) -> Run {
        let ports = json!({"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
            {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
        ]});
        let ports = ports.to_string();
        self.cnimble(plugins, &[verb, "net", pod.path(), "--container-id", id, "--cap-args", &ports])
    }

    fn hand_over_run(&self, args: &[&str]) -> Run {
        let (leases, state) = (self.host.data_dir(), self.host.dir().join("state"));
        let mut all = vec!["hand-over", "--data-dir", leases.to_str().unwrap()];
        all.extend(["--state-dir", state.to_str().unwrap()]);
        all.extend(args);
        self.cnimble(plugin_dir(), &all).json()
    }

    /// Runs `cnimble hand-over ARGS… --json`.
    fn hand_over(&self, args: &[&str]) -> Outcome {
        self.hand_over_run(args).run()
    }

    /// Returns the rules of both sets of plugins without duplicates. Omits the port and its address, which differ
    /// between two pods of one name. Releases comment policies in different words.
    fn rules(&self) -> Vec<String> {
        let saves = ["iptables-save -t nat", "iptables-save -t filter", "iptables-save -t mangle"];
        let mut text = String::new();
        for save in saves {
            text += &self.host.shell(&format!("{save}; ip6tables-save{}", &save["iptables-save".len()..]));
        }
        text += &self.host.nft("list ruleset bridge");
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.starts_with(':'))
            .map(|line| {
                let same = |word: &str| {
                    let bare = word.trim_matches('"');
                    let mac = bare.len() == 17 && bare.bytes().filter(|byte| *byte == b':').count() == 5;
                    if mac || bare.starts_with("veth") { "ANY".to_owned() } else { word.to_owned() }
                };
                let line: Vec<String> = line.split_whitespace().map(same).collect();
                // The Go plugin lists ports of one family for the other, too.
                let line = line.join(" ").replace("--dports 8080,8081 ", "--dports 8080 ");
                match line.split_once(" -m comment --comment \"CNI firewall plugin rules (") {
                    Some((head, tail)) => format!("{head}{}", tail.split_once(")\"").unwrap().1),
                    None => line,
                }
            })
            .collect();
        lines.sort();
        lines
    }
}

#[track_caller]
fn document(outcome: &Outcome, status: i32) -> Value {
    assert_eq!(outcome.status, status, "{}", outcome.describe());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

#[test]
fn rules_that_are_handed_over_are_those_that_the_go_plugins_make_and_remove() {
    need_go!(go, "ip", "nft", "iptables-save", "ip6tables-save");
    let (theirs, ours) = (Node::new(), Node::new());
    let (their_pod, our_pod) = (Pod::new(), Pod::new());
    for node in [&theirs, &ours] {
        network(node, 1, &portmap());
    }
    theirs.call(go, "add", &their_pod, &id('a')).run().result();
    ours.call(plugin_dir(), "add", &our_pod, &id('a')).run().result();
    let _server = Server::start(&our_pod, 80, "pod");
    // The index that host-local keeps beside many leases, and the addresses that pods had.
    let notes = [".cnimble-index", ".cnimble-kept"].map(|name| ours.host.data_dir().join("net").join(name));
    notes.iter().for_each(|note| std::fs::write(note, "").unwrap());
    let before = Snapshot::settled(&ours.host);

    let looked = document(&ours.hand_over(&[]), 0);
    assert_eq!(looked["done"], false);
    assert_eq!(looked["pods"][0]["containerID"], id('a'), "{looked:#}");
    let rules = looked["pods"][0]["rules"].to_string();
    for part in ["masquerading of 10.211.1.2", "8080/tcp", "127.0.0.1:8081/tcp", "forwarding", "MAC check"] {
        assert!(rules.contains(part), "{part} in {rules}");
    }
    before.assert_same(&Snapshot::settled(&ours.host), "after looking");

    for time in ["first", "again"] {
        let done = document(&ours.hand_over(&["--yes"]), 0);
        assert_eq!((&done["done"], &done["left"]), (&json!(true), &json!([])), "{done:#}");
        assert_eq!(ours.rules(), theirs.rules(), "{time}");
        let ruleset = ours.host.nft("list ruleset");
        assert!(!ruleset.contains("cnimble") && !ruleset.contains("GUARD"), "{ruleset}");
        assert_eq!(ours.host.sysctl("ipv4/conf/br0/route_localnet"), "1");
        assert!(!notes.iter().any(|note| note.exists()) && !ours.host.lock_dir().exists());
        for to in ["127.0.0.1:8080", "127.0.0.1:8081", "10.211.1.1:8080", "[fd00:211:1::1]:8080"] {
            assert!(tcp(&ours.host, to).unwrap().starts_with("pod "), "{time}: {to}");
        }
    }
    // These rules satisfy cnimble's CHECK and the DEL of the Go plugins.
    ours.call(plugin_dir(), "check", &our_pod, &id('a')).run().success();
    theirs.call(go, "del", &their_pod, &id('a')).run().success();
    ours.call(go, "del", &our_pod, &id('a')).run().success();
    assert_eq!(ours.rules(), theirs.rules());
    clean(&ours, 1, "after the DEL");

    let next = Pod::new();
    ours.call(go, "add", &next, &id('b')).run().result();
    let _next = Server::start(&next, 80, "next");
    assert!(tcp(&ours.host, "127.0.0.1:8080").unwrap().starts_with("next "));
}

#[test]
fn what_a_del_by_the_go_plugins_has_left_is_removed() {
    need_go!(go, "ip", "nft", "iptables-save", "ip6tables-save");
    let (node, pod, next) = (Node::new(), Pod::new(), Pod::new());
    network(&node, 2, &portmap());
    node.call(plugin_dir(), "add", &pod, &id('a')).run().result();
    // Older releases fail once on masquerading that they didn't make.
    let deleted = || node.call(go, "del", &pod, &id('a')).run().status == 0;
    assert!(deleted() || deleted());
    node.call(go, "add", &next, &id('b')).run().result();
    let _server = Server::start(&next, 80, "next");
    // The rules of iptables come before those that are left.
    assert!(tcp(&node.host, "127.0.0.1:8080").unwrap().starts_with("next "));
    assert!(node.host.nft("list ruleset").contains("portmap4"), "nothing of ours was left");

    let done = document(&node.hand_over(&["--yes"]), 0);
    assert_eq!(done["pods"], json!([]));
    assert!(!done["orphans"].as_array().unwrap().is_empty(), "{done:#}");
    assert!(tcp(&node.host, "127.0.0.1:8080").unwrap().starts_with("next "));
    assert!(!node.host.nft("list ruleset").contains("cnimble"));
}

#[test]
fn a_pod_that_cant_be_handed_over_stops_it_unless_it_is_forced() {
    need_go!(_go, "ip", "nft", "iptables-save", "ip6tables-save");
    let (node, nft, plain) = (Node::new(), Pod::new(), Pod::new());
    network(
        &node,
        3,
        &json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}),
    );
    node.call(plugin_dir(), "add", &nft, &id('a')).run().result();
    let bare = ["add", "net", plain.path(), "--container-id", "bare"];
    node.cnimble(plugin_dir(), &bare).run().result();
    let before = Snapshot::settled(&node.host);

    for args in [[].as_slice(), &["--yes"]] {
        let refused = document(&node.hand_over(args), 7);
        assert_eq!(
            (&refused["done"], &refused["refused"][0]["containerID"]),
            (&json!(false), &json!(id('a')))
        );
        assert!(refused["refused"][0]["why"].as_str().unwrap().contains("nftables"), "{refused:#}");
        before.assert_same(&Snapshot::settled(&node.host), "after a refusal");
    }
    let forced = document(&node.hand_over(&["--yes", "--force"]), 0);
    assert_eq!((&forced["done"], &forced["pods"][0]["containerID"]), (&json!(true), &json!("bare")));
    let _server = Server::start(&nft, 80, "nft");
    assert!(tcp(&node.host, "127.0.0.1:8080").unwrap().starts_with("nft "));
    assert!(node.host.nft("list table inet cnimble").contains("portmap"));

    // Hand-over also fails without iptables, and while pods of `cnimble pod` are on record.
    let node = Node::new();
    network(&node, 4, &portmap());
    let pod = Pod::new();
    node.call(plugin_dir(), "add", &pod, &id('a')).run().result();
    let hidden = "mount --bind /dev/null $(readlink -f /usr/sbin/ip6tables-restore) && exec \"$@\"";
    let mut wrapper = node.host.command("unshare");
    wrapper.args(["--mount", "sh", "-c", hidden, "-"]);
    let refused = document(&node.hand_over_run(&["--yes"]).under(wrapper).run(), 7);
    let why = refused["refused"].to_string();
    assert!(why.contains("restore is not installed"), "{why}");
    std::fs::create_dir_all(node.host.dir().join("state/sandboxes/00")).unwrap();
    std::fs::write(node.host.dir().join("state/sandboxes/00/record"), "").unwrap();
    let outcome = node.hand_over(&["--yes"]);
    assert_eq!(outcome.status, 7);
    assert!(outcome.text().contains("1 pod of `cnimble pod`"), "{}", outcome.describe());
    assert!(node.host.nft("list table inet cnimble").contains("portmap"));
}

#[test]
fn where_iptables_is_the_legacy_variant_rules_are_written_there() {
    need_go!(go, "ip", "nft", "iptables-legacy-save", "ip6tables-legacy-save");
    let (node, pod) = (Node::new(), Pod::new());
    network(&node, 8, &portmap());
    let dir = node.host.dir().join("legacy");
    std::fs::create_dir(&dir).unwrap();
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{action}");
            std::os::unix::fs::symlink(target, dir.join(format!("{family}{action}"))).unwrap();
        }
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display());
    let legacy = || {
        let tables = ["nat", "filter"].map(|table| {
            format!("iptables-legacy-save -t {table}; ip6{0}", &format!("tables-legacy-save -t {table}"))
        });
        node.host.shell(&tables.join("; "))
    };
    node.call(plugin_dir(), "add", &pod, &id('a')).env("PATH", &path).run().result();
    let _server = Server::start(&pod, 80, "pod");
    for _ in 0..2 {
        document(&node.hand_over_run(&["--yes"]).env("PATH", &path).run(), 0);
        let saved = legacy();
        assert_eq!(saved.matches("-j CNI-DN-").count(), 4, "{saved}");
        assert_eq!(saved.matches("-j MASQUERADE").count(), 4, "{saved}");
        assert!(tcp(&node.host, "127.0.0.1:8080").unwrap().starts_with("pod "));
        assert!(!node.host.nft("list ruleset").contains("CNI-DN-"));
    }
    node.call(go, "del", &pod, &id('a')).env("PATH", &path).run().success();
    let saved = legacy();
    assert!(
        !saved.contains("CNI-DN-") && !saved.contains("10.211.8.2") && !saved.contains("aaaa"),
        "{saved}"
    );
    clean(&node, 8, "after the DEL");
}

#[test]
fn addresses_by_dhcp_become_permanent_as_the_go_plugins_do_not_know_their_leases() {
    need!("ip", "nft", "dnsmasq");
    let (node, pod) = (Node::new(), Pod::new());
    let _server = Sample::of("dhcp").serve(&node.host);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": node.host.dir().join("dhcp.sock")});
    let plugin = json!({"type": "bridge", "bridge": "br-served", "ipam": ipam});
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]}));
    let call = |verb| {
        let args = [verb, "net", pod.path(), "--container-id", "c1"];
        node.cnimble(plugin_dir(), &args).run().success()
    };
    call("add");
    let ends = || pod.ip("-4 address show dev eth0").contains("sec");
    assert!(wait_until(PATIENCE, ends), "{}", pod.ip("-4 address show dev eth0"));
    for (args, finds, still_ends) in [(&[][..], 1, true), (&["--yes"], 1, false), (&["--yes"], 0, false)] {
        let found = document(&node.hand_over(args), 0);
        let addresses = found["addresses"].as_array().unwrap();
        assert_eq!((addresses.len(), ends()), (finds, still_ends), "{args:?}: {found:#}");
        assert!(addresses.iter().all(|one| one["containerID"] == "c1"), "{found:#}");
    }
    assert!(pod.ip("-4 address show dev eth0").contains("valid_lft forever"));
    call("check");
    call("del");
}

/// FORWARD drops what no rule accepts. The Go plugins have no such rules, so their DEL leaves them.
#[test]
fn rules_for_published_ports_are_removed_with_dead_pods_and_listed_for_living_ones() {
    need!("ip", "nft", "iptables-nft-save");
    let node = Node::new();
    node.host.sh("iptables-nft -P FORWARD DROP");
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.211.9.0/24"}]]});
    let bridge = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam});
    let mut portmap = portmap();
    portmap["acceptPublished"] = json!(true);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap]}));
    let (lives, dead) = (Pod::new(), Pod::new());
    node.call(plugin_dir(), "add", &lives, &id('a')).run().result();
    let other =
        json!({"portMappings": [{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]}).to_string();
    let args = ["add", "net", dead.path(), "--container-id", "dead", "--cap-args", &other];
    let end = node.cnimble(plugin_dir(), &args).run().result()["interfaces"][1]["name"].clone();
    drop(dead);
    assert!(wait_until(PATIENCE, || !node.host.links().iter().any(|link| end == *link)));
    let accepted = |ip: &str| {
        let saved = node.host.sh("iptables-nft-save -t filter");
        saved.lines().filter(|line| line.contains("DNAT") && line.contains(&format!("{ip}/32"))).count()
    };
    assert_eq!((accepted("10.211.9.2"), accepted("10.211.9.3")), (2, 2));
    let expected = json!([
        "rules for published ports of 10.211.9.2 in iptables' chain CNI-FORWARD, which no Go plugin removes"
    ]);
    assert_eq!(document(&node.hand_over(&[]), 0)["left"], expected);
    let done = document(&node.hand_over(&["--yes"]), 0);
    assert_eq!((&done["done"], &done["left"]), (&json!(true), &expected), "{done:#}");
    assert_eq!((accepted("10.211.9.2"), accepted("10.211.9.3")), (2, 0));
}

#[test]
fn options_that_the_go_plugins_ignore_are_named_with_their_file() {
    need!("ip", "nft");
    let node = Node::new();
    let bridge =
        json!({"type": "bridge", "bridge": "br0", "acceptRA": false, "ipMasqExclude": ["10.0.0.0/8"]});
    let portmap = json!({"type": "portmap", "acceptPublished": true, "snat": false});
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge, portmap]}));
    // A file that can't be read doesn't stop the way back.
    std::os::unix::fs::symlink("nowhere", node.conf().join("gone.conflist")).unwrap();
    std::fs::write(node.conf().join("torn.conflist"), "{").unwrap();
    let found = document(&node.hand_over(&[]), 0);
    let lost: Vec<_> = found["stopsWorking"].as_array().unwrap().iter().collect();
    let keys: Vec<_> = lost.iter().map(|lost| (&lost["plugin"], &lost["key"])).collect();
    let expected = [("bridge", "ipMasqExclude"), ("bridge", "acceptRA"), ("portmap", "acceptPublished")]
        .map(|(plugin, key)| (json!(plugin), json!(key)));
    assert_eq!(keys, expected.iter().map(|(plugin, key)| (plugin, key)).collect::<Vec<_>>());
    assert!(lost.iter().all(|lost| lost["file"].as_str().unwrap().ends_with("net.conflist")), "{found:#}");
}

/// Returns a PATH in which a shell script runs before and after each iptables-restore. Its arguments are the number of
/// the call, counted from 1, and `before` or `after`.
fn met(node: &Node, script_lines: &str) -> String {
    let dir = node.host.dir().join("met");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!(
        "#!/bin/sh\ncount={dir}/count\nn=$(($(cat $count 2>/dev/null || echo 0) + 1))\necho $n >$count\n\
         meet() {{\n:\n{script_lines}\n}}\nmeet $n before\n/usr/sbin/${{0##*/}} \"$@\"\nstatus=$?\nmeet $n after\nexit $status\n",
        dir = dir.display(),
    );
    // The name selects the nf_tables variant.
    script(&dir.join("met-nft"), &text);
    for name in ["iptables-restore", "ip6tables-restore"] {
        std::os::unix::fs::symlink("met-nft", dir.join(name)).unwrap();
    }
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display())
}

#[test]
fn killed_at_any_iptables_it_can_be_repeated_and_either_del_leaves_nothing() {
    need_go!(go, "ip", "nft", "iptables-save", "ip6tables-save");
    let mut killed = 0;
    for call in 1.. {
        let mut completed = false;
        for (when, repeats) in [("before", true), ("after", true), ("after", false)] {
            let what = format!("killed {when} call {call}, repeated: {repeats}");
            // The node has no other rules. With other rules firewall would use iptables.
            let (node, pod) = (Node::new(), Pod::new());
            network(&node, 5, &portmap());
            node.call(plugin_dir(), "add", &pod, &id('a')).run().result();
            let _server = Server::start(&pod, 80, "pod");
            let path = met(&node, &format!("[ \"$1 $2\" != '{call} {when}' ] || kill -9 $PPID"));
            let outcome = node.hand_over_run(&["--yes"]).env("PATH", &path).run();
            completed = outcome.status == 0;
            killed += usize::from(!completed);
            assert!(completed || outcome.status == -1, "{what}: {}", outcome.describe());
            let serves = || tcp(&node.host, "127.0.0.1:8080").is_ok_and(|answer| answer.starts_with("pod "));
            assert!(serves(), "{what}");
            if repeats {
                document(&node.hand_over(&["--yes"]), 0);
                assert!(serves(), "{what}, and again");
                assert!(!node.host.nft("list ruleset").contains("cnimble"), "{what}");
            }
            let plugins = if repeats { go } else { plugin_dir() };
            node.call(plugins, "del", &pod, &id('a')).run().success();
            clean(&node, 5, &what);
        }
        if completed {
            break;
        }
    }
    assert!(killed >= 18, "only {killed} were killed");
}

/// Asserts that neither set of plugins has left anything of a pod.
#[track_caller]
fn clean(node: &Node, third: u8, what: &str) {
    let pods: Vec<String> = (2..5).map(|pod| format!("10.211.{third}.{pod}")).collect();
    let left = node.rules().into_iter().filter(|line| {
        ["CNI-DN-", "aaaaaa", "::2"].iter().any(|part| line.contains(part))
            || pods.iter().any(|ip| line.contains(ip))
    });
    assert_eq!(left.collect::<Vec<_>>(), [] as [&str; 0], "{what}");
    let ruleset = node.host.nft("list ruleset");
    assert!(!ruleset.contains("cnimble"), "{what}: {ruleset}");
    assert_eq!(node.leases(), [] as [&str; 0], "{what}");
}

#[test]
fn a_del_that_comes_in_between_leaves_nothing() {
    need_go!(go, "ip", "nft", "iptables-save", "ip6tables-save");
    for (third, by_go) in [(6, false), (7, true)] {
        let (node, pod) = (Node::new(), Pod::new());
        network(&node, third, &portmap());
        node.call(plugin_dir(), "add", &pod, &id('a')).run().result();
        // A runtime ignores cnimble's locks. The pod has been examined by then.
        let plugins = if by_go { go } else { plugin_dir() };
        let del = node.call(plugins, "del", &pod, &id('a')).command;
        let words = std::iter::once(del.get_program()).chain(del.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let del = format!(
            "CNI_PATH={} NETCONFPATH={} CNIMBLE_LOCK_DIR={}/other-locks PATH=/usr/sbin:/usr/bin:/sbin:/bin {}",
            plugins.display(),
            node.conf().display(),
            node.host.dir().display(),
            words.join(" "),
        );
        let path = met(&node, &format!("[ \"$1 $2\" != '1 before' ] || {{ {del} || {del}; }} >&2"));
        let outcome = node.hand_over_run(&["--yes"]).env("PATH", &path).run();
        let done = document(&outcome, 0);
        assert_eq!(done["pods"][0]["containerID"], id('a'), "the DEL came too early");
        clean(&node, third, &format!("a DEL by the Go plugins: {by_go}"));
    }
}
