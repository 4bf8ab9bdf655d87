//! `cnimble pod`: manages single pods from the command line.

pub(super) mod args;
mod exec;
mod report;
mod show;
pub(super) mod tally;
mod up;

use std::time::Duration;

use cnimble_pod::PodId;
use cnimble_pod::sandbox::{Sandbox, Sandboxes};

use super::Session;
use super::report::{Exit, Report, usage};

use args::{Pod, PodCommand};

pub(super) async fn pod(session: &Session, given: &Pod) -> Result<(), Report> {
    if matches!(given.command, PodCommand::Pause) {
        return pause();
    }
    let sandboxes = given.options.open(session, &[]).await?;
    match &given.command {
        PodCommand::Up(up) => up::up(session, &sandboxes, &given.options.dns(), up).await,
        PodCommand::Down(down) => up::down(session, &sandboxes, down).await,
        PodCommand::Ls => show::ls(session, &sandboxes).await,
        PodCommand::Status(named) => show::status(session, &sandboxes, &named.pod).await,
        PodCommand::Exec(given) => exec::exec(&sandboxes, given),
        PodCommand::Pause => Ok(()),
    }
}

/// Waits until a signal kills the process. No signal has a handler here.
fn pause() -> Result<(), Report> {
    loop {
        nix::unistd::pause();
    }
}

/// Parses `NAME` or `NAMESPACE/NAME`.
pub(super) fn pod_id(text: &str) -> Result<PodId, Report> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(usage(format!("\"{text}\" is no pod: expected NAME or NAMESPACE/NAME")));
    }
    Ok(PodId::new(namespace, name))
}

/// Formats an age for a table.
pub(super) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns the sandbox of the pod with this name.
fn find(sandboxes: &Sandboxes, text: &str, what: &str) -> Result<Sandbox, Report> {
    let id = pod_id(text)?;
    let found = sandboxes.find(&id).map_err(|err| report::of(what, &err))?;
    found.ok_or_else(|| {
        Report::new(Exit::Usage, what)
            .row("why", format!("there is no pod {id}"))
            .hint("`cnimble pod ls` lists the pods; `cnimble pod up FILE` makes one")
    })
}
