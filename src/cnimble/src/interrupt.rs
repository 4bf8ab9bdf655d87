//! Interrupts work on a signal.

use std::fmt::Display;
use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

use cnimble_runtime::Error;

use super::report::{Exit, Report};

/// A signal drops `work`, which ends the running plugin.
pub(super) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals.map(signal) else {
        return Ok(work.await);
    };
    tokio::select! {
        outcome = work => Ok(outcome),
        _ = interrupt.recv() => Err(Exit::Interrupted),
        _ = terminate.recv() => Err(Exit::Terminated),
        _ = hangup.recv() => Err(Exit::HungUp),
    }
}

/// Waits for work that reads this node. Converts failures and interruptions into a report.
pub(super) async fn look<T, E: Display>(
    what: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Report> {
    match interruptible(work).await {
        Ok(outcome) => outcome.map_err(|err| Report::because(Exit::Files, what, err)),
        Err(exit) => Err(Report::new(exit, "interrupted").hint("run it again")),
    }
}

pub(super) fn stopped(exit: Exit, what: &str) -> Report {
    Report::because(exit, what, "interrupted").hint("run it again")
}

/// Converts failures and interruptions into a report.
pub(super) fn finish<T>(what: &str, outcome: Result<Result<T, Error>, Exit>) -> Result<T, Report> {
    match outcome {
        Ok(outcome) => outcome.map_err(|err| Report::of(what, &err)),
        Err(exit) => Err(stopped(exit, what)),
    }
}
