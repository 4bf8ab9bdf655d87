//! The privileges that plugins drop before they do anything. docs/SECURITY.md has the table.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::json;

use cnimble_tests::trace::{self, Fate, Traced};
use cnimble_tests::{Attachment, Call, Host, Network, Outcome, Pod, Sample, configs, need, script, skip};

use super::privilege::told;

/// The capability names in the table, and their numbers (linux/capability.h).
const CAPABILITIES: &[(&str, u32)] = &[
    ("dac_override", 1),
    ("net_bind_service", 10),
    ("net_admin", 12),
    ("net_raw", 13),
    ("sys_ptrace", 19),
    ("sys_admin", 21),
];

/// Returns the capabilities that a verb keeps in addition to the table.
fn more(plugin: &str, verb: &str) -> Vec<&'static str> {
    let mut kept = vec!["dac_override"];
    // The pods of these tests are in /proc/PID/fd.
    if verb != "STATUS" {
        kept.push("sys_ptrace");
    }
    if plugin == "dhcp" {
        kept.push("net_admin");
    }
    kept
}

macro_rules! need_trace {
    () => {
        if let Some(why) = trace::untraceable() {
            skip!("{why}");
        }
    };
}

/// Returns a field of /proc/PID/status.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in {status:?}")).trim()
}

fn capabilities(status: &str, name: &str) -> BTreeSet<u32> {
    let bits = u64::from_str_radix(field(status, name), 16).unwrap();
    (0..64).filter(|bit| bits & (1 << bit) != 0).collect()
}

fn watched(call: &Call<'_>) -> Traced {
    let (outcome, traced) = call.traced(&Fate::Watched);
    outcome.success();
    traced
}

/// Returns the wrong privileges at the end of a verb, according to the table's rows of its plugin and IPAM plugin.
fn wrong(sample: &Sample, ipam: Option<&str>, verb: &str, status: &str) -> Option<String> {
    let plugins = [Some(sample.plugin.as_str()), ipam.filter(|ipam| *ipam != sample.plugin)];
    let names = plugins.into_iter().flatten().flat_map(|plugin| {
        let row = told(plugin).unwrap_or_else(|| panic!("no row of {plugin}"));
        row.concat().into_iter().chain(more(plugin, verb)).collect::<Vec<_>>()
    });
    let expected: BTreeSet<u32> =
        names.map(|name| CAPABILITIES.iter().find(|(other, _)| *other == name).expect(name).1).collect();
    let mut wrong = String::new();
    for name in ["CapEff", "CapPrm"] {
        let found = capabilities(status, name);
        if found != expected {
            let _ = write!(wrong, "{} {verb}: {name} has {found:?}, expected {expected:?}; ", sample.plugin);
        }
    }
    (!wrong.is_empty()).then_some(wrong)
}

#[test]
fn each_verb_ends_with_the_capabilities_of_its_plugins_row_and_no_others() {
    need!("ip", "nft");
    need_trace!();
    let mut all = Vec::new();
    for sample in Sample::all().iter().filter(|sample| sample.missing().is_none() && !sample.is_served()) {
        let host = Host::hasty();
        let config = sample.config(&host);
        let ipam = config["ipam"]["type"].as_str().map(str::to_owned);
        let place = sample.place(&host, "c1", 0);
        let mut look = |verb: &str, call: &Call<'_>| -> Outcome {
            let (outcome, traced) = call.traced(&Fate::Watched);
            let outcome = outcome.success();
            all.extend(wrong(sample, ipam.as_deref(), verb, &traced.status));
            outcome
        };
        look("STATUS", &place.net.status_call());
        let result = look("ADD", &place.net.call("ADD", &place.att, place.prev.as_ref())).result();
        look("CHECK", &place.net.call("CHECK", &place.att, Some(&result)));
        look("DEL", &place.net.call("DEL", &place.att, Some(&result)));
        look("GC", &place.net.gc_call(Some(json!([]))));
        place.clear();
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn nothing_is_given_up_if_the_setting_is_off() {
    need!("ip");
    need_trace!();
    let host = Host::new();
    let pod = Pod::new();
    let net = Network::new(&host, configs::ipam(&host));
    for (id, setting, alone) in [("c1", "", "1"), ("c2", "off", "0"), ("c3", "nonsense", "1")] {
        let call = net.call("ADD", &Attachment::new(id, &pod), None).env("CNIMBLE_RESTRAINT", setting);
        let traced = watched(&call);
        assert_eq!(field(&traced.status, "NoNewPrivs"), alone, "{setting:?}");
        let is_limited = !capabilities(&traced.status, "CapPrm").contains(&12);
        assert_eq!(is_limited, alone == "1", "{setting:?}");
    }
}

/// The plugin must not take the delegate's privileges.
#[test]
fn a_delegate_that_is_another_program_has_all_that_its_caller_has() {
    need!("ip", "nft");
    let host = Host::hasty();
    let pod = Pod::new();
    let bin = host.dir().join("bin");
    let out = host.dir().join("status");
    std::fs::create_dir(&bin).unwrap();
    let spy = format!(
        "#!/bin/sh\ncat /proc/$$/status >{}\ncat >/dev/null\n\
         echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"10.1.2.2/24\"}}]}}'\n",
        out.display()
    );
    script(&bin.join("spy"), &spy);
    let net = Network::new(&host, configs::v4(&host)).with("/ipam", json!({"type": "spy"}));
    net.call("ADD", &Attachment::new("c1", &pod), None).env("CNI_PATH", &bin).run().result();
    let (own, seen) =
        (std::fs::read_to_string("/proc/self/status").unwrap(), std::fs::read_to_string(&out).unwrap());
    for name in ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs"] {
        assert_eq!(field(&seen, name), field(&own, name), "{name}");
    }
}
