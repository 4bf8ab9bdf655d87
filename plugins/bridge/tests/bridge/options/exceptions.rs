//! `ipMasqExclude` and `ipMasqAddress` with real packets, of bridge and ptp, in either backend.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_plugin::{Aim, Examination, Plugin};
use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Attachment, Host, Network, Ns, Pod, configs, need, need_recent_go, plugin_dir};

static PLUGINS: [&dyn Plugin; 1] = [cnimble_bridge::PLUGIN];
const PORT: u16 = 7000;
/// Behind the host, which has the addresses that end in 1 and 9.
const NEAR: [&str; 2] = ["192.0.2.2", "2001:db8:2::2"];
const EXCLUDED: [&str; 2] = ["198.51.100.2", "2001:db8:3::2"];

/// A network outside, with a way back to the pods.
fn outside(host: &Host) -> Ns {
    let outside = Ns::new();
    host.cable("uplink", &outside, "eth0");
    for ip in ["192.0.2.1/24", "192.0.2.9/24"] {
        host.ip(&format!("addr add {ip} dev uplink"));
    }
    host.ip("addr add 2001:db8:2::1/64 dev uplink nodad");
    // The kernel prefers the first.
    host.ip("addr add 2001:db8:2::9/64 dev uplink nodad preferred_lft 0");
    for ip in ["192.0.2.2/24", "198.51.100.2/32"] {
        outside.ip(&format!("addr add {ip} dev eth0"));
    }
    for ip in ["2001:db8:2::2/64", "2001:db8:3::2/128"] {
        outside.ip(&format!("addr add {ip} dev eth0 nodad"));
    }
    outside.ip("link set lo up");
    host.ip("route add 198.51.100.0/24 via 192.0.2.2");
    host.ip("-6 route add 2001:db8:3::/64 via 2001:db8:2::2");
    outside.ip("route add 10.1.2.0/24 via 192.0.2.1");
    outside.ip("-6 route add fd00:1:2::/64 via 2001:db8:2::1");
    outside
}

fn network<'h>(host: &'h Host, plugins: &Path, kind: &str, backend: &str) -> Network<'h> {
    Network::by(plugins, host, configs::dual(host))
        .with("/type", json!(kind))
        .with("/ipMasq", json!(true))
        .with("/ipMasqBackend", json!(backend))
}

/// The sources of the pod's packets to these destinations, seen there.
fn seen(pod: &Pod, to: [&str; 2]) -> [String; 2] {
    to.map(|to| {
        let to = if to.contains(':') { format!("[{to}]:{PORT}") } else { format!("{to}:{PORT}") };
        tcp(pod, &to).unwrap_or_else(|err| panic!("{to} does not answer: {err}")).replace("outside ", "")
    })
}

fn own(result: &Value) -> [String; 2] {
    [0, 1].map(|n| result["ips"][n]["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
}

fn exclude() -> Value {
    json!(["198.51.100.0/24", "203.0.113.7", "2001:db8:3::/64"])
}

const ADDRESSES: [&str; 2] = ["192.0.2.9", "2001:db8:2::9"];

/// What a pod keeps and what it gets.
#[test]
fn excluded_prefixes_see_the_pod_and_others_the_address() {
    need!("ip", "nft", "iptables");
    for (kind, backend) in
        [("bridge", "nftables"), ("bridge", "iptables"), ("ptp", "nftables"), ("ptp", "iptables")]
    {
        let case = format!("{kind} {backend}");
        let (host, pod) = (Host::new(), Pod::new());
        let outside = outside(&host);
        let _server = Server::start(&outside, PORT, "outside");
        let plain = network(&host, plugin_dir(), kind, backend);
        let net = plain.with("/ipMasqExclude", exclude());
        let both = net.with("/ipMasqAddress", json!(ADDRESSES));
        let attachment = Attachment::new("one", &pod);
        for (net, near) in [(&net, ["192.0.2.1", "2001:db8:2::1"]), (&both, ADDRESSES)] {
            let result = net.added(&attachment);
            assert_eq!(seen(&pod, NEAR), near, "{case}");
            assert_eq!(seen(&pod, EXCLUDED), own(&result), "{case}");
            net.check(&attachment, &result).success();
            let other = net.with("/ipMasqExclude", json!(["203.0.113.0/24"]));
            let err = other.check(&attachment, &result).error();
            assert!(err.code == 103 && err.msg.contains("masquerade of "), "{case}: {err:?}");
            // DEL with another configuration.
            plain.with("/ipMasq", json!(false)).deleted(&attachment, Some(&result));
            assert_clean(&host, &case);
        }
        let result = both.added(&attachment);
        // The namespace is gone with the pod, and the runtime knows nothing.
        both.with("/ipMasqExclude", json!([])).gc(Some(json!([]))).success();
        assert_clean(&host, &case);
        both.deleted(&attachment, Some(&result));
    }
}

#[track_caller]
fn assert_clean(host: &Host, case: &str) {
    let left = host.nft("list ruleset");
    let is_ours =
        |line: &&str| ["10.1.2.", "fd00:", "CNI-", "masq", "snat"].iter().any(|part| line.contains(part));
    let left: Vec<&str> = left.lines().filter(is_ours).collect();
    assert!(left.is_empty(), "{case}: {left:#?}");
}

/// The Go plugins translate everything to the address of the way out.
#[test]
fn the_go_plugins_ignore_the_keys() {
    need_recent_go!(go, "ip", "iptables");
    for kind in ["bridge", "ptp"] {
        let (host, pod) = (Host::new(), Pod::new());
        let outside = outside(&host);
        let _server = Server::start(&outside, PORT, "outside");
        let net = network(&host, go, kind, "iptables");
        let net = net.with("/ipMasqExclude", exclude()).with("/ipMasqAddress", json!(ADDRESSES));
        let attachment = Attachment::new("one", &pod);
        let result = net.added(&attachment);
        assert_eq!(seen(&pod, NEAR), ["192.0.2.1", "2001:db8:2::1"], "{kind}");
        assert_eq!(seen(&pod, EXCLUDED), ["192.0.2.1", "2001:db8:2::1"], "{kind}");
        // Ours takes the pod over: CHECK misses the exceptions, and DEL leaves nothing.
        let ours = net.served_by(plugin_dir());
        assert_eq!(ours.check(&attachment, &result).error().code, 103);
        ours.deleted(&attachment, Some(&result));
        let left = host.nft("list ruleset");
        assert!(!left.contains("10.1.2.2") && !left.contains("fd00:"), "{left}");
    }
}

/// Both keys may be for one family, and an excluded family is not translated at all.
#[test]
fn one_family_and_one_address() {
    need!("ip", "nft", "iptables");
    for backend in ["nftables", "iptables"] {
        let (host, pod) = (Host::new(), Pod::new());
        let outside = outside(&host);
        let _server = Server::start(&outside, PORT, "outside");
        let net = network(&host, plugin_dir(), "bridge", backend)
            .with("/ipMasqExclude", json!(["::/0"]))
            .with("/ipMasqAddress", json!("192.0.2.9"));
        let attachment = Attachment::new("one", &pod);
        let result = net.added(&attachment);
        assert_eq!(seen(&pod, NEAR), ["192.0.2.9", &own(&result)[1]], "{backend}");
        assert_eq!(seen(&pod, EXCLUDED), ["192.0.2.9", &own(&result)[1]], "{backend}");
        net.check(&attachment, &result).success();
        net.deleted(&attachment, Some(&result));
        assert_clean(&host, backend);
    }
}

/// As `cnimble doctor --repair` does, after a change of the configuration and after a flush.
#[test]
fn a_repair_makes_the_exceptions_of_the_configuration() {
    need!("ip", "nft", "iptables");
    for backend in ["nftables", "iptables"] {
        let (host, pod) = (Host::new(), Pod::new());
        let outside = outside(&host);
        let _server = Server::start(&outside, PORT, "outside");
        let net = network(&host, plugin_dir(), "bridge", backend);
        let attachment = Attachment::new("one", &pod);
        let result = net.added(&attachment);
        let wanted = net.with("/ipMasqExclude", exclude()).with("/ipMasqAddress", json!(ADDRESSES));
        for flush in [false, true] {
            if flush {
                host.nft("flush ruleset");
            }
            let mut config = wanted.config.clone();
            config["prevResult"] = result.clone();
            let faults = host.within(|| {
                let examination = Examination {
                    container_id: &attachment.id,
                    netns: &attachment.netns,
                    ifname: &attachment.ifname,
                    args: String::new(),
                    path: &[plugin_dir().to_owned()],
                    config: config.to_string().into_bytes(),
                };
                let examined = examination.run(&PLUGINS, "bridge", Aim::RepairAll).unwrap();
                examined.undo.commit();
                examined.faults.unwrap().len()
            });
            assert_eq!(faults, 0, "{backend}");
            assert_eq!(seen(&pod, NEAR), ADDRESSES, "{backend}");
            assert_eq!(seen(&pod, EXCLUDED), own(&result), "{backend}");
            wanted.check(&attachment, &result).success();
        }
        wanted.deleted(&attachment, Some(&result));
        assert_clean(&host, backend);
    }
}

/// Pods add elements and no rules.
#[test]
fn many_pods_share_the_rules() {
    need!("ip", "nft");
    let host = Host::new();
    let net = network(&host, plugin_dir(), "bridge", "nftables")
        .with("/ipMasqExclude", exclude())
        .with("/ipMasqAddress", json!(ADDRESSES));
    let rules = || host.nft("list ruleset").matches("snat ip").count();
    let pods: Vec<Pod> = (0..3).map(|_| Pod::new()).collect();
    for (n, pod) in pods.iter().enumerate() {
        net.added(&Attachment::new(&format!("c{n}"), pod));
        assert_eq!(rules(), 2, "one of each family");
    }
}

#[test]
fn wrong_exceptions_are_one_error() {
    need!("ip");
    let (host, pod) = (Host::new(), Pod::new());
    for kind in ["bridge", "ptp"] {
        let net = network(&host, plugin_dir(), kind, "nftables");
        for (key, value, why) in [
            ("ipMasqExclude", json!("10.0.0.0/8"), "ipMasqExclude"),
            ("ipMasqExclude", json!(["10.0.0.0/33"]), "ipMasqExclude[0]"),
            ("ipMasqExclude", json!([5]), "ipMasqExclude[0]"),
            ("ipMasqAddress", json!("192.0.2.9/24"), "ipMasqAddress"),
            ("ipMasqAddress", json!(7), "ipMasqAddress"),
            ("ipMasqAddress", json!("::"), "ipMasqAddress: :: can't be the source of packets"),
            ("ipMasqAddress", json!(["192.0.2.9", "192.0.2.8"]), "ipMasqAddress: 192.0.2.8 is the second"),
        ] {
            let err = net.with(&format!("/{key}"), value.clone()).add(&Attachment::new("one", &pod)).error();
            assert!(err.code == 7 && err.all().contains(why), "{key} {value}: {err:?}");
        }
    }
}
