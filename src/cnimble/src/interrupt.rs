//! Signals: they interrupt work, and are requests to a service.

use std::fmt::Display;
use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use cnimble_runtime::Error;

use super::report::{Exit, Report};

pub(super) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Afterwards no signal ends the process directly.
    pub(super) fn listen() -> Result<Self, Report> {
        let listen =
            |kind| signal(kind).map_err(|err| Report::because(Exit::Files, "can't listen for signals", err));
        Ok(Signals {
            hangup: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Returns the exit status for a stop by the next signal. [`Exit::HungUp`] asks a service to reload.
    pub(super) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.hangup.recv() => Exit::HungUp,
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}

/// A signal drops `work`, which ends the running plugin.
pub(super) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let Ok(mut signals) = Signals::listen() else { return Ok(work.await) };
    tokio::select! {
        outcome = work => Ok(outcome),
        exit = signals.next() => Err(exit),
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
