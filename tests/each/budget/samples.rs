//! The budgets of each plugin's sample, for a second pod.

use std::fmt::Write;

use cnimble_tests::{Sample, announce, need, skip};

use super::{Budget, DOCUMENT, Trace, VERBS, budget, traced, untraceable};

/// Returns the budgets of ADD, CHECK and DEL of a plugin in docs/PERFORMANCE.md.
fn told(plugin: &str) -> Option<[Budget; 3]> {
    let row = DOCUMENT
        .split_once("| plugin | ADD | CHECK | DEL |")?
        .1
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| {plugin} | ")))?;
    let cells: Vec<Budget> = row
        .split(" | ")
        .filter_map(|cell| cell.trim_end_matches(" |").split_once('/'))
        .filter_map(|(calls, messages)| Some(budget(calls.parse().ok()?, messages.parse().ok()?)))
        .collect();
    cells.try_into().ok()
}

/// Counts ADD, CHECK and DEL of a second pod.
fn verbs(sample: &Sample) -> [Trace; 3] {
    let host = cnimble_tests::Host::new();
    let _server = sample.serve(&host);
    let first = sample.place(&host, "pod0", 0);
    first.added();
    let second = sample.place(&host, "pod1", 1);
    let (net, att) = (&second.net, &second.att);
    let (result, add) = traced(net, "ADD", att, second.prev.as_ref());
    let (_, check) = traced(net, "CHECK", att, Some(&result));
    let (_, del) = traced(net, "DEL", att, Some(&result));
    if sample.is_served() {
        // The lease daemon may not notice by itself that everything is removed.
        first.net.deleted(&first.att, None);
    }
    [add, check, del]
}

/// Compares the counts of these plugins with their budgets.
fn count(samples: &[&Sample]) {
    need!("strace", "ip", "dnsmasq");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let mut wrong = Vec::new();
    for sample in samples {
        let plugin = &sample.plugin;
        let traces = verbs(sample);
        let mut row = format!("| {plugin} |");
        for trace in &traces {
            write!(row, " {}/{} |", trace.total(), trace.messages).unwrap();
        }
        announce("NOTE", &row);
        match told(plugin) {
            Some(budgets) => wrong.extend(
                VERBS
                    .iter()
                    .zip(budgets)
                    .zip(&traces)
                    .filter_map(|((verb, of), trace)| trace.over(plugin, verb, of)),
            ),
            None => wrong.push(format!("docs/PERFORMANCE.md lacks the row: {row}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_plugin_stays_within_its_budget() {
    count(
        &Sample::all()
            .iter()
            .filter(|sample| sample.missing().is_none() || sample.is_served())
            .collect::<Vec<_>>(),
    );
}

/// Counts for plugins that this kernel may not support.
pub(crate) fn count_the_picky() {
    count(&Sample::all().iter().filter(|sample| sample.is_for_the_machine()).collect::<Vec<_>>());
}
