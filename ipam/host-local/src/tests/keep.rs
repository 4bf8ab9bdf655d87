//! `keepFor`: a pod of the same name gets the address again.

use std::os::unix::fs::symlink;
use std::time::{SystemTime, UNIX_EPOCH};

use cnimble_cni::Code;

use super::*;

const FILE: &str = ".cnimble-kept";

fn keeping(subnet: &str) -> Node {
    Node::new(json!({ "subnet": subnet, "keepFor": 60 }))
}

fn args(pod: &str) -> String {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=7")
}

fn try_add(node: &Node, id: &str, pod: &str) -> Result<Vec<String>, Error> {
    let mut call = node.call(Command::Add, id, "eth0");
    call.raw_args = args(pod);
    HostLocal.add(&call).map(|result| addresses(&result))
}

fn add(node: &Node, id: &str, pod: &str) -> String {
    try_add(node, id, pod).unwrap().join(" ")
}

/// With the result of the ADD, as runtimes call it.
fn del(node: &mut Node, id: &str, pod: &str, ips: &str) {
    let ips: Vec<Value> = ips.split(' ').map(|ip| json!({ "address": format!("{ip}/29") })).collect();
    let extra = json!({ "prevResult": { "cniVersion": "1.0.0", "ips": ips } });
    let before = std::mem::replace(&mut node.extra, extra);
    let mut call = node.call(Command::Del, id, "eth0");
    call.raw_args = args(pod);
    HostLocal.del(&call).unwrap();
    node.extra = before;
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn kept(node: &Node) -> Vec<String> {
    let text = fs::read_to_string(node.store().join(FILE)).unwrap_or_default();
    text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn a_pod_of_the_same_name_gets_the_address_again() {
    let mut node = keeping("10.0.0.0/28");
    assert_eq!(add(&node, "a", "web-0"), "10.0.0.2");
    assert_eq!(add(&node, "b", "web-1"), "10.0.0.3");
    del(&mut node, "a", "web-0", "10.0.0.2");
    del(&mut node, "b", "web-1", "10.0.0.3");
    assert_eq!(kept(&node), ["default/web-1/eth0 10.0.0.3", "default/web-0/eth0 10.0.0.2"]);
    assert_eq!(add(&node, "c", "web-0"), "10.0.0.2");
    // The turn doesn't go back to the address that web-1 waits for.
    assert_eq!(add(&node, "d", "other"), "10.0.0.4");
    assert_eq!(add(&node, "e", "web-1"), "10.0.0.3");
    assert_eq!(add(&node, "f", "another"), "10.0.0.5");
    // The second DEL finds no lease, and forgets nothing.
    for _ in 0..2 {
        del(&mut node, "c", "web-0", "10.0.0.2");
    }
    assert_eq!(add(&node, "g", "web-0"), "10.0.0.2");
}

#[test]
fn both_families_and_each_interface_are_remembered() {
    let ranges = json!([[{ "subnet": "10.0.0.0/29" }], [{ "subnet": "fd00::/64" }]]);
    let mut node = Node::new(json!({ "ranges": ranges, "keepFor": 60 }));
    assert_eq!(add(&node, "a", "web-0"), "10.0.0.2 fd00::2");
    del(&mut node, "a", "web-0", "10.0.0.2 fd00::2");
    // The IPv6 address has another owner by now.
    node.put("fd00::2", b"x\r\neth0");
    let mut call = node.call(Command::Add, "b", "eth1");
    call.raw_args = args("web-0");
    assert_eq!(addresses(&HostLocal.add(&call).unwrap()), ["10.0.0.3", "fd00::3"]);
    assert_eq!(add(&node, "b", "web-0"), "10.0.0.2 fd00::4");
}

#[test]
fn without_the_key_or_the_name_nothing_is_remembered() {
    for (keep_for, pod) in [
        (json!(0), "web-0"),
        (Value::Null, "web-0"),
        (json!(60), "/web-0"),
        (json!(60), "default/"),
        (json!(60), "default/web/0"),
        (json!(60), "default/web 0"),
        (json!(60), "default/web\n0"),
    ] {
        let mut node = Node::small();
        if !keep_for.is_null() {
            node.ipam["keepFor"] = keep_for;
        }
        add(&node, "a", pod);
        del(&mut node, "a", pod, "10.0.0.2");
        assert_eq!(node.names(), ["last_reserved_ip.0", "lock"], "{pod:?}");
        assert_eq!(add(&node, "a", pod), "10.0.0.3", "{pod:?}");
    }
    let mut node = keeping("10.0.0.0/29");
    node.add("a").unwrap();
    node.del("a");
    // The result of the ADD is missing after a failed ADD.
    add(&node, "b", "web-0");
    node.extra = json!({});
    let mut call = node.call(Command::Del, "b", "eth0");
    call.raw_args = args("web-0");
    HostLocal.del(&call).unwrap();
    // DEL works with any configuration.
    node.ipam["keepFor"] = json!("long");
    assert_eq!(node.add("c").unwrap_err().code, Code::INVALID_CONFIG);
    del(&mut node, "c", "web-0", "10.0.0.3");
    assert_eq!(node.names(), ["last_reserved_ip.0", "lock"]);
}

#[test]
fn a_remembered_address_is_given_only_if_it_is_free_and_in_turn() {
    let mut node = keeping("10.0.0.0/28");
    node.ipam["exclude"] = json!(["10.0.0.9"]);
    node.put("10.0.0.5", b"x\r\neth0");
    let lines = [
        ("taken", "10.0.0.5", "10.0.0.2"),
        ("gateway", "10.0.0.1", "10.0.0.3"),
        ("excluded", "10.0.0.9", "10.0.0.4"),
        ("outside", "10.1.0.9 fd00::9", "10.0.0.6"),
        ("free", "10.0.0.8", "10.0.0.8"),
        ("second", "10.0.0.1 10.0.0.10", "10.0.0.10"),
    ];
    let text = lines.map(|(pod, ips, _)| format!("{} default/{pod}/eth0 {ips}\n", now() - 10));
    node.put(FILE, text.concat().as_bytes());
    for (pod, _, expected) in lines {
        assert_eq!(add(&node, pod, pod), expected, "{pod}");
    }
    node.del("free");
    // Another namespace, and a wish.
    assert_eq!(add(&node, "other", "system/free"), "10.0.0.7");
    node.extra = json!({ "args": { "cni": { "ips": ["10.0.0.12"] } } });
    assert_eq!(add(&node, "wish", "free"), "10.0.0.12");
}

#[test]
fn an_address_is_remembered_for_as_long_as_the_key_says() {
    for (released, expected) in [(now() - 50, true), (now() - 60, false), (now() + 1000, false), (0, false)] {
        let mut node = keeping("10.0.0.0/28");
        node.put(FILE, format!("{released} default/web-0/eth0 10.0.0.9\n").as_bytes());
        assert_eq!(add(&node, "a", "web-0") == "10.0.0.9", expected, "{released}");
        // Any DEL drops it.
        add(&node, "b", "other");
        let ip = fs::read_dir(node.store()).unwrap().find_map(|entry| {
            let entry = entry.unwrap();
            (fs::read(entry.path()).unwrap() == b"b\r\neth0")
                .then(|| entry.file_name().into_string().unwrap())
        });
        del(&mut node, "b", "other", &ip.unwrap());
        assert_eq!(kept(&node).len(), 1 + usize::from(expected), "{released}");
    }
}

#[test]
fn the_memory_has_a_limit_and_the_oldest_go() {
    let mut node = keeping("10.0.0.0/28");
    let lines = (0..5000).map(|n| format!("{} default/old-{n}/eth0 10.0.0.9\n", now() - 20));
    node.put(FILE, lines.collect::<String>().as_bytes());
    add(&node, "a", "web-0");
    del(&mut node, "a", "web-0", "10.0.0.2");
    let length = fs::metadata(node.store().join(FILE)).unwrap().len();
    assert!((60_000..=65_536).contains(&length), "{length}");
    let kept = kept(&node);
    assert_eq!(kept[0], "default/web-0/eth0 10.0.0.2");
    assert_eq!(kept[1], "default/old-0/eth0 10.0.0.9");
}

#[test]
fn a_damaged_or_foreign_memory_is_no_error() {
    let line = format!("{} default/web-0/eth0 ", now());
    for content in [
        vec![0; 4096],
        b"\xff\xfe\n\n \n".to_vec(),
        format!("{line}10.0.0.300\n").into_bytes(),
        format!("{line}10.0.0.9 lots\n{line}\n").into_bytes(),
        b"-1 default/web-0/eth0 10.0.0.9\n7".to_vec(),
        vec![b'x'; 1 << 20],
    ] {
        let mut node = keeping("10.0.0.0/28");
        node.put(FILE, &content);
        assert_eq!(add(&node, "a", "web-0"), "10.0.0.2");
        del(&mut node, "a", "web-0", "10.0.0.2");
        assert_eq!(kept(&node), ["default/web-0/eth0 10.0.0.2"]);
        assert_eq!(add(&node, "b", "web-0"), "10.0.0.2");
    }
    for kind in ["link", "directory", "pipe"] {
        let mut node = keeping("10.0.0.0/28");
        let secret = node.dir.path().join("secret");
        fs::write(&secret, format!("{line}10.0.0.9\n")).unwrap();
        node.put("notes", b"");
        let at = node.store().join(FILE);
        match kind {
            "link" => symlink(&secret, &at).unwrap(),
            "directory" => fs::create_dir(&at).unwrap(),
            _ => nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        assert_eq!(add(&node, "a", "web-0"), "10.0.0.2", "{kind}");
        del(&mut node, "a", "web-0", "10.0.0.2");
        assert_eq!(fs::read_to_string(&secret).unwrap(), format!("{line}10.0.0.9\n"), "{kind}");
        let again = if kind == "directory" { "10.0.0.3" } else { "10.0.0.2" };
        assert_eq!(add(&node, "b", "web-0"), again, "{kind}");
        assert!(!node.names().iter().any(|name| cnimble_leases::is_temporary(name)), "{kind}");
    }
}

#[test]
fn the_memory_leaves_the_index_true() {
    let mut node = keeping("10.0.0.0/24");
    for n in 0..80 {
        add(&node, &format!("c{n}"), &format!("web-{n}"));
    }
    let is_believed = |node: &Node| {
        let dir = cnimble_leases::store::Directory::open(&node.store()).unwrap().unwrap();
        !dir.leases_of("c1", &[]).unwrap().are_all()
    };
    for n in 0..4 {
        assert!(is_believed(&node), "{n}");
        del(&mut node, &format!("c{n}"), &format!("web-{n}"), &format!("10.0.0.{}", n + 2));
        assert!(is_believed(&node), "{n}");
        assert_eq!(add(&node, &format!("d{n}"), &format!("web-{n}")), format!("10.0.0.{}", n + 2));
    }
}
