//! What a plugin can leave behind: the state of a namespace and of directories, to be compared.
//!
//! Left out are values that move by themselves, and what belongs to the kit. Each is named below, with the reason.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use cnimble_netlink::NetNs;

/// Keys of `ip -json` and `bridge -json` that change by themselves: timers, the operational state, which follows the
/// flags of a link up to a second later, and the number of learned forwarding entries.
const RESTLESS_KEYS: [&str; 15] = [
    "operstate",
    "hello_timer",
    "tcn_timer",
    "topology_change_timer",
    "gc_timer",
    "topology_change",
    "topology_change_detected",
    "message_age_timer",
    "forward_delay_timer",
    "hold_timer",
    "multicast_querier",
    "tentative",
    "fdb_n_learned",
    "valid_life_time",
    "preferred_life_time",
];

/// Flags of links and routes that follow the carrier.
const RESTLESS_FLAGS: [&str; 3] = ["linkdown", "NO-CARRIER", "LOWER_UP"];

/// Sysctls that count.
const RESTLESS_SYSCTLS: [&str; 1] = ["netfilter/nf_conntrack_count"];

/// The questions to `ip`, each with the name of the objects in its answer. They are lines of a batch, because a program
/// takes longer to start than to answer. The routes are those of both families.
const IP: [(&str, &str); 6] = [
    ("address", "link"),
    ("nexthop", "nexthop"),
    ("route show table all", "route"),
    ("rule", "rule"),
    ("neighbour show nud all", "neighbour"),
    ("neighbour show proxy", "proxy neighbour"),
];
const IP6: [(&str, &str); 1] = [("rule", "rule")];

/// The questions to `bridge`. A kernel without VLANs in bridges refuses the second one.
const BRIDGE: [([&str; 2], &str); 2] = [(["fdb", "show"], "forwarding entry"), (["vlan", "show"], "VLAN")];

/// Files that remain by their design: the plugins' locks, and host-local's last address, which the next ADD begins
/// behind. Notes and locks of the kit are below `/run/cnimble`.
const LASTING_FILES: [&str; 2] = ["lock", "last_reserved_ip."];
const OWN_DIRECTORY: &str = "/run/cnimble";

/// Lines that each describe an object, with the place and the kind in front.
pub(super) type State = BTreeSet<String>;

/// Returns the objects in the namespace: links with their addresses, nexthops, routes, rules, neighbours, forwarding and
/// multicast entries, VLANs, traffic control, packet rules and sysctls.
pub(super) fn of_namespace(place: &str, ns: &NetNs) -> State {
    ns.enter(|| {
        let mut answers = ask_ip(&["-d", "-j", "-batch", "-"], &IP);
        answers.extend(ask_ip(&["-6", "-d", "-j", "-batch", "-"], &IP6));
        for (question, kind) in BRIDGE {
            answers.push((kind, ask_bridge(&question)));
        }
        // The answer is one object, with the entries of all bridges.
        let multicast = ask_bridge(&["mdb", "show"]);
        let entries = multicast.iter().filter_map(|all| all.get("mdb").and_then(Value::as_array));
        answers.push(("multicast entry", entries.flatten().cloned().collect()));
        let mut state = State::new();
        let mut links = Vec::new();
        for (kind, objects) in answers {
            for object in objects {
                if kind == "link" {
                    links.extend(object.get("ifname").and_then(Value::as_str).map(str::to_owned));
                }
                if !is_the_kernels(kind, &object) {
                    state.insert(format!("{place}: {kind}: {}", without_restless(object)));
                }
            }
        }
        state.extend(
            traffic_control(&links).into_iter().map(|line| format!("{place}: traffic control: {line}")),
        );
        state.extend(packet_rules().into_iter().map(|line| format!("{place}: packet rule: {line}")));
        add_sysctls(place, Path::new("/proc/sys/net"), "", &mut state);
        state
    })
    .unwrap()
}

/// Adds the files below `real`, which the plugin sees at `seen`. Empty directories do not count.
pub(super) fn add_files(real: &Path, seen: &Path, state: &mut State) {
    let Ok(entries) = fs::read_dir(real) else { return };
    for entry in entries.map(|entry| entry.unwrap()) {
        let (name, path, seen) = (entry.file_name(), entry.path(), seen.join(entry.file_name()));
        let is_lasting = LASTING_FILES.iter().any(|lasting| name.to_string_lossy().starts_with(lasting));
        if is_lasting || seen == Path::new(OWN_DIRECTORY) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            add_files(&path, &seen, state);
            continue;
        }
        let content = fs::read(&path).unwrap_or_default();
        state.insert(format!("file: {}: {:?}", seen.display(), String::from_utf8_lossy(&content)));
    }
}

/// Asks `ip`, and returns the objects of each answer with their kind.
fn ask_ip<'k>(options: &[&str], questions: &[(&str, &'k str)]) -> Vec<(&'k str, Vec<Value>)> {
    let batch: String = questions.iter().map(|(question, _)| format!("{question}\n")).collect();
    let text = run("ip", options.iter().copied(), &batch);
    let answers = serde_json::Deserializer::from_str(&text).into_iter::<Vec<Value>>();
    let answers: Vec<Vec<Value>> =
        answers.collect::<Result<_, _>>().unwrap_or_else(|err| panic!("ip: {err}: {text}"));
    assert_eq!(answers.len(), questions.len(), "ip has not answered {batch}: {text}");
    questions.iter().map(|(_, kind)| *kind).zip(answers).collect()
}

/// Asks `bridge`, and returns the objects of its answer. There are none if the kernel refuses.
fn ask_bridge(question: &[&str]) -> Vec<Value> {
    let answer = run("bridge", ["-d", "-j"].iter().chain(question).copied(), "");
    serde_json::from_str(&answer).unwrap_or_default()
}

/// Returns whether the kernel makes and removes such an object by itself: IPv6's link-local and multicast addresses and
/// routes, the local table, and what the kernel learns of neighbours.
fn is_the_kernels(kind: &str, object: &Value) -> bool {
    match kind {
        "route" => {
            let is_local = text(object, "table") == "local" && text(object, "protocol") == "kernel";
            let dst = text(object, "dst");
            is_local || dst.starts_with("fe80:") || dst.starts_with("ff00:")
        }
        "neighbour" => {
            let states = object.get("state").and_then(Value::as_array).cloned().unwrap_or_default();
            !states.iter().any(|state| state == "PERMANENT")
        }
        // A learned entry is neither permanent nor static.
        "forwarding entry" => {
            let mac = text(object, "mac");
            let is_multicast = ["33:33:", "01:00:5e:"].iter().any(|prefix| mac.starts_with(prefix));
            is_multicast || !["permanent", "static"].contains(&text(object, "state"))
        }
        "multicast entry" => text(object, "state") != "permanent",
        // With a namespace's first VRF the kernel makes rules that stay (ip-vrf(8)).
        "rule" => object.get("l3mdev").is_some() && text(object, "protocol") == "kernel",
        _ => false,
    }
}

/// Returns the text of an object's key, or an empty one if there is none.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the object without what changes by itself.
fn without_restless(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| !RESTLESS_KEYS.contains(&key.as_str()));
            Value::Object(kept.map(|(key, value)| (key, without_restless(value))).collect())
        }
        Value::Array(list) => {
            let kept = list.into_iter().filter(|entry| !is_restless(entry));
            Value::Array(kept.map(without_restless).collect())
        }
        other => other,
    }
}

/// Returns whether this is a flag that follows the carrier, or a link-local address, which the kernel forms after a link
/// has gone up.
fn is_restless(entry: &Value) -> bool {
    let is_flag = entry.as_str().is_some_and(|flag| RESTLESS_FLAGS.contains(&flag));
    let local = entry.get("local").and_then(Value::as_str).unwrap_or_default();
    is_flag || local.starts_with("fe80:")
}

/// Returns the queueing disciplines, classes and filters of these links, one a line.
fn traffic_control(links: &[String]) -> Vec<String> {
    let mut questions = String::from("qdisc show\n");
    for link in links {
        questions +=
            &format!("class show dev {link}\nfilter show dev {link}\nfilter show dev {link} ingress\n");
    }
    // A link without such a discipline has no filters, which is an error of the question and no fault.
    let answer = run("tc", ["-force", "-batch", "-"], &questions);
    answer.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Returns the rules of nf_tables, and those of legacy iptables where it is in use, one a line. The rules of its variant
/// for nf_tables are among the first.
fn packet_rules() -> Vec<String> {
    let mut lines: Vec<String> =
        run("nft", ["-s", "list", "ruleset"], "").lines().map(str::to_owned).collect();
    for (tables, save) in
        [("ip_tables_names", "iptables-legacy-save"), ("ip6_tables_names", "ip6tables-legacy-save")]
    {
        // A look at a legacy table makes it, so only those that are in use are looked at.
        let names = fs::read_to_string(format!("/proc/thread-self/net/{tables}")).unwrap_or_default();
        if names.is_empty() {
            continue;
        }
        let saved = run(save, [], "");
        let rules = saved.lines().filter(|line| !line.starts_with('#'));
        // The counters of a chain follow its name.
        lines.extend(rules.map(|rule| rule.split(" [").next().unwrap_or_default().to_owned()));
    }
    lines.retain(|line| !line.trim().is_empty());
    lines
}

/// Adds the sysctls below `dir`. Those that can't be read are left out: some can only be written.
fn add_sysctls(place: &str, dir: &Path, below: &str, state: &mut State) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_sysctls(place, &entry.path(), &format!("{name}/"), state);
        } else if let Ok(value) = fs::read_to_string(entry.path())
            && !RESTLESS_SYSCTLS.contains(&name.as_str())
        {
            state.insert(format!("{place}: sysctl: net/{name} = {}", value.trim()));
        }
    }
}

/// Returns the standard output of a program of the machine, which gets `input`.
fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a str>, input: &str) -> String {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin:/usr/bin:/bin";
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|err| panic!("{program}: {err}; the harness looks with iproute2 and nftables"));
    // A program that asks nothing of its input may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
