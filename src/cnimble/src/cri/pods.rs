//! The subcommand `cnimble cri pods`.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use cnimble_cri::{Client, Sandbox, SandboxStatus};

use super::{report, short};
use crate::report::Report;
use crate::style::table;
use crate::{Session, print, print_json};

pub(super) async fn pods(session: &Session, client: &Client) -> Result<(), Report> {
    let what = "can't list the runtime's pods";
    let mut all: Vec<(Sandbox, Option<SandboxStatus>)> = Vec::new();
    for sandbox in client.sandboxes().await.map_err(|err| report(what, &err))? {
        match client.sandbox(&sandbox.id).await {
            Ok(status) => all.push((sandbox, Some(status))),
            // The runtime has removed the sandbox since the listing.
            Err(err) if err.is_no_sandbox() => {}
            Err(err) => {
                log::warn!("{}: {err}", sandbox.pod());
                all.push((sandbox, None));
            }
        }
    }
    if session.json {
        return print_json(&all.iter().map(|(of, status)| as_json(of, status.as_ref())).collect());
    }
    let lines: Vec<Vec<String>> = all.iter().map(|(of, status)| line(of, status.as_ref())).collect();
    let headings = ["POD", "STATE", "ADDRESSES", "ATTEMPT", "AGE", "SANDBOX"];
    print(&table(&headings, &lines, session.paint))
}

fn line(sandbox: &Sandbox, status: Option<&SandboxStatus>) -> Vec<String> {
    let addresses = match status {
        Some(status) if status.host_network => "the node's".to_owned(),
        Some(status) if !status.ips.is_empty() => joined(&status.ips),
        _ => "-".to_owned(),
    };
    vec![
        sandbox.pod(),
        sandbox.state().to_owned(),
        addresses,
        sandbox.attempt.to_string(),
        age(sandbox),
        short(&sandbox.id).to_owned(),
    ]
}

/// Returns a sandbox as JSON.
pub(super) fn as_json(sandbox: &Sandbox, status: Option<&SandboxStatus>) -> Value {
    json!({
        "namespace": sandbox.namespace,
        "name": sandbox.name,
        "uid": sandbox.uid,
        "id": sandbox.id,
        "attempt": sandbox.attempt,
        "created": sandbox.created,
        "state": sandbox.state(),
        "hostNetwork": status.map(|status| status.host_network),
        "ips": status.map(|status| &status.ips),
        "netns": status.and_then(|status| status.netns.as_ref()),
        "pid": status.and_then(|status| status.pid),
    })
}

pub(super) fn joined<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn age(sandbox: &Sandbox) -> String {
    // containerd has no creation time for a sandbox that it failed to create.
    if sandbox.created == 0 {
        return "-".to_owned();
    }
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(sandbox.created);
    crate::pod::age(created.elapsed().unwrap_or_default())
}
