//! Shows progress while pods start: a changing line on a terminal, or else log lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use cnimble_pod::source::Condition;
use cnimble_pod::sync::{Board, Event, Phase, PodReport};

use crate::style::{count, joined};

/// The progress line is on the terminal.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// The interval between two drawings.
const PACE: Duration = Duration::from_millis(100);

/// Returns what erases the progress line, to be written in front of other output. It is empty if no line is drawn. The
/// next drawing puts the line below that output.
pub(crate) fn before_line() -> &'static str {
    if DRAWN.swap(false, Ordering::Relaxed) { "\r\x1b[K" } else { "" }
}

/// Logs an event.
pub(super) fn log_event(event: &Event) {
    match event {
        Event::Pod(pod) => tell_of(pod),
        Event::Gone(id) => log::info!(pod:% = id, phase = "Gone"; "pod {id} is gone"),
        Event::Worked { id, operation, took, failure } => {
            let seconds = took.as_secs_f64();
            log::debug!(
                pod:% = id, operation = *operation, seconds;
                "{operation} of pod {id} took {seconds:.3} s{}", if failure.is_some() { " and failed" } else { "" }
            );
        }
        Event::Trouble(Some(why)) => log::error!("can't work on pods: {why}"),
        Event::Trouble(None) => log::info!("work on pods continues"),
        Event::Warning(why) => log::warn!("{why}"),
    }
}

/// Logs the state of a pod.
fn tell_of(pod: &PodReport) {
    let (id, phase) = (&pod.id, pod.phase.as_str());
    let message = pod.message.as_deref().unwrap_or_default();
    match (pod.phase, pod.reason) {
        (Phase::Ready, _) => {
            let ips = joined(&pod.ips);
            let seconds = pod.took.as_secs_f64();
            let place = if ips.is_empty() { "no addresses of its own" } else { &ips };
            log::info!(pod:% = id, phase, ips = ips.as_str(), seconds; "pod {id} is ready: {place} ({seconds:.3} s)");
        }
        (_, Some(reason)) => log::warn!(
            pod:% = id, phase, reason, failures = pod.failures;
            "pod {id}: {reason}: {message}"
        ),
        (Phase::Terminating, None) => log::info!(pod:% = id, phase; "pod {id} is taken down"),
        (_, None) => log::debug!(pod:% = id, phase; "pod {id} is wanted"),
    }
}

/// Logs new problems of manifests and sources, and those that have ended. It never ends.
pub(super) async fn tell_of_problems(mut conditions: watch::Receiver<Vec<Condition>>) {
    let mut known: BTreeSet<String> = BTreeSet::new();
    loop {
        let now: BTreeSet<String> =
            conditions.borrow_and_update().iter().map(|condition| condition.error.to_string()).collect();
        for problem in now.difference(&known) {
            log::warn!("{problem}");
        }
        for problem in known.difference(&now) {
            log::info!("no longer: {problem}");
        }
        known = now;
        if conditions.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Draws the progress line until the future is dropped, which erases it. It does nothing unless stderr is a terminal.
pub(super) async fn draw(board: Board) {
    if !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let _gone = Erase;
    let begun = Instant::now();
    let mut overall = board.overall();
    let mut last = String::new();
    loop {
        tokio::time::sleep(PACE).await;
        let state = overall.borrow_and_update().clone();
        let since = (!state.settled).then(|| begun.elapsed());
        let line = line(&board, since);
        if line != last || !DRAWN.load(Ordering::Relaxed) {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
            DRAWN.store(true, Ordering::Relaxed);
            last = line;
        }
    }
}

/// Erases the progress line when it is dropped.
struct Erase;

impl Drop for Erase {
    fn drop(&mut self) {
        let _ = write!(std::io::stderr().lock(), "{}", before_line());
    }
}

/// Returns the number of pods in a phase.
pub(super) fn count_pods(counts: &BTreeMap<Phase, usize>, phase: Phase) -> usize {
    counts.get(&phase).copied().unwrap_or(0)
}

/// Returns the line, such as `137 of 200 pods ready, 2 failed, 1 going  3.2 s`. The time is left out if it is `None`.
fn line(board: &Board, since: Option<Duration>) -> String {
    let counts = board.counts();
    let ready = count_pods(&counts, Phase::Ready);
    let wanted = ready + count_pods(&counts, Phase::Pending) + count_pods(&counts, Phase::Failed);
    let mut line = format!("{ready} of {} ready", count(wanted, "pod"));
    for (phase, word) in [(Phase::Failed, "failed"), (Phase::Terminating, "going")] {
        let pods = count_pods(&counts, phase);
        if pods > 0 {
            line.push_str(&format!(", {pods} {word}"));
        }
    }
    if let Some(since) = since {
        line.push_str(&format!("  {:.1} s", since.as_secs_f64()));
    }
    line
}
