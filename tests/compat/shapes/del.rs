//! DEL in every shape: with and without `prevResult` and namespace, repeated, for attachments that never existed and
//! for those of a killed ADD.

use serde_json::json;

use cnimble_tests::{Attachment, Host, PATIENCE, Pod, configs, need, wait_until};

use super::{Node, everything, known_versions, state};

/// A way to delete a pod: the fate of its namespace, and the calls.
struct Teardown {
    name: &'static str,
    namespace_stays: bool,
    calls: &'static [Del],
}

struct Del {
    netns: Netns,
    prev: bool,
}

enum Netns {
    Real,
    Empty,
    /// The real path. `namespace_stays` decides whether the namespace still exists.
    MissingFile,
    DeadProcess,
    RegularFile,
}

const fn del(netns: Netns, prev: bool) -> Del {
    Del { netns, prev }
}

const TEARDOWNS: &[Teardown] = &[
    Teardown {
        name: "with everything, then empty and without prevResult (kubelet on containerd)",
        namespace_stays: true,
        calls: &[
            del(Netns::Real, true),
            del(Netns::Empty, false),
            del(Netns::Empty, false),
            del(Netns::Empty, false),
            del(Netns::Empty, false),
        ],
    },
    Teardown { name: "without prevResult", namespace_stays: true, calls: &[del(Netns::Real, false)] },
    Teardown {
        name: "empty with prevResult, namespace gone (containerd)",
        namespace_stays: false,
        calls: &[del(Netns::Empty, true)],
    },
    Teardown {
        name: "empty with prevResult, namespace still there",
        namespace_stays: true,
        calls: &[del(Netns::Empty, true)],
    },
    Teardown {
        name: "always empty (ctr), namespace gone",
        namespace_stays: false,
        calls: &[del(Netns::Empty, false), del(Netns::Empty, false)],
    },
    Teardown {
        name: "always empty, namespace still there",
        namespace_stays: true,
        calls: &[del(Netns::Empty, false)],
    },
    Teardown {
        name: "the real path, namespace gone",
        namespace_stays: false,
        calls: &[del(Netns::Real, true), del(Netns::Real, false)],
    },
    Teardown {
        name: "a file that is gone (CRI-O)",
        namespace_stays: false,
        calls: &[del(Netns::MissingFile, true)],
    },
    Teardown {
        name: "a file that is gone, without prevResult (CRI-O after a failed ADD)",
        namespace_stays: false,
        calls: &[del(Netns::MissingFile, false)],
    },
    Teardown {
        name: "the namespace of a dead process (cri-dockerd)",
        namespace_stays: false,
        calls: &[del(Netns::DeadProcess, false), del(Netns::DeadProcess, true)],
    },
    Teardown {
        name: "a path that is no namespace",
        namespace_stays: false,
        calls: &[del(Netns::RegularFile, true)],
    },
    Teardown {
        name: "a path that is no namespace, without prevResult, namespace still there",
        namespace_stays: true,
        calls: &[del(Netns::RegularFile, false)],
    },
];

#[test]
fn del_in_every_shape() {
    need!("ip", "nft", "ping");
    let node = Node::new();
    let file = node.host.dir().join("file");
    std::fs::write(&file, "no namespace").unwrap();
    let dead = {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        format!("/proc/{}/ns/net", child.id())
    };
    let before = state(&node.host);
    let mut failures = Vec::new();
    for version in known_versions() {
        for teardown in TEARDOWNS {
            let what = format!("{version}, {}", teardown.name);
            let net = everything(&node.host, version);
            let pod = Pod::new();
            let att = Attachment::new("gone-soon", &pod);
            let result = net.added(&att);
            let veths: Vec<String> = node
                .host
                .links()
                .into_iter()
                .filter(|name| !before.to_string().contains(name.as_str()))
                .collect();
            let kept = if teardown.namespace_stays {
                Some(pod)
            } else {
                drop(pod);
                // The kernel removes a namespace after some time.
                wait_until(PATIENCE, || {
                    let links = node.host.links();
                    !veths.iter().any(|veth| links.contains(veth))
                });
                None
            };
            for call in teardown.calls {
                let att = match call.netns {
                    Netns::Real => att.clone(),
                    Netns::Empty => att.clone().netns(""),
                    Netns::MissingFile => att.clone().netns("/var/run/netns/cni-6d1c86a2-gone"),
                    Netns::DeadProcess => att.clone().netns(&dead),
                    Netns::RegularFile => att.clone().netns(file.to_str().unwrap()),
                };
                // prevResult was introduced in 0.4.0.
                let prev = (call.prev && version >= "0.4.0").then_some(&result);
                let outcome = net.del(&att, prev);
                if outcome.status != 0 || !outcome.stdout.is_empty() {
                    failures.push(format!("{what}: {}", outcome.describe()));
                }
            }
            let diff = before.diff(&state(&node.host));
            if !diff.is_empty() {
                failures.push(format!("{what}: left behind:\n{diff}"));
                net.del(&att, Some(&result));
            }
            if let Some(pod) = kept
                && pod.links() != ["lo"]
            {
                failures.push(format!("{what}: the pod has {:?}", pod.links()));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures: {}", failures.len(), failures.join("\n"));
    assert!(node.neighbour.pings("10.1.2.1"), "the neighbour is not affected");
}

/// A recycled process ID can make the path of a dead pod lead to the host itself.
#[test]
fn del_never_touches_the_host_s_own_interfaces() {
    need!("ip", "nft");
    let node = Node::new();
    let pod = Pod::new();
    node.host.cable("eth0", &pod, "peer");
    let net = everything(&node.host, configs::newest());
    let before = state(&node.host);
    let own = Attachment::new("other", &node.host);
    net.del(&own, None);
    before.assert_same(&state(&node.host), "after DEL in the host's own namespace");
}

#[test]
fn del_with_a_prev_result_that_cant_be_read() {
    need!("ip", "nft");
    for prev in [json!("x"), json!({"cniVersion": "9.9.9"}), json!({"ips": [{"address": "banana"}]})] {
        let host = Host::new();
        let pod = Pod::new();
        let net = everything(&host, "1.1.0");
        let att = Attachment::new("one", &pod);
        let before = state(&host);
        net.added(&att);
        net.deleted(&att, Some(&prev));
        let left = before.diff(&state(&host));
        assert!(!left.contains("veth") && !left.contains("id: one"), "{prev}: {left}");
        assert_eq!(pod.links(), ["lo"]);
    }
}

#[test]
fn del_of_what_never_was() {
    need!("ip", "nft");
    // On a fresh host, and on one with the network.
    for fresh in [true, false] {
        let node = if fresh { None } else { Some(Node::new()) };
        let empty;
        let host = match &node {
            Some(node) => &node.host,
            None => {
                empty = Host::hasty();
                &empty
            }
        };
        let before = state(host);
        for version in known_versions() {
            let net = everything(host, version);
            let pod = Pod::new();
            net.deleted(&Attachment::new("never", &pod), None);
            net.deleted(&Attachment::new("never", &pod).netns(""), None);
        }
        let after = state(host);
        // A DEL creates neither a directory nor a bridge nor a table.
        before.assert_same(&after, &format!("fresh {fresh}"));
    }
}

#[test]
fn del_after_a_failed_add() {
    need!("ip", "nft");
    let node = Node::new();
    let net = everything(&node.host, configs::newest());
    let before = state(&node.host);
    let pod = Pod::new();
    pod.ip("link add eth0 type veth peer name other");
    let att = Attachment::new("refused", &pod);
    net.add(&att).error();
    before.assert_same(&state(&node.host), "after the failed ADD");
    assert_eq!(pod.links(), ["eth0", "lo", "other"]);
    let after_del = att.netns("");
    net.deleted(&after_del, None);
    before.assert_same(&state(&node.host), "after its DEL");
}

#[test]
fn del_leaves_what_only_has_the_name() {
    need!("ip", "nft");
    let node = Node::new();
    let net = everything(&node.host, configs::newest());
    // An ADD that failed because the name was taken, and the runtime's DEL after it.
    let pod = Pod::new();
    pod.ip("link add eth0 type bridge");
    let att = Attachment::new("refused", &pod);
    net.add(&att).error();
    net.deleted(&att, None);
    assert_eq!(pod.links(), ["eth0", "lo"]);
    // The path of a dead pod's namespace, which now belongs to another pod.
    let (dead, alive) = (Pod::new(), Pod::new());
    let att = Attachment::new("dead", &dead);
    let result = net.added(&att);
    node.host.ip(&format!("link del {}", result["interfaces"][1]["name"].as_str().unwrap()));
    alive.ip("link add eth0 type veth peer name other");
    net.deleted(&att.netns(alive.path()), Some(&result));
    assert_eq!(alive.links(), ["eth0", "lo", "other"]);
}

#[test]
fn del_after_an_add_that_was_killed_early() {
    need!("ip", "nft");
    let node = Node::new();
    let net = everything(&node.host, configs::newest());
    let pod = Pod::new();
    let att = Attachment::new("killed", &pod);
    let result = net.added(&att);
    let name = result["interfaces"][1]["name"].as_str().unwrap();
    net.deleted(&att, Some(&result));
    let before = state(&node.host);
    // The pair exists, but does not name its owner yet.
    node.host.ip(&format!("link add {name} type veth peer name other"));
    net.deleted(&att.clone().netns(""), None);
    before.assert_same(&state(&node.host), "after DEL");
    // This pair names another owner.
    node.host.ip(&format!("link add {name} type veth peer name other"));
    node.host.ip(&format!("link set {name} alias 0123456789abcdef-0123456789abcdef"));
    net.deleted(&att.netns(""), None);
    assert!(node.host.links().contains(&name.to_owned()));
}
