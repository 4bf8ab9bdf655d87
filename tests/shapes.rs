//! Calls in the shapes that real runtimes send: podman, containerd, CRI-O, cri-dockerd,
//! ctr and the kubelet above them, as seen in their call logs.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use cnimble_tests::{Attachment, Host, Network, Ns, PATIENCE, Pod, Snapshot, configs, need, wait_until};
use serde_json::{Value, json};

/// Everything that leaves something on the host.
fn everything<'h>(host: &'h Host, version: &str) -> Network<'h> {
    Network::new(host, configs::dual(host))
        .with("/cniVersion", json!(version))
        .with("/ipMasq", json!(true))
        .with("/macspoofchk", json!(true))
}

fn known_versions() -> impl Iterator<Item = &'static str> {
    configs::VERSIONS.iter().copied().filter(|version| *version <= configs::newest())
}

/// What of the host must be as before when a pod has gone.
fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip")
}

/// A host with tables, bridge and a pod that stays, which must never be affected.
struct Node {
    host: Host,
    neighbour: Pod,
}

impl Node {
    fn new() -> Self {
        let host = Host::hasty();
        let neighbour = Pod::new();
        everything(&host, configs::newest()).added(&Attachment::new("neighbour", &neighbour));
        Node { host, neighbour }
    }
}

/// One way to take a pod down: what happens to its namespace first, and the calls.
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
    /// The real path; whether there still is something depends on `namespace_stays`.
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
                // The kernel takes a namespace apart in its own time.
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
                // prevResult came with 0.4.0.
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
    // On a fresh host, and where the network exists.
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
        // Neither a directory nor a bridge nor a table comes from a DEL.
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
    // The path of a dead pod's namespace, which is another pod's by now.
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
    // The pair is there, but doesn't say yet whose it is.
    node.host.ip(&format!("link add {name} type veth peer name other"));
    net.deleted(&att.clone().netns(""), None);
    before.assert_same(&state(&node.host), "after DEL");
    // This one does.
    node.host.ip(&format!("link add {name} type veth peer name other"));
    node.host.ip(&format!("link set {name} alias 0123456789abcdef-0123456789abcdef"));
    net.deleted(&att.netns(""), None);
    assert!(node.host.links().contains(&name.to_owned()));
}

#[test]
fn loopback_as_containerd_and_dockershim_call_it() {
    need!("ip");
    let host = Host::hasty();
    let up = |pod: &Ns| {
        let flags = pod.link("lo")["flags"].clone();
        flags.as_array().unwrap().contains(&json!("UP"))
    };
    // (version, CNI_IFNAME)
    for (version, ifname) in [("0.3.1", "lo"), ("0.2.0", "eth0"), ("0.2.0", "lo"), ("1.0.0", "eth0")] {
        let pod = Pod::new();
        pod.ip("link set lo down");
        let net =
            Network::new(&host, json!({"cniVersion": version, "name": "cni-loopback", "type": "loopback"}));
        let att = Attachment::new("one", &pod).ifname(ifname).args("no args at all;==");
        let call = net.call("ADD", &att, None).unset("PATH");
        let result = call.run().result();
        assert!(up(&pod), "{version} {ifname}");
        if version >= "0.3.0" {
            assert_eq!(result["interfaces"][0]["name"], "lo", "{result:#}");
        } else {
            assert_eq!(result["ip4"]["ip"], "127.0.0.1/8", "{result:#}");
        }
        net.call("DEL", &att, None).unset("PATH").run().success();
        assert!(!up(&pod));
        for gone in ["", "/var/run/netns/gone", "/proc/4194304/ns/net"] {
            net.call("DEL", &att.clone().netns(gone), None).run().success();
        }
    }
}

/// go-cni marshals structs without JSON tags: every key begins with a capital.
#[test]
fn runtime_config_with_capitals() {
    need!("ip");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::v4(&host)).with("/ipam/ranges", json!([]));
    let net = net.with(
        "/runtimeConfig",
        json!({
            "PortMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}],
            "portMappings": [],
            "bandwidth": {"IngressRate": 1000000, "IngressBurst": 4294967295_u64, "EgressRate": 0, "EgressBurst": 34359738359_u64},
            "dns": {"Servers": ["192.0.2.53"], "Searches": ["a.example"], "Options": ["ndots:5"]},
            "ipRanges": [[{"Subnet": "10.77.0.0/24", "RangeStart": "10.77.0.20", "RangeEnd": "10.77.0.30", "Gateway": "10.77.0.9"}]],
            "cgroupPath": "/kubepods/pod1",
            "io.kubernetes.cri.pod-annotations": {"a": "b"},
        }),
    );
    let att = Attachment::new("one", &pod)
        .args("K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=0a1b;K8S_POD_INFRA_CONTAINER_ID=one;K8S_POD_NAMESPACE=default");
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.77.0.20/24", "{result:#}");
    assert_eq!(result["ips"][0]["gateway"], "10.77.0.9", "{result:#}");
    net.check(&att, &result).success();
    net.deleted(&att, Some(&result));
}

#[test]
fn keys_in_any_case_and_the_exact_one_wins() {
    need!("ip");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(
        &host,
        json!({
            "CNIVersion": configs::newest(), "NAME": "shouting", "Type": "bridge", "type": "bridge",
            "BRIDGE": "br7", "IsGateway": true, "MTU": 1400,
            "IPAM": {"TYPE": "host-local", "DataDir": host.data_dir(), "Subnet": "10.66.0.0/24", "subnet": "10.67.0.0/24"},
        }),
    );
    let att = Attachment::new("one", &pod);
    let result = net.added(&att);
    assert_eq!(result["ips"][0]["address"], "10.67.0.2/24", "{result:#}");
    assert_eq!(host.addrs("br7"), ["10.67.0.1/24"]);
    assert_eq!(host.link("br7")["mtu"], 1400);
    net.deleted(&att, Some(&result));
}

#[test]
fn null_and_empty_stand_for_absent() {
    need!("ip", "nft");
    let host = Host::hasty();
    let nothing = json!({
        "args": null, "dns": {}, "runtimeConfig": null, "capabilities": null, "prevResult": null,
        "mtu": null, "bridge": "br0", "isDefaultGateway": null, "vlan": null, "vlanTrunk": null, "ipMasqBackend": "",
        "hairpinMode": null,
    });
    let mut net = Network::new(&host, configs::v4(&host));
    for (key, value) in nothing.as_object().unwrap() {
        net = net.with(&format!("/{key}"), value.clone());
    }
    for key in ["rangeStart", "rangeEnd", "gateway", "subnet"] {
        net = net.with(&format!("/ipam/{key}"), json!(null));
    }
    net = net.with("/ipam/resolvConf", json!(""));
    net = net.with("/ipam/routes", json!(null));
    for args in
        [json!(null), json!({}), json!({"cni": null}), json!({"cni": {}}), json!({"cni": {"ips": null}})]
    {
        let pod = Pod::new();
        let net = net.with("/args", args.clone());
        let att = Attachment::new("one", &pod);
        let result = net.added(&att);
        assert!(result["routes"].as_array().is_none_or(Vec::is_empty), "{result:#}");
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
    }
}

#[test]
fn addresses_and_macs_that_runtimes_ask_for() {
    need!("ip");
    let host = Host::hasty();
    let net = Network::new(&host, configs::dual(&host));
    let ask = |net: &Network<'_>, args: &str| -> (Vec<String>, String) {
        let pod = Pod::new();
        let att = Attachment::new("one", &pod).args(args);
        let result = net.added(&att);
        let addresses = result["ips"].as_array().unwrap();
        let addresses = addresses.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect();
        net.check(&att, &result).success();
        net.deleted(&att, Some(&result));
        (addresses, result["interfaces"][2]["mac"].as_str().unwrap().to_owned())
    };
    // podman --ip and --mac-address, in any order, with and without a mask.
    let mac = "02:00:00:00:00:42";
    for args in [
        format!("IgnoreUnknown=1;IP=10.1.2.42;MAC={mac}"),
        format!("MAC={mac};IP=10.1.2.42/16;IgnoreUnknown=true"),
    ] {
        let (addresses, got) = ask(&net, &args);
        assert_eq!(addresses[0], "10.1.2.42/24", "{args}");
        assert_eq!(got, mac, "{args}");
    }
    // Two families come as the ips capability.
    let ips = json!({"ips": ["10.1.2.50/24", "fd00:1:2::50/64"], "mac": mac});
    let (addresses, _) = ask(&net.with("/runtimeConfig", ips), "");
    assert_eq!(addresses, ["10.1.2.50/24", "fd00:1:2::50/64"]);
    let ips: Value = json!({"cni": {"ips": ["10.1.2.51", "fd00:1:2::51"]}});
    let (addresses, _) = ask(&net.with("/args", ips), "");
    assert_eq!(addresses, ["10.1.2.51/24", "fd00:1:2::51/64"]);
    // ctr passes an empty string.
    ask(&net, "");
}
