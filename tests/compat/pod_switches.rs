//! Settings below /proc/sys that a pod needs. A read-only /proc/sys doesn't stop root of the first user namespace.
//! Without a private procfs the existing values have to be right.

use std::path::Path;

use serde_json::json;

use cnimble_tests::{
    Attachment, Host, Network, Ns, Outcome, Pod, Snapshot, configs, need, need_go, plugin_dir,
};

const KINDS: [&str; 2] = ["bridge", "ptp"];

fn network<'h>(host: &'h Host, plugins: &Path, kind: &str) -> Network<'h> {
    Network::by(plugins, host, configs::dual(host))
        .with("/cniVersion", json!("1.0.0"))
        .with("/type", json!(kind))
}

/// Returns a pod without IPv6 on all present and future interfaces.
fn pod_without_ipv6() -> Pod {
    let pod = Pod::new();
    pod.ip("link set lo up");
    for conf in ["all", "default"] {
        pod.set_sysctl(&format!("ipv6/conf/{conf}/disable_ipv6"), "1");
    }
    pod
}

#[test]
fn a_pod_answers_itself_by_ipv6_where_it_was_switched_off() {
    need!("ip", "ping");
    answers_itself(plugin_dir());
}

#[test]
fn so_does_a_pod_of_the_go_plugins() {
    need_go!(go, "ip", "ping");
    answers_itself(go);
}

fn answers_itself(plugins: &Path) {
    for kind in KINDS {
        let (host, pod) = (Host::new(), pod_without_ipv6());
        assert!(pod.misses("::1"), "the pod has IPv6 anyway");
        let net = network(&host, plugins, kind);
        net.added(&Attachment::new("one", &pod));
        for to in ["::1", "fd00:1:2::2", "fd00:1:2::1"] {
            assert!(pod.pings(to), "{kind}: {to}");
        }
    }
}

#[test]
fn a_failed_add_leaves_the_pod_without_ipv6() {
    need!("ip");
    for kind in KINDS {
        let (host, pod) = (Host::new(), pod_without_ipv6());
        let before = Snapshot::of_ns(&pod);
        let net = network(&host, plugin_dir(), kind);
        let nowhere = json!([{"dst": "10.99.0.0/16", "gw": "10.200.0.1"}]);
        net.with("/ipam/routes", nowhere).add(&Attachment::new("one", &pod)).error();
        before.assert_same(&Snapshot::of_ns(&pod), kind);
    }
}

/// Runs ADD by `wrapper`, with a read-only /proc/sys.
fn add_read_only(net: &Network<'_>, pod: &Ns, wrapper: &[&str]) -> Outcome {
    const READ_ONLY: &str = "mount --bind -o ro /proc/sys /proc/sys && exec \"$0\" \"$@\"";
    let call = net.call("ADD", &Attachment::new("one", pod), None);
    call.under(&[&["unshare", "--mount", "sh", "-c", READ_ONLY], wrapper].concat()).run()
}

/// As in a user namespace, where no private procfs can be mounted.
const NO_PRIVATE_PROCFS: [&str; 5] = ["strace", "-o", "/dev/null", "-e", "inject=fsopen:error=EPERM"];

/// Returns a host with all required settings.
fn ready_host() -> Host {
    let host = Host::new();
    host.set_sysctl("ipv4/ip_forward", "1");
    host.set_sysctl("ipv6/conf/all/forwarding", "1");
    host
}

#[test]
fn a_read_only_proc_sys_will_do_where_everything_is_set() {
    need!("ip", "ping", "unshare", "strace");
    for kind in KINDS {
        let (host, pod) = (ready_host(), Pod::new());
        let net = network(&host, plugin_dir(), kind);
        let result = add_read_only(&net, &pod, &NO_PRIVATE_PROCFS).result();
        assert!(pod.pings("10.1.2.1") && pod.pings("fd00:1:2::1"), "{kind}");
        net.deleted(&Attachment::new("one", &pod), Some(&result));
    }
}

/// The Go plugins always write `keep_addr_on_down` for IPv6 addresses.
#[test]
fn it_will_do_for_the_go_plugins_without_ipv6() {
    need_go!(go, "ip", "ping", "unshare");
    for kind in KINDS {
        let (host, pod) = (ready_host(), Pod::new());
        let net = network(&host, go, kind).with("/ipam/ranges", json!([[{"subnet": "10.1.2.0/24"}]]));
        let net = net.with("/ipam/routes", json!([]));
        add_read_only(&net, &pod, &[]).result();
        assert!(pod.pings("10.1.2.1"), "{kind}");
    }
}

/// Values of a host or a pod that make ADD fail, and the key in its error.
const WRONG: [(bool, &str, &str, &str); 2] = [
    (false, "ipv4/ip_forward", "0", "net/ipv4/ip_forward"),
    (true, "ipv6/conf/default/disable_ipv6", "1", "disable_ipv6"),
];

#[test]
fn root_writes_despite_a_read_only_proc_sys() {
    need!("ip", "ping", "unshare");
    for kind in KINDS {
        let (host, pod) = (Host::new(), pod_without_ipv6());
        host.set_sysctl("ipv6/conf/default/accept_ra", "2");
        let net = network(&host, plugin_dir(), kind);
        let outcome = add_read_only(&net, &pod, &[]).success();
        assert_eq!(outcome.stderr, "", "{kind}");
        assert_eq!(host.sysctl("ipv4/ip_forward"), "1", "{kind}");
        assert_eq!(host.sysctl("ipv6/conf/all/forwarding"), "1", "{kind}");
        assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_dad"), "0", "{kind}");
        let told = outcome.result();
        let end = told["interfaces"][0]["name"].as_str().unwrap();
        assert_eq!(host.sysctl(&format!("ipv6/conf/{end}/accept_ra")), "0", "{kind}: {end}");
        assert!(pod.pings("10.1.2.1") && pod.pings("fd00:1:2::1"), "{kind}");
    }
}

/// A missing requirement is an error that names it, and nothing is left.
#[test]
fn a_read_only_proc_sys_with_a_wrong_value_is_one_clear_error() {
    need!("ip", "unshare", "strace");
    for kind in KINDS {
        for (of_pod, key, value, named) in WRONG {
            let (host, pod) = (ready_host(), Pod::new());
            if of_pod {
                pod.set_sysctl(key, value);
            } else {
                host.set_sysctl(key, value);
            }
            let (before, pods) = (Snapshot::of(&host), Snapshot::of_ns(&pod));
            let net = network(&host, plugin_dir(), kind);
            let err = add_read_only(&net, &pod, &NO_PRIVATE_PROCFS).error();
            assert_eq!(err.code, 100, "{kind}, {key}: {err:?}");
            assert!(err.all().contains(named) && err.all().contains("ead-only"), "{kind}, {key}: {err:?}");
            assert_eq!(err.all().contains("hint: set net.ipv4.ip_forward=1"), !of_pod, "{kind}: {err:?}");
            before.without_lines("last_reserved_ip").assert_same(
                &Snapshot::of(&host).without_lines("last_reserved_ip"),
                &format!("{kind}, {key}"),
            );
            pods.assert_same(&Snapshot::of_ns(&pod), &format!("{kind}, {key}"));
        }
    }
}

/// The configuration asks for it, so ADD fails.
#[test]
fn a_read_only_accept_ra_of_a_pod_that_must_ignore_routers_is_an_error() {
    need!("ip", "unshare", "strace");
    for kind in KINDS {
        let (host, pod) = (ready_host(), Pod::new());
        let net = network(&host, plugin_dir(), kind).with("/acceptRA", json!(false));
        let err = add_read_only(&net, &pod, &NO_PRIVATE_PROCFS).error();
        assert!(err.code == 100 && err.all().contains("eth0/accept_ra to 0"), "{kind}: {err:?}");
        assert_eq!(pod.links(), ["lo"], "{kind}");
        pod.set_sysctl("ipv6/conf/default/accept_ra", "0");
        add_read_only(&net, &pod, &NO_PRIVATE_PROCFS).success();
    }
}

/// An interface works without it, so ADD prints a warning and continues.
#[test]
fn a_read_only_accept_ra_is_a_warning() {
    need!("ip", "ping", "unshare", "strace");
    for kind in KINDS {
        let (host, pod) = (ready_host(), Pod::new());
        host.set_sysctl("ipv6/conf/default/accept_ra", "2");
        let net = network(&host, plugin_dir(), kind);
        let outcome = add_read_only(&net, &pod, &NO_PRIVATE_PROCFS).success();
        assert!(
            outcome.stderr.contains("the host takes router advertisements from"),
            "{kind}: {}",
            outcome.stderr
        );
        assert!(pod.pings("10.1.2.1") && pod.pings("fd00:1:2::1"), "{kind}");
    }
}
