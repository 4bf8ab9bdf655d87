//! Reports which process waits for the kernel when a link is removed, from the log of a DEL.

use std::io::Write;
use std::process::Stdio;

use crate::host::Host;
use crate::sandbox::Sandbox;
use crate::{Contender, Result, SCENARIOS};

/// Returns `None` for plugins that don't log it.
pub(crate) fn taken(sandbox: &Sandbox, contender: &Contender) -> Result<Option<String>> {
    let Some(scenario) = SCENARIOS.first() else { return Ok(None) };
    let mut host = Host::named(sandbox, contender, scenario, "way")?;
    let pod = host.pod()?;
    let (result, _) = host.add(&pod)?;
    let (mut command, config) = host.command("DEL", &pod, Some(result));
    command.env("CNIMBLE_LOG", "info").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    host.namespace().enter()?;
    let mut child = command.spawn()?;
    // The configuration fits into the pipe.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&config)?;
    }
    let said = String::from_utf8_lossy(&child.wait_with_output()?.stderr).into_owned();
    let line = said.lines().find_map(|line| Some(line.split_once("removals are ")?.1.to_owned()));
    Ok(line.map(|how| format!("{}: removals are {how}", contender.name)))
}
