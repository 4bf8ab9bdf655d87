//! Machines that lack a feature. Each plugin works there, or prints a sentence that names the missing feature, and
//! leaves nothing.
//!
//! `scripts/kernels` runs `this_machine` where the kernel itself lacks it (`-a ipv6.disable=1`, `-l 'nf_tables*'`), and
//! takes the lines that begin with CELL for its page. `CNIMBLE_FEATURES=portmap` limits it to the features with that
//! text in their names.
#![cfg(test)]

mod limits;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Call, Host, Network, Pod, Sample, Snapshot, configs, need, plugin_dir, skip, vm,
};

/// A feature: its name, its plugin's configuration, and whether the plugin is chained.
struct Feature {
    name: &'static str,
    config: Value,
    chained: bool,
}

fn features(host: &Host) -> Vec<Feature> {
    let bridge = |name, more: &[(&str, Value)]| {
        let mut config = configs::v4(host);
        more.iter().for_each(|(key, value)| config[*key] = value.clone());
        Feature { name, config, chained: false }
    };
    let main = |name, kind: &str, more: Value| {
        let mut config = configs::v4(host);
        config.as_object_mut().unwrap().retain(|key, _| key != "bridge" && key != "isGateway");
        config["type"] = kind.into();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Feature { name, config, chained: false }
    };
    let chained = |name, more: Value| {
        let mut config = json!({"cniVersion": configs::newest(), "name": "net4"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Feature { name, config, chained: true }
    };
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    vec![
        bridge("bridge", &[]),
        Feature { name: "bridge, IPv6 too", config: configs::dual(host), chained: false },
        bridge("bridge ipMasq", &[("ipMasq", true.into())]),
        bridge("bridge ipMasq nftables", &[("ipMasq", true.into()), ("ipMasqBackend", "nftables".into())]),
        bridge("bridge macspoofchk", &[("macspoofchk", true.into())]),
        bridge("bridge vlan", &[("vlan", 100.into())]),
        bridge("bridge portIsolation", &[("portIsolation", true.into())]),
        main("ptp", "ptp", json!({})),
        main("ptp ipMasq", "ptp", json!({"ipMasq": true})),
        main("macvlan", "macvlan", json!({"master": "up0"})),
        main("macvlan bcqueuelen", "macvlan", json!({"master": "up0", "bcqueuelen": 500})),
        main("ipvlan", "ipvlan", json!({"master": "up0"})),
        main("vlan", "vlan", json!({"master": "up0", "vlanId": 7})),
        main("dummy", "dummy", json!({})),
        main("tap", "tap", json!({})),
        chained("portmap", json!({"type": "portmap", "runtimeConfig": ports})),
        chained(
            "portmap nftables",
            json!({"type": "portmap", "runtimeConfig": ports, "backend": "nftables"}),
        ),
        chained(
            "portmap iptables",
            json!({"type": "portmap", "runtimeConfig": ports, "backend": "iptables"}),
        ),
        chained("firewall", json!({"type": "firewall"})),
        chained("firewall nftables", json!({"type": "firewall", "backend": "nftables"})),
        chained("firewall iptables", json!({"type": "firewall", "backend": "iptables"})),
        chained("firewall same-bridge", json!({"type": "firewall", "ingressPolicy": "same-bridge"})),
        chained(
            "bandwidth",
            json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000}),
        ),
        chained("tuning", json!({"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_notify": "1"}})),
        chained("sbr", json!({"type": "sbr"})),
        chained("vrf", json!({"type": "vrf", "vrfname": "red"})),
    ]
}

/// The outcome of a feature: nothing, or the error that refused it.
type End = Result<(), String>;

/// The state that a refused ADD may not change. An emulated processor is too slow for a full snapshot of each.
enum Before {
    Whole(Box<(Snapshot, Snapshot)>),
    Quick(String),
}

impl Before {
    fn of(host: &Host, pod: &Pod) -> Self {
        if vm::inside() {
            let look = "ip -o link | grep -v ' up[01]'; ip -4 route; nft list ruleset 2>/dev/null || :";
            return Before::Quick(host.shell(look) + &pod.shell("ip -o link"));
        }
        Before::Whole(Box::new((Snapshot::settled(host), Snapshot::of_ns(pod))))
    }

    fn assert_same(&self, host: &Host, pod: &Pod, when: &str) {
        match (self, Before::of(host, pod)) {
            (Before::Whole(before), Before::Whole(after)) => {
                before.0.assert_same(&after.0, when);
                before.1.assert_same(&after.1, when);
            }
            (Before::Quick(before), Before::Quick(after)) => assert_eq!(*before, after, "{when}"),
            _ => unreachable!("one machine"),
        }
    }
}

/// Runs ADD, CHECK and DEL. `hard` modifies each call.
fn live(host: &Host, feature: &Feature, hard: &dyn for<'c> Fn(Call<'c>) -> Call<'c>) -> End {
    let pod = Pod::new();
    let att = Attachment::new("hard", &pod);
    let base = feature.chained.then(|| Network::new(host, configs::v4(host)));
    let prev = base.as_ref().map(|base| base.added(&att));
    let net = Network::new(host, feature.config.clone());
    let before = Before::of(host, &pod);
    let added = hard(net.call("ADD", &att, prev.as_ref())).run();
    let end = if added.status == 0 {
        let result = added.result();
        hard(net.call("CHECK", &att, Some(&result))).run().success();
        hard(net.call("DEL", &att, Some(&result))).run().success();
        Ok(())
    } else {
        let why = added.error().all();
        before.assert_same(host, &pod, &format!("{}, refused: {why}", feature.name));
        // There is nothing to remove if the feature is missing.
        hard(net.call("DEL", &att, prev.as_ref())).run().success();
        Err(why)
    };
    if let Some(base) = base {
        base.deleted(&att, prev.as_ref());
    }
    end
}

/// Checks that a refusal names the missing feature, and not only the kernel's error.
fn names_what_is_missing(why: &str) -> bool {
    ["CONFIG_", "the kernel has no", "this kernel", "not installed", "read-only", "Read-only", "IPv6"]
        .iter()
        .any(|word| why.contains(word))
}

/// The outcomes of the features.
#[derive(Default)]
struct Ends {
    refused: Vec<String>,
    wrong: Vec<String>,
}

impl Ends {
    /// Records the outcome of this feature, and prints it for the page.
    fn told(&mut self, name: &str, feature: impl FnOnce() -> End) {
        let end = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(feature)) {
            Ok(Ok(())) => "works".to_owned(),
            Ok(Err(why)) => {
                self.refused.push(name.to_owned());
                if !names_what_is_missing(&why) {
                    self.wrong.push(format!("{name}: says only {why}"));
                }
                format!("refused: {why}")
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                self.wrong.push(format!("{name}: {text}"));
                "WRONG".to_owned()
            }
        };
        println!("CELL|{name}|{}", end.replace(['\n', '|'], " "));
    }
}

/// Tests each feature on a separate host.
fn all(part: fn(&Feature) -> bool, hard: &dyn for<'c> Fn(Call<'c>) -> Call<'c>) -> Ends {
    let mut ends = Ends::default();
    for number in 0.. {
        let host = Host::new();
        let Some(feature) = features(&host).into_iter().nth(number) else { break };
        if !part(&feature) {
            continue;
        }
        for command in ["link add up0 type veth peer name up1", "link set up0 up", "link set up1 up"] {
            host.ip(command);
        }
        ends.told(feature.name, || live(&host, &feature, hard));
    }
    ends
}

/// Runs only in a machine of `scripts/kernels`. Elsewhere the plugins' own tests are more precise.
#[test]
fn this_machine_serves_every_feature_or_names_what_is_missing() {
    need!("ip", "nft");
    if !vm::inside() {
        return;
    }
    let wanted = |feature: &Feature| {
        std::env::var("CNIMBLE_FEATURES").map_or(true, |word| feature.name.contains(&word))
    };
    let mut ends = all(wanted, &|call| call);
    if limits::is_booted() {
        ends.told("the clock set back by a day", limits::clock_set_back_and_forward);
    }
    assert!(ends.wrong.is_empty(), "{}", ends.wrong.join("\n"));
}

/// Images without iptables have nf_tables, which is enough.
#[test]
fn without_the_command_iptables_only_what_was_asked_to_use_it_is_refused() {
    need!("ip", "nft", "unshare", "mount");
    let part =
        |feature: &Feature| feature.name.starts_with("portmap") || feature.name.starts_with("firewall");
    let hidden =
        "for dir in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $dir || exit; done; exec \"$0\"";
    let wrapper = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", hidden];
    let ends = all(part, &|call| call.under(&wrapper));
    assert!(ends.wrong.is_empty(), "{}", ends.wrong.join("\n"));
    assert_eq!(ends.refused, ["portmap iptables", "firewall iptables"]);
}

/// /proc/sys is read-only for the plugins: in Kata, in a container, on a hardened host.
const READ_ONLY_PROC_SYS: [&str; 5] = [
    "/usr/bin/unshare",
    "--mount",
    "/bin/sh",
    "-c",
    "mount --rbind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\"",
];

/// Runs ADD, CHECK and DEL of a plugin's sample. `hard` modifies each call.
fn live_sample(sample: &Sample, hard: &dyn for<'c> Fn(Call<'c>) -> Call<'c>) -> End {
    let host = Host::new();
    let _server = sample.serve(&host);
    let mut place = sample.place(&host, "hard", 0);
    if !in_first_user_namespace()
        && let Some(config) = place.net.config.as_object_mut()
    {
        // For tap: another user namespace has one user and one group.
        config.retain(|key, _| key != "owner" && key != "group");
    }
    let before = Before::of(&host, &place.pod);
    let added = hard(place.net.call("ADD", &place.att, place.prev.as_ref())).run();
    let end = if added.status == 0 {
        let result = added.result();
        hard(place.net.call("CHECK", &place.att, Some(&result))).run().success();
        hard(place.net.call("DEL", &place.att, Some(&result))).run().success();
        Ok(())
    } else {
        let why = added.error().all();
        before.assert_same(&host, &place.pod, &format!("{}, refused: {why}", sample.plugin));
        hard(place.net.call("DEL", &place.att, place.prev.as_ref())).run().success();
        Err(why)
    };
    place.clear();
    end
}

/// Returns whether this process is in the first user namespace, where every user is mapped (user_namespaces(7)).
fn in_first_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().eq(["0", "0", "4294967295"])
}

/// Runs the samples that `part` accepts. Root of the first user namespace mounts a separate procfs. Elsewhere ADD fails
/// if it needs a value; these plugins are `refused`.
fn with_a_read_only_proc_sys(part: fn(&Sample) -> bool, refused: &[&str]) {
    let is_first = in_first_user_namespace();
    let mut ends = Ends::default();
    for sample in Sample::all().iter().filter(|sample| part(sample)) {
        // A DHCP server doesn't start with the one user of another user namespace.
        if sample.missing().is_none() || (is_first && sample.is_served()) {
            ends.told(&sample.plugin, || live_sample(sample, &|call| call.under(&READ_ONLY_PROC_SYS)));
        }
    }
    assert!(ends.wrong.is_empty(), "{}", ends.wrong.join("\n"));
    assert_eq!(ends.refused, if is_first { &[] } else { refused });
}

#[test]
fn with_a_read_only_proc_sys_every_sample_works_or_names_the_value_that_it_needs() {
    need!("ip", "nft", "unshare", "mount", "dnsmasq");
    let part = |sample: &Sample| !sample.is_for_the_machine();
    with_a_read_only_proc_sys(part, &["bridge", "portmap", "ptp", "tuning"]);
}

/// Images that are the same on every node have these read-only.
#[test]
fn with_a_read_only_usr_and_etc_all_works() {
    need!("ip", "nft", "unshare", "mount");
    let read_only = "for dir in /usr /etc; do mount --rbind $dir $dir && mount -o remount,bind,ro $dir || exit; done; \
                     [ ! -w /usr ] && [ ! -w /etc ] && exec \"$0\"";
    let part = |feature: &Feature| {
        ["bridge ipMasq", "bridge macspoofchk", "ptp", "tuning"].contains(&feature.name)
            || feature.name.starts_with("portmap")
            || feature.name.starts_with("firewall")
    };
    let ends = all(part, &|call| call.under(&["/usr/bin/unshare", "--mount", "/bin/sh", "-c", read_only]));
    assert!(ends.wrong.is_empty(), "{}", ends.wrong.join("\n"));
    assert!(ends.refused.is_empty(), "{:?}", ends.refused);
}

/// Runs a test of this program as root of a user namespace. Returns its output.
fn in_user_namespace(test: &str) -> Result<String, String> {
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        // As in a separate machine: the test runs with fewer checks.
        .env("CNIMBLE_TEST_INSIDE_VM", "1")
        .env("CNIMBLE_PLUGIN_DIR", plugin_dir())
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if errors.contains("unshare failed") {
        return Err(format!("no user namespaces here: {errors}"));
    }
    assert!(output.status.success(), "{said}{errors}");
    Ok(said.into_owned())
}

/// Root of a user namespace has root rights in the network namespaces created in it, and hardly any others.
#[test]
fn root_of_a_user_namespace_is_refused_only_what_the_kernel_lacks() {
    need!("ip", "nft", "unshare");
    let said = match in_user_namespace("this_machine_serves_every_feature_or_names_what_is_missing") {
        Ok(said) => said,
        Err(why) => skip!("{why}"),
    };
    let refused: Vec<&str> = said.lines().filter(|line| line.contains("|refused")).collect();
    let kernel = |line: &&&str| !line.contains("this kernel");
    assert_eq!(refused.iter().find(kernel), None, "{said}");
    assert!(said.matches("|works").count() > 15, "{said}");
}

#[test]
fn a_read_only_proc_sys_in_a_user_namespace_fails_only_what_needs_another_value() {
    need!("ip", "nft", "unshare", "mount", "dnsmasq");
    match in_user_namespace("with_a_read_only_proc_sys_every_sample_works_or_names_the_value_that_it_needs") {
        Ok(said) => assert!(said.matches("|works").count() > 8, "{said}"),
        Err(why) => skip!("{why}"),
    }
}

/// Plugins that need kinds of interfaces which many kernels lack.
mod in_vm {
    use super::*;

    #[test]
    fn with_a_read_only_proc_sys_plugins_that_need_another_kernel_work() {
        cnimble_tests::in_vm!();
        with_a_read_only_proc_sys(Sample::is_for_the_machine, &[]);
    }

    #[test]
    fn with_a_read_only_proc_sys_they_work_in_a_user_namespace() {
        cnimble_tests::in_vm!();
        match in_user_namespace("in_vm::with_a_read_only_proc_sys_plugins_that_need_another_kernel_work") {
            Ok(said) => {
                let works = |sample: &&Sample| said.contains(&format!("CELL|{}|works", sample.plugin));
                let mut picky = Sample::all().iter().filter(|sample| sample.is_for_the_machine());
                assert_eq!(picky.find(|sample| !works(sample)).map(|sample| &sample.plugin), None, "{said}");
            }
            Err(why) => skip!("{why}"),
        }
    }
}
