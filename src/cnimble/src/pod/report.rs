//! Reports of failures of a pod.

use cnimble_pod::network::NetworkError;
use cnimble_pod::sandbox::{Cause, SandboxError};

use super::super::report::{Exit, Report};

/// Converts an error about a pod. `what` is like "can't bring up pod default/web". The first cause decides the exit
/// status.
pub(super) fn report_error(what: impl Into<String>, error: &SandboxError) -> Report {
    let mut causes = error.causes().iter();
    let Some(first) = causes.next() else {
        return Report::because(Exit::Usage, what, error);
    };
    // The report of a plugin failure includes a hint.
    let report = match first {
        Cause::Network(network) => match &**network {
            NetworkError::Plugins { failures, .. } | NetworkError::Gc { failures } => {
                let mut failures = failures.iter();
                let report = failures.next().map(|failure| Report::of_pod(what, failure));
                let report = report.unwrap_or_else(|| Report::new(Exit::Plugin, ""));
                failures.fold(report, |report, failure| report.row("then", failure.to_string()))
            }
            NetworkError::NotReady(_) | NetworkError::Bandwidth { .. } => {
                Report::because(Exit::Config, what, first)
            }
            NetworkError::Namespace { .. } | NetworkError::Busy { .. } => {
                Report::because(Exit::Execution, what, first)
            }
        },
        Cause::NotReady(not_ready) => not_ready
            .details
            .iter()
            .fold(Report::because(Exit::Config, what, not_ready.condition()), |report, detail| {
                report.row("because", detail)
            })
            .hint("`cnimble networks` shows the faults; --conf-dir or NETCONFPATH names another directory"),
        Cause::Bandwidth(_) => Report::because(Exit::Config, what, first),
        Cause::Locked(_) => Report::because(Exit::Execution, what, first),
        _ => Report::because(Exit::Files, what, first),
    };
    causes.fold(report, |report, cause| report.row("then", cause.to_string()))
}
