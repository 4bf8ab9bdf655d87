//! Pods' rules by netlink in the tables of iptables-nft: they equal those of the commands, beside any other content,
//! and foreign rules are not read.

use serde_json::json;

use cnimble_tests::{Attachment, Host, Network, need, script, skip};

use super::{Member, firewall, join};

/// Between two ADDs. `$T` is the command and `$IP` the address of the new pod.
const EDITS: [(&str, &str); 16] = [
    ("nothing", ":"),
    ("a rule like the pod's is in another chain", "$T -N MINE; $T -A MINE -s $IP -j ACCEPT"),
    ("the chain of pods is empty", "$T -F CNI-FORWARD"),
    ("the jump to the chain of pods is missing", "$T -D FORWARD $JUMP -j CNI-FORWARD"),
    ("the jump is there twice", "$T -A FORWARD $JUMP -j CNI-FORWARD"),
    ("the jump is the last rule", "$T -D FORWARD $JUMP -j CNI-FORWARD; $T -A FORWARD $JUMP -j CNI-FORWARD"),
    ("the jump has another comment", "$T -R FORWARD 1 -m comment --comment CNI -j CNI-FORWARD"),
    ("the jump has a condition", "$T -R FORWARD 1 $JUMP -i eth7 -j CNI-FORWARD"),
    ("it is a goto", "$T -R FORWARD 1 $JUMP -g CNI-FORWARD"),
    ("the jump is in another chain", "$T -D FORWARD $JUMP -j CNI-FORWARD; $T -A INPUT $JUMP -j CNI-FORWARD"),
    (
        "the jump to the administrator's chain is missing",
        "$T -D CNI-FORWARD 1; $T -F CNI-ADMIN; $T -X CNI-ADMIN",
    ),
    ("the administrator has a rule in the chain of pods", "$T -I CNI-FORWARD -p tcp --dport 25 -j DROP"),
    ("the administrator has a rule about the pod", "$T -I CNI-FORWARD -s $IP -p tcp -j DROP"),
    ("one of the pod's rules is there", "$T -A CNI-FORWARD -s $IP -j ACCEPT"),
    ("both are there", "$T -A CNI-FORWARD -d $IP $ANSWERS -j ACCEPT; $T -A CNI-FORWARD -s $IP -j ACCEPT"),
    (
        "a rule has a comment of the nft command",
        "nft add rule $F filter CNI-FORWARD $F saddr $IP accept comment x",
    ),
];

const JUMP: &str = "-m comment --comment 'CNI firewall plugin rules'";
const ANSWERS: &str = "-m conntrack --ctstate RELATED,ESTABLISHED";

/// A PATH of scripts. Their variant is unknown, so the plugin runs them.
fn by_scripts(host: &Host) -> String {
    for name in ["iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"] {
        let nft = name.replace("tables-", "tables-nft-");
        script(&host.dir().join(name), &format!("#!/bin/sh\nexec {nft} \"$@\"\n"));
    }
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", host.dir().display())
}

/// As iptables prints them and the kernel has them, without counters and handles.
fn tables(host: &Host) -> String {
    let text = host.shell(
        "for t in iptables ip6tables; do $t-nft-save -t filter; done | grep -v '^#'; \
         nft --debug=netlink list ruleset 2>&1 | grep '^  \\['",
    );
    let lines = text.lines().filter(|line| !line.starts_with("  [ counter"));
    // Cuts the counters off.
    let lines = lines.map(|line| if line.starts_with(':') { line.split(" [").next().unwrap() } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// With the real commands or with scripts.
fn outcomes(scripts: bool) -> Vec<String> {
    let host = Host::new();
    let path = if scripts { by_scripts(&host) } else { "/usr/sbin:/usr/bin:/sbin:/bin".to_owned() };
    let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
    let net = firewall(&host, 1, &json!({ "backend": "iptables" }));
    let call =
        |verb: &str, member: &Member| net.call(verb, &member.att, Some(&member.prev)).env("PATH", &path);
    let each = EDITS.iter().map(|(name, edit)| {
        host.nft("flush ruleset");
        call("ADD", &a).run().success();
        let edit = edit.replace("$JUMP", JUMP).replace("$ANSWERS", ANSWERS);
        let [v4, v6] = [b.ip(0), b.ip(1)];
        host.shell(&format!("T=iptables-nft F=ip IP={v4}; {edit}; T=ip6tables-nft F=ip6 IP={v6}; {edit}"));
        let checked =
            |member: &Member| String::from_utf8_lossy(&call("CHECK", member).run().stdout).into_owned();
        let before = checked(&a);
        call("ADD", &b).run().success();
        let (added, after, others) = (tables(&host), checked(&b), checked(&a));
        call("DEL", &b).run().success();
        format!("{name}\n{before}\n{added}\n{after}\n{others}\n{}", tables(&host))
    });
    each.collect()
}

/// The doctor compares all pods of such a host: no process for each.
#[test]
fn check_runs_no_command_where_no_chain_of_pods_is() {
    need!("ip", "nft");
    let host = Host::new();
    let ran = host.dir().join("ran");
    for name in ["iptables-save", "ip6tables-save"] {
        script(&host.dir().join(name), &format!("#!/bin/sh\ntouch {}\n", ran.display()));
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", host.dir().display());
    let pod = join(&host, 1, "a");
    let net = firewall(&host, 1, &json!({}));
    let call = |verb: &str| net.call(verb, &pod.att, Some(&pod.prev)).env("PATH", &path);
    call("ADD").run().success();
    host.nft("flush ruleset");
    let err = call("CHECK").run().error();
    assert!(err.code == 103 && err.all().contains("iptables has no chain CNI-FORWARD"), "{}", err.all());
    assert!(!ran.exists(), "a command was run");
}

#[test]
fn rules_by_netlink_are_those_of_the_commands_after_every_edit() {
    need!("ip", "nft", "iptables-nft-save", "iptables-nft-restore");
    let (direct, commands) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| outcomes(false));
        (direct.join().unwrap(), outcomes(true))
    });
    for (direct, command) in direct.iter().zip(&commands) {
        assert_eq!(direct, command);
        assert!(direct.contains("CNI-FORWARD") && direct.contains("match name conntrack rev 3"), "{direct}");
    }
}

#[test]
fn a_policy_of_the_bridge_that_was_given_up_goes_from_iptables() {
    need!("ip", "nft", "iptables-nft-save", "iptables-nft-restore");
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
    a.add(&firewall(&host, 1, &json!({ "backend": "iptables", "ingressPolicy": "same-bridge" })));
    assert!(super::rules(&host).contains("-i br1"));
    b.add(&firewall(&host, 1, &json!({ "backend": "iptables" })));
    let left = super::rules(&host);
    assert!(!left.contains("-i br1") && left.contains(b.ip(0)) && left.contains(b.ip(1)), "{left}");
}

/// Bytes from the kernel, and executed programs.
fn cost(net: &Network<'_>, verb: &str, att: &Attachment, member: &Member) -> (usize, usize) {
    let file = net.host.dir().join(cnimble_tests::unique("strace"));
    let strace = ["strace", "-f", "-qq", "-e", "trace=execve,recvfrom,recvmsg", "-o", file.to_str().unwrap()];
    net.call(verb, att, Some(&member.prev)).under(&strace).run().success();
    let text = std::fs::read_to_string(file).unwrap();
    let returned = |line: &str| line.rsplit_once(" = ")?.1.split(' ').next()?.parse::<usize>().ok();
    let read = text.lines().filter(|line| line.contains(" recv")).filter_map(returned).sum();
    (read, text.lines().filter(|line| line.contains(" execve(") && line.ends_with(" = 0")).count())
}

/// With this number of foreign rules in FORWARD.
fn costs(rules: usize) -> Vec<(usize, usize)> {
    let host = Host::new();
    let (a, b) = (join(&host, 1, "a"), join(&host, 1, "b"));
    let foreign: String =
        (0..rules).map(|at| format!("-A FORWARD -m comment --comment kube-{at} -j RETURN\n")).collect();
    let text = format!("*filter\n{foreign}COMMIT\n");
    for command in ["iptables-nft-restore", "ip6tables-nft-restore"] {
        host.run_with(&format!("{command} --noflush"), text.as_bytes()).success();
    }
    // Such rules choose iptables.
    let net = firewall(&host, 1, &json!({}));
    a.add(&net);
    let costs = ["ADD", "CHECK", "DEL"].map(|verb| cost(&net, verb, &b.att, &b));
    let saved = super::rules(&host);
    assert!(saved.contains(a.ip(0)) && saved.contains(a.ip(1)) && !saved.contains(b.ip(0)), "{saved}");
    costs.to_vec()
}

#[test]
fn a_pod_costs_as_much_beside_thousands_of_foreign_rules() {
    need!("ip", "nft", "iptables-nft-restore", "strace");
    let host = Host::new();
    if host.call("firewall").command("VERSION").under(&["strace", "-o", "/dev/null"]).run().status != 0 {
        skip!("strace may not trace here");
    }
    let (few, many) = (costs(20), costs(2000));
    for ((verb, few), many) in ["ADD", "CHECK", "DEL"].iter().zip(&few).zip(&many) {
        assert_eq!((few.1, many.1), (1, 1), "{verb} is one program: {few:?}, {many:?}");
        // Each family is read twice, in full datagrams.
        assert!(many.0 < few.0 + 4 * 32 * 1024, "{verb} reads {} bytes instead of {}", many.0, few.0);
        assert!(many.0 > 0);
    }
}
