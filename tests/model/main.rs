//! Compares a real node with a model of it, with random networks and random operations on them.
//!
//! After each operation the kernel and the files must match the model. A failing plan is shrunk and printed, so that it
//! can be run again. `scripts/stress model` runs for a long time.
#![cfg(test)]

mod look;
mod node;
mod plan;
mod run;
mod shrink;
mod site;
mod taken;
mod verbs;
mod whole;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cnimble_tests::{PATIENCE, announce, go_plugins, go_to_meet, need, plugin_dir, skip};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::plan::{Plan, plans};
use crate::run::{Counts, Manner, run};
use crate::shrink::{class, shrunk};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().unwrap_or_else(|err| panic!("{name}={text}: {err}")))
}

/// The time limits for a difference.
struct Limits {
    /// The seconds that the node has to match the model.
    patience: f32,
    /// The time for the search for the shortest plan.
    shrinking: Duration,
}

/// In `scripts/test`: two minutes in all, as the whole run has a limit.
const SHORT: Limits = Limits { patience: 60.0, shrinking: Duration::from_secs(60) };

const LONG: Limits = Limits { patience: PATIENCE, shrinking: Duration::from_secs(120) };

/// Returns the plan of a seed.
fn drawn(seed: u64, go: bool, long: bool) -> Plan {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    plans(go, long).new_tree(&mut TestRunner::new_with_rng(Config::default(), rng)).unwrap().current()
}

/// Describes a plan and its failure, in a form that can be run again.
fn told(plan: &Plan, why: &str) -> String {
    let list = |lines: Vec<String>| lines.join("\n  ");
    let nets = plan
        .nets
        .iter()
        .enumerate()
        .map(|(at, net)| format!("network {at}: {}", serde_json::to_string(net).unwrap()));
    let ops = plan.ops.iter().enumerate().map(|(at, op)| format!("{at}: {op}"));
    format!(
        "{why}\n  {}\n  {}\nCNIMBLE_MODEL_PLAN='{}'",
        list(nets.collect()),
        list(ops.collect()),
        serde_json::to_string(plan).unwrap(),
    )
}

#[test]
fn model_and_node_never_part() {
    need!("ip", "nft", "iptables-nft-save");
    let control = variable("CNIMBLE_MODEL_PLUGINS").as_deref() == Some("go");
    if control && go_plugins().is_none() {
        skip!("there are no Go plugins");
    }
    // The remains of the Go plugins differ from release to release, and take hours to examine.
    let brief = variable("CNIMBLE_MODEL_SECONDS").is_none();
    let go = go_to_meet().is_ok() && !control && !brief;
    let (seconds, seed) = (number("CNIMBLE_MODEL_SECONDS", 15), number("CNIMBLE_SEED", 1));
    announce(
        "NOTE",
        &format!("seed {seed}, {seconds} s, plugins {:?}, the Go plugins between: {go}", plugin_dir()),
    );
    if let Some(text) = variable("CNIMBLE_MODEL_PLAN") {
        let plan: Plan = serde_json::from_str(&text).unwrap();
        let manner = Manner { patience: PATIENCE, control, until: None };
        run(&plan, manner).unwrap_or_else(|failure| panic!("{}", told(&plan, &failure.to_string())));
        return;
    }
    // Every run of scripts/test uses the same few plans, so that its result is reproducible.
    let most = if brief { 6 } else { u64::MAX };
    let limits = if brief { SHORT } else { LONG };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut plans, mut ops, mut counts, mut found) = (0, 0, Counts::new(), BTreeMap::<String, usize>::new());
    let mut parted = Vec::new();
    while plans == 0 || (Instant::now() < end && plans < most) {
        let seed = seed + plans;
        let plan = drawn(seed, go, seconds > 60);
        let plan = if control { plan.for_go() } else { plan };
        plans += 1;
        ops += plan.ops.len();
        // Much fails in the control. It is only reported, without a long wait.
        let patience = if control { 5.0 } else { limits.patience };
        match run(&plan, Manner { patience, control, until: None }) {
            Ok(of) => of.into_iter().for_each(|(what, count)| *counts.entry(what).or_default() += count),
            Err(failure) if control => {
                let count = found.entry(class(&failure.why)).or_default();
                *count += 1;
                if *count == 1 {
                    let (short, failure) = shrunk(&plan, failure, control, limits.shrinking);
                    announce("FIRST", &format!("seed {seed}: {}", told(&short, &failure.to_string())));
                }
            }
            Err(failure) => {
                // Printed first, because the rest may be cut off.
                announce("NOTE", &format!("seed {seed}: {}", told(&plan, &failure.to_string())));
                let (short, failure) = shrunk(&plan, failure, control, limits.shrinking);
                let told = format!("seed {seed}, {plans} plans: {}", told(&short, &failure.to_string()));
                assert!(!brief, "{told}");
                announce("NOTE", &told);
                parted.push(told);
            }
        }
    }
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    announce("NOTE", &format!("seed {seed}: {plans} plans, {ops} operations: {}", counts.join(", ")));
    for (what, count) in found {
        announce("TABLE", &format!("| {what} | {count} |"));
    }
    assert!(parted.is_empty(), "{} of {plans} plans part:\n{}", parted.len(), parted.join("\n"));
}
