//! The kernel has no memory: one of its allocations for a verb fails, each in turn.
//!
//! This needs a kernel with CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC
//! (`Documentation/fault-injection/fault-injection.rst`), which no distribution has. `scripts/stress memory` builds one
//! and runs these tests in it.

use std::path::Path;
use std::sync::OnceLock;

use cnimble_tests::trace::{Fate, Syscall, Traced};
use cnimble_tests::{sample_size, skip};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::fail::{LEFT_OUT, Manner, reads_stdin, settle};
use crate::kinds::{Kind, others};
use crate::points::{Chance, Nth, at_each_point, numbered};
use crate::site::{Site, Verb};

/// More allocations than any verb makes.
const MANY: u32 = 1_000_000_000;

/// Returns the reason why this kernel cannot fail an allocation, if there is one.
fn generous() -> Option<&'static str> {
    static WHY: OnceLock<Option<&'static str>> = OnceLock::new();
    *WHY.get_or_init(|| {
        if !Path::new("/proc/self/fail-nth").exists() {
            return Some(
                "the kernel fails no allocations on demand; scripts/stress memory runs one that does",
            );
        }
        any_allocation();
        None
    })
}

/// Includes allocations that may wait for memory. The kernel spares them by default, and nearly all allocations are of
/// this kind.
fn any_allocation() {
    let dir = tempfile::tempdir().unwrap();
    let none: Option<&str> = None;
    mount(Some("debugfs"), dir.path(), Some("debugfs"), MsFlags::empty(), none).unwrap();
    for (file, value) in [
        ("failslab/ignore-gfp-wait", "N"),
        ("fail_page_alloc/ignore-gfp-wait", "N"),
        ("fail_page_alloc/ignore-gfp-highmem", "N"),
        ("fail_page_alloc/min-order", "0"),
        // A stack trace for each failure would take longer than all the rest.
        ("failslab/verbose", "0"),
        ("fail_page_alloc/verbose", "0"),
    ] {
        std::fs::write(dir.path().join(file), value).unwrap_or_else(|err| panic!("{file}: {err}"));
    }
    umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
}

/// Returns the number of allocations of the verb of plugin `at`, the lower of two counts.
fn count(kind: &Kind, verb: Verb, at: usize) -> usize {
    let [one, other] = [(); 2].map(|()| {
        let site = Site::new(kind);
        let run = site.disturbed(verb, at, &Fate::Starved { nth: MANY }).unwrap();
        run.outcome.success();
        site.del(&site.attachment(), run.last.as_ref()).unwrap();
        MANY - run.traced.unmet
    });
    usize::try_from(one.min(other)).unwrap()
}

fn starve(site: &mut Site, point: &Nth) -> Result<bool, String> {
    // The kernel counts from 1.
    let nth = u32::try_from(point.nth + 1).unwrap();
    let run = site.disturbed(point.verb, point.at, &Fate::Starved { nth })?;
    let during = run.traced.starved.as_ref().map_or("its end".to_owned(), Syscall::name);
    settle(site, point.verb, point.at, &run, manner(&run.traced))
        .map_err(|why| format!("in {during}: {why}"))?;
    Ok(run.traced.met)
}

/// Returns the effects that are allowed when an allocation fails in this call, or in the process's own memory after it.
fn manner(traced: &Traced) -> Manner {
    let Some(call) = &traced.starved else { return Manner { start_up: false, way_home: false } };
    let before = traced.calls.iter().take_while(|other| *other != call);
    let start_up = !before.into_iter().any(reads_stdin);
    Manner::of(call, start_up || LEFT_OUT.contains(&call.name().as_str()))
}

/// Makes all allocations of a network's verbs fail, each in turn.
fn starved(kind: &str, verbs: &[Verb]) {
    if let Some(why) = generous() {
        skip!("{why}");
    }
    let points = |kind: &Kind, verb, seed| {
        numbered(kind, verb, sample_size(usize::MAX), &mut Chance::new(seed), |at| count(kind, verb, at))
    };
    at_each_point("no memory", kind, verbs, points, starve, |site, point| {
        format!("{} allocation {} of {}", site.plugin(point.at), point.nth + 1, point.verb.name())
    });
}

const ALL: &[Verb] = &[Verb::Add, Verb::Del, Verb::Check, Verb::Gc];

#[test]
fn no_memory_in_bridge() {
    starved("bridge", ALL);
}

#[test]
fn no_memory_in_the_first_bridge() {
    starved("first bridge", &[Verb::Add]);
}

#[test]
fn no_memory_in_ptp() {
    starved("ptp", ALL);
}

#[test]
fn no_memory_in_a_chain() {
    starved("chain", ALL);
}

#[test]
fn no_memory_in_every_other_plugin() {
    if let Some(why) = generous() {
        skip!("{why}");
    }
    for sample in others().filter(|sample| sample.missing().is_none()) {
        starved(&sample.plugin, ALL);
    }
}
