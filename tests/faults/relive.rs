//! Events right after a DEL for which a child waits: an ADD of the same attachment, the end of its namespace, the end
//! of the machine.

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, LIMIT, Network, Outcome, PATIENCE, Pod, Snapshot, configs, need, plugin_dir,
    run_limited, skip, vm, wait_until,
};

/// The number of cycles after which host and pod are compared with their initial state.
const EVERY: usize = 50;
/// The number of cycles after which the namespace is removed right after the DEL.
const MOVES: usize = 7;

#[test]
fn an_add_right_behind_a_del_finds_nothing_of_it() {
    need!("ip", "nft");
    let host = Host::hasty();
    let mut bridge = one_address(configs::dual(&host));
    bridge["ipMasq"] = json!(true);
    bridge["macspoofchk"] = json!(true);
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8081, "containerPort": 81, "protocol": "tcp", "hostIP": "127.0.0.1"},
    ]);
    let portmap = chained(&bridge, json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}));
    let firewall = chained(&bridge, json!({"type": "firewall", "backend": "nftables"}));
    relive(&host, [bridge, portmap, firewall], "MAC=02:00:00:00:00:07", lives(200), &[]);
}

#[test]
fn an_add_right_behind_a_del_of_ptp_finds_nothing_of_it() {
    need!("ip", "nft");
    let host = Host::hasty();
    let mut ptp = one_address(configs::dual(&host));
    ptp["type"] = json!("ptp");
    ptp["ipMasq"] = json!(true);
    relive(&host, [ptp], "", lives(100), &[]);
}

#[test]
fn an_add_right_behind_a_del_of_bandwidth_finds_nothing_of_it() {
    need!("ip");
    let host = Host::hasty();
    let bridge = one_address(configs::v4(&host));
    let rates = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000,
        "egressRate": 8_000_000, "egressBurst": 8_000_000});
    let bandwidth = chained(&bridge, rates);
    relive(&host, [bridge, bandwidth], "", lives(60), &[]);
}

#[test]
fn adds_right_behind_a_gc_of_many_find_nothing_of_them() {
    const DEAD: usize = 20;
    need!("ip", "strace");
    let host = Host::hasty();
    let mut bridge = configs::v4(&host);
    // For all of them and one living pod. A single lease that is left makes the range full.
    bridge["ipam"]["ranges"][0][0]["rangeStart"] = json!("10.1.2.2");
    bridge["ipam"]["ranges"][0][0]["rangeEnd"] = json!(format!("10.1.2.{}", 2 + DEAD));
    let net = Network::new(&host, bridge);
    let kept = Pod::new();
    let kept = Attachment::new("kept", &kept);
    let result = net.added(&kept);
    let before = host.links();
    let pods: Vec<Pod> = (0..DEAD).map(|_| Pod::new()).collect();
    let gc = |under: &[&str]| {
        let call = net.gc_call(Some(json!([kept.listed()])));
        call.env("CNIMBLE_DEL_WAIT", "0").under(under).run().success();
    };
    for round in 0..lives(4).min(100) {
        for (number, pod) in pods.iter().enumerate() {
            net.added(&Attachment::new(&format!("dead{number}"), pod));
        }
        let links = host.links();
        let dead: Vec<&String> = links.iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(dead.len(), DEAD);
        if round > 0 {
            gc(&[]);
        } else {
            let log = host.dir().join("strace");
            gc(&["strace", "-f", "-qq", "-e", "trace=sendto", "-o", log.to_str().unwrap()]);
            let log = std::fs::read_to_string(log).unwrap();
            let sent = |kind: &str| -> Vec<&str> {
                let lines = log.lines().filter(|line| line.contains(kind));
                lines.map(|line| line.split_once(' ').unwrap().0).collect()
            };
            let (set, removed) = (sent("RTM_SETLINK"), sent("RTM_DELLINK"));
            assert_eq!(set.len(), 1, "one datagram for all: {log}");
            assert!(removed.iter().any(|process| *process != set[0]), "a child sends the request: {log}");
        }
        assert_eq!(there(&host, &dead), Vec::<&String>::new(), "round {round}");
        for pod in &pods {
            assert_eq!(pod.links(), ["lo"], "round {round}");
        }
    }
    net.check(&kept, &result).success();
}

/// The kill also hits the child.
#[test]
fn a_pid_namespace_ends_right_behind_a_del() {
    need!("ip", "unshare");
    let host = Host::hasty();
    let bridge = one_address(configs::dual(&host));
    let alone = ["unshare", "--pid", "--fork", "sh", "-c", "\"$0\"; exit $?"];
    relive(&host, [bridge], "", lives(30).min(1000), &alone);
}

/// `scripts/vm` reports how it ends. A machine that hangs is killed, which is an error.
#[test]
fn a_machine_is_switched_off_right_behind_a_del() {
    if vm::inside() {
        skip!("it takes a machine of its own");
    }
    if let Err(why) = vm::set_up() {
        skip!("{why}");
    }
    let host = Host::new();
    let config = host.dir().join("config");
    std::fs::write(&config, configs::v4(&host).to_string()).unwrap();
    let life = r#"
        touch /run/pod && unshare --net=/run/pod true
        export CNI_PATH=$1 CNI_CONTAINERID=last CNI_IFNAME=eth0 CNI_NETNS=/run/pod CNIMBLE_LOG=info
        CNI_COMMAND=ADD "$1/bridge" <"$2" && CNI_COMMAND=DEL exec "$1/bridge" <"$2""#;
    let mut command = vm::script();
    command.args(["run", "-t", "240", "--", "unshare", "--mount", "sh", "-ec", life, "life"]);
    command.arg(plugin_dir()).arg(&config).env_remove("CNIMBLE_DEL_WAIT");
    let outcome = Outcome::from("the machine", run_limited(&mut command, b"", LIMIT)).success();
    assert!(outcome.stderr.contains("waited for by a child"), "{}", outcome.describe());
}

/// Returns the number of cycles, from `CNIMBLE_LIVES` if it is set.
pub fn lives(otherwise: usize) -> usize {
    std::env::var("CNIMBLE_LIVES").map_or(otherwise, |lives| lives.parse().expect("CNIMBLE_LIVES: a number"))
}

/// Returns the configuration with one address in each range, so that a lease that is left makes it full.
fn one_address(mut config: Value) -> Value {
    for range in config["ipam"]["ranges"].as_array_mut().unwrap() {
        let (_, prefix) = range[0]["subnet"].as_str().unwrap().split_once('.').unwrap_or_default();
        let address = if prefix.is_empty() { "fd00:1:2::2" } else { "10.1.2.2" };
        range[0]["rangeStart"] = json!(address);
        range[0]["rangeEnd"] = json!(address);
    }
    config
}

/// Returns the configuration of a plugin that follows `first` in the chain.
fn chained(first: &Value, mut config: Value) -> Value {
    config["cniVersion"] = first["cniVersion"].clone();
    config["name"] = first["name"].clone();
    config
}

/// Adds and deletes one attachment again and again. Each plugin runs as a process. Nothing happens between the last DEL
/// and the next ADD.
fn relive<const N: usize>(host: &Host, chain: [Value; N], args: &str, lives: usize, under: &[&str]) {
    let chain = chain.map(|config| Network::new(host, config));
    let mut pod = Pod::new();
    let att = |pod: &Pod| Attachment::new("again", pod).args(args);
    let add = |pod: &Pod| {
        chain
            .iter()
            .fold(None, |last, plugin| Some(plugin.call("ADD", &att(pod), last.as_ref()).run().result()))
    };
    let del = |pod: &Pod, result: &Value| {
        for plugin in chain.iter().rev() {
            let call = plugin.call("DEL", &att(pod), Some(result)).env("CNIMBLE_DEL_WAIT", "0");
            call.under(under).run().success();
        }
    };
    // The bridge, its gateway and the tables stay.
    del(&pod, &add(&pod).unwrap());
    let empty = (Snapshot::settled(host), Snapshot::of_ns(&pod));
    let before = host.links();
    let first = add(&pod).unwrap();
    let (links, inside) = (host.links(), pod.links());
    let its: Vec<&String> = links.iter().filter(|name| !before.contains(name)).collect();
    assert!(!its.is_empty(), "{links:?}");
    del(&pod, &first);
    for life in 1..=lives {
        let result = add(&pod).unwrap();
        assert_eq!(told(&result), told(&first), "life {life}");
        assert_eq!((host.links(), pod.links()), (links.clone(), inside.clone()), "life {life}");
        del(&pod, &result);
        assert_eq!(there(host, &its), Vec::<&String>::new(), "life {life}");
        if life % EVERY == 0 || life == lives {
            assert_eq!(pod.links(), ["lo"], "life {life}");
            empty.0.assert_same(&Snapshot::settled(host), "after its lives");
            empty.1.assert_same(&Snapshot::of_ns(&pod), "after its lives");
        }
        if life % MOVES == 0 {
            pod = moved(host, pod);
        }
    }
}

/// Returns the interfaces, addresses and routes of a result. The MAC addresses of the host's ends are random, and the
/// namespace changes.
fn told(result: &Value) -> Value {
    let interfaces = result["interfaces"].as_array().unwrap().iter();
    let names: Vec<&Value> = interfaces.map(|interface| &interface["name"]).collect();
    json!([names, result["ips"], result["routes"]])
}

/// Returns the interfaces that exist, with one system call for each name.
fn there<'n>(host: &Host, names: &[&'n String]) -> Vec<&'n String> {
    let is_there = |name: &&&String| match if_nametoindex(name.as_str()) {
        Ok(_) => true,
        Err(Errno::ENODEV) => false,
        Err(errno) => panic!("{name}: {errno}"),
    };
    host.within(|| names.iter().filter(is_there).copied().collect())
}

/// Replaces the namespace. An interface in it, which is removed with the namespace, shows when it is gone.
fn moved(host: &Host, pod: Pod) -> Pod {
    host.ip(&format!("link add canary type veth peer name canary netns {}", pod.path()));
    drop(pod);
    assert!(
        wait_until(PATIENCE, || !host.links().contains(&"canary".to_owned())),
        "the kernel doesn't get done with the namespace"
    );
    Pod::new()
}
