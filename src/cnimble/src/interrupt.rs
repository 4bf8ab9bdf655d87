//! Signals: they interrupt work, and are requests to a service.

use std::fmt::Display;
use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use cnimble_runtime::Error;

use super::Session;
use super::report::{Exit, Report};

/// SIGHUP, SIGINT and SIGTERM, which no longer end the process.
pub(super) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen. From then on none of the three signals ends the process directly, even after this value is
    /// dropped.
    pub(super) fn listen() -> Result<Self, Report> {
        let listen =
            |kind| signal(kind).map_err(|err| Report::because(Exit::Files, "can't listen for signals", err));
        Ok(Signals {
            hangup: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for a signal, and returns the exit status for a stop by it. A service takes [`Exit::HungUp`] as a request
    /// to reload.
    pub(super) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.hangup.recv() => Exit::HungUp,
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}

/// Waits for `work`, or until a signal arrives. A signal drops `work`, which ends a running plugin, and its exit status
/// is the error.
///
/// If the process can't listen for signals, the work runs without.
pub(super) async fn interruptible<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let Ok(mut signals) = Signals::listen() else { return Ok(work.await) };
    tokio::select! {
        outcome = work => Ok(outcome),
        exit = signals.next() => Err(exit),
    }
}

/// Waits for work that only reads this node. A failure becomes a report with [`Exit::Files`], and a signal one that
/// says so.
pub(super) async fn await_reading<T, E: Display>(
    what: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Report> {
    match interruptible(work).await {
        Ok(outcome) => outcome.map_err(|err| Report::because(Exit::Files, what, err)),
        Err(exit) => Err(Report::new(exit, "interrupted").hint("run it again")),
    }
}

/// Returns the report of an interruption. `what` is what could not be done.
pub(super) fn stopped(exit: Exit, what: &str) -> Report {
    Report::because(exit, what, "interrupted").hint("run it again")
}

/// Converts the outcome of [`interruptible`] work. A plugin's error and an interruption become reports that begin with
/// `what`.
pub(super) fn finish<T>(
    session: &Session,
    what: &str,
    outcome: Result<Result<T, Error>, Exit>,
) -> Result<T, Report> {
    match outcome {
        Ok(outcome) => outcome.map_err(|err| Report::from_error(session, what, &err)),
        Err(exit) => Err(stopped(exit, what)),
    }
}
