//! `cnimble cri`: the container runtime's pods.

mod cidr;
pub(super) mod evidence;
mod inspect;
mod pods;
mod status;
mod up;

use std::ffi::OsStr;

use cnimble_cri::{Client, CriError, Sandbox};

use super::Session;
use super::args::cri::{Cri, CriCommand};
use super::interrupt::interruptible;
use super::report::{Exit, Report};

/// Connects to the runtime, and runs a subcommand until it ends or a signal arrives.
pub(super) async fn cri(session: &Session, given: &Cri) -> Result<(), Report> {
    let what = "can't ask the container runtime";
    let work = async {
        let client = connect(given.socket.as_deref(), what).await?;
        match &given.command {
            CriCommand::Status => status::status(session, &client).await,
            CriCommand::Pods => pods::pods(session, &client).await,
            CriCommand::Inspect(named) => inspect::inspect(session, &client, &named.pod).await,
            CriCommand::Up(given) => up::up(session, &client, given).await,
            CriCommand::Down(given) => up::down(session, &client, given).await,
            CriCommand::SetPodCidr(given) => cidr::set(session, &client, &given.cidrs).await,
        }
    };
    interruptible(work).await.map_err(|exit| Report::new(exit, "interrupted").hint("run it again"))?
}

/// Connects to the runtime at the given socket, or at the first one that is found.
pub(super) async fn connect(given: Option<&OsStr>, what: &str) -> Result<Client, Report> {
    let socket = cnimble_cri::find_socket(given).map_err(|err| report(what, &err))?;
    Client::connect(&socket).await.map_err(|err| report(what, &err))
}

/// Returns the report for an error of the runtime or of the connection to it, for `cnimble cri`.
pub(super) fn report(what: impl Into<String>, err: &CriError) -> Report {
    report_by(what, err, "--socket")
}

/// Does the same for a verb in which `option` names the socket.
fn report_by(what: impl Into<String>, err: &CriError, option: &str) -> Report {
    let exit = match err {
        CriError::Endpoint { .. } => Exit::Usage,
        CriError::Refused { .. } | CriError::Unimplemented { .. } | CriError::NoSandbox { .. } => {
            Exit::Plugin
        }
        _ => Exit::Execution,
    };
    let report = Report::because(exit, what, err);
    match err {
        CriError::NoSocket { .. } => {
            report.hint(format!("is the runtime running? {option} SOCKET names another socket"))
        }
        CriError::Connect { .. } if !nix::unistd::geteuid().is_root() => report.hint("run it as root"),
        CriError::Connect { .. } => report.hint("is the runtime running?"),
        CriError::NotCri { .. } => report.hint(format!("name the runtime's socket: {option} SOCKET")),
        CriError::Late { .. } => report.hint("check the runtime's log: it may be busy or stuck"),
        _ => report,
    }
}

/// Returns the sandboxes of the pod with this name, of which the ready and then the newest come first.
///
/// The name is `NAMESPACE/NAME`, or `NAME` in the namespace `default`. If no pod has it, the text may be the beginning
/// of one sandbox's ID, of four characters or more.
fn of_pod<'s>(sandboxes: &'s [Sandbox], text: &str) -> Vec<&'s Sandbox> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    let mut found: Vec<&Sandbox> =
        sandboxes.iter().filter(|of| of.namespace == namespace && of.name == name).collect();
    found.sort_by_key(|of| (!of.ready, std::cmp::Reverse((of.attempt, of.created))));
    if found.is_empty() && text.len() >= 4 {
        found = sandboxes.iter().filter(|of| of.id.starts_with(text)).collect();
        // An ambiguous ID prefix matches nothing.
        found.truncate(if found.len() == 1 { 1 } else { 0 });
    }
    found
}

/// Returns the report for an unknown pod.
fn no_pod(what: impl Into<String>, text: &str) -> Report {
    Report::because(Exit::Usage, what, format!("the runtime has no pod {text}"))
        .hint("`cnimble cri pods` lists the pods")
}

/// Returns the first 13 characters of an ID, as many as crictl shows.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}
