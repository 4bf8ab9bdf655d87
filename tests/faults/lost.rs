//! Loses the kernel's answer to a request. The kernel has made or refused the change, and the plugin reads ENOBUFS
//! (netlink(7)).

use cnimble_tests::trace::Fate;
use cnimble_tests::{announce, sample_size};

use crate::fail::{Manner, settle};
use crate::kinds::{Kind, others};
use crate::points::{Chance, FEWEST, Nth, at_each_point, numbered, seed};
use crate::site::{Site, Verb};

/// Returns how many such answers the verb of plugin `at` reads.
fn count(kind: &Kind, verb: Verb, at: usize) -> usize {
    let site = Site::new(kind);
    let run = site.disturbed(verb, at, &Fate::Unanswered { nth: usize::MAX }).unwrap();
    site.del(&site.attachment(), run.last.as_ref()).unwrap();
    run.traced.answers
}

/// Loses one answer. Returns whether the plugin reached it.
fn lose(site: &mut Site, point: &Nth) -> Result<bool, String> {
    let run = site.disturbed(point.verb, point.at, &Fate::Unanswered { nth: point.nth })?;
    settle(site, point.verb, point.at, &run, Manner { start_up: false, way_home: false })?;
    Ok(run.traced.met)
}

/// Loses the answers of a network's verbs, each in turn. A verb that changes nothing reads none.
fn lost(kind: &str, verbs: &[Verb], otherwise: usize) {
    for verb in verbs {
        let (network, chance) = (&Kind::of(kind), &mut Chance::new(seed()));
        let mut points =
            numbered(network, *verb, sample_size(otherwise), chance, |at| count(network, *verb, at));
        if points.is_empty() {
            announce(
                "NOTE",
                &format!("{} of {kind} reads no answer that says how a request went", verb.name()),
            );
            continue;
        }
        // A sample has a minimum size.
        points = points.iter().cycle().take(points.len().max(FEWEST)).cloned().collect();
        at_each_point(
            "lost answers",
            kind,
            &[*verb],
            |_, _, _| points.clone(),
            lose,
            |site, point| format!("{} answer {} of {}", site.plugin(point.at), point.nth, point.verb.name()),
        );
    }
}

const ALL: &[Verb] = &[Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

#[test]
fn lost_answers_in_bridge() {
    lost("bridge", ALL, 24);
}

#[test]
fn lost_answers_in_the_first_bridge() {
    lost("first bridge", &[Verb::Add], 24);
}

#[test]
fn lost_answers_in_ptp() {
    lost("ptp", ALL, 14);
}

#[test]
fn lost_answers_in_a_chain() {
    lost("chain", ALL, 12);
}

#[test]
fn lost_answers_in_every_other_plugin() {
    for sample in others().filter(|sample| sample.missing().is_none()) {
        lost(&sample.plugin, ALL, FEWEST);
    }
}
