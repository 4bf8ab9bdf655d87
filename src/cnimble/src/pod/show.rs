//! `cnimble pod ls` and `status`: list pods and show their state.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use serde_json::{Value, json};

use cnimble_pod::sandbox::{Sandbox, SandboxError, SandboxStatus, Sandboxes};

use super::super::report::{Exit, Report};
use super::super::style::{rows, table};
use super::super::{Session, print, print_json};
use super::{find, report};

/// The number of pods that are examined concurrently.
const AT_ONCE: usize = 16;

pub(super) async fn ls(session: &Session, sandboxes: &Sandboxes) -> Result<(), Report> {
    let what = "can't list the pods";
    let listing = sandboxes.list().map_err(|err| report::of(what, &err))?;
    let looks = listing.sandboxes.iter().map(|sandbox| async move {
        let (state, ips) = now(&sandboxes.inspect(&sandbox.id).await);
        (sandbox, state, ips)
    });
    let states: Vec<(&Sandbox, String, Vec<IpAddr>)> =
        futures::stream::iter(looks).buffered(AT_ONCE).collect().await;
    if session.json {
        let pods = states.iter().map(|(sandbox, state, ips)| as_json(sandbox, state, ips));
        let problems = listing.problems.iter().map(|(_, problem)| problem.to_string());
        print_json(&json!({"pods": pods.collect::<Value>(), "problems": problems.collect::<Value>()}))?;
    } else {
        let lines: Vec<Vec<String>> = states
            .into_iter()
            .map(|(sandbox, state, ips)| {
                vec![
                    sandbox.config.pod.to_string(),
                    state,
                    joined(&ips),
                    sandbox.network_name().unwrap_or("-").to_owned(),
                    age(sandbox),
                    short(&sandbox.id).to_owned(),
                ]
            })
            .collect();
        let headings = ["POD", "STATE", "ADDRESSES", "NETWORK", "AGE", "SANDBOX"];
        print(&table(&headings, &lines, session.paint))?;
    }
    if listing.problems.is_empty() {
        return Ok(());
    }
    if session.json {
        return Err(Report::new(Exit::Files, ""));
    }
    let report = Report::new(Exit::Files, "some pods' records can't be read");
    Err(listing.problems.iter().fold(report, |report, (_, problem)| report.row("why", problem.to_string())))
}

pub(super) async fn status(session: &Session, sandboxes: &Sandboxes, pod: &str) -> Result<(), Report> {
    let what = format!("pod {pod} is not as it should be");
    let sandbox = find(sandboxes, pod, &format!("can't look at pod {pod}"))?;
    let outcome = async {
        let status = sandboxes.inspect(&sandbox.id).await?;
        if status.fault.is_none() {
            sandboxes.check(&sandbox.id).await?;
        }
        Ok(status)
    };
    let outcome: Result<_, SandboxError> = outcome.await;
    let (state, ips) = now(&outcome);
    if session.json {
        let mut object = as_json(&sandbox, &state, &ips);
        if let (Err(err), Some(map)) = (&outcome, object.as_object_mut()) {
            map.insert("error".to_owned(), err.to_string().into());
        }
        print_json(&object)?;
    } else {
        let headline = format!("{} {state}\n", session.paint.bold(&sandbox.config.pod.to_string()));
        print(&(headline + &rows(&lines(&sandbox, &ips), session.paint)))?;
    }
    let quiet = |report: Report| if session.json { Report::new(report.exit, "") } else { report };
    match outcome {
        Ok(status) => match status.fault {
            None => Ok(()),
            Some(fault) => Err(quiet(
                Report::new(Exit::Found, what)
                    .row("why", fault.to_string())
                    .hint("cnimble pod up FILE makes it anew"),
            )),
        },
        Err(err) => Err(quiet(report::of(what, &err))),
    }
}

fn lines(sandbox: &Sandbox, ips: &[IpAddr]) -> Vec<(&'static str, String)> {
    let config = &sandbox.config;
    let mut lines = vec![("uid", config.uid.clone()), ("sandbox", sandbox.id.clone())];
    lines.push(("network", sandbox.network_name().unwrap_or("the node's").to_owned()));
    if let Some(netns) = &sandbox.netns {
        lines.push(("namespace", netns.display().to_string()));
    }
    lines.extend(ips.iter().map(|ip| ("address", ip.to_string())));
    for port in &config.ports {
        let protocol = json!(port.protocol);
        let on = port.host_ip.map(|ip| format!(" on {ip}")).unwrap_or_default();
        let protocol = protocol.as_str().unwrap_or_default();
        lines.push(("port", format!("{}{on} → {} {protocol}", port.host_port, port.container_port)));
    }
    if let Some(path) = &sandbox.resolv_conf {
        lines.push(("resolv.conf", path.display().to_string()));
    }
    if let Some(process) = sandbox.process {
        lines.push(("process", process.pid.to_string()));
    }
    lines.push(("age", age(sandbox)));
    lines
}

/// Returns a sandbox as JSON, without the internal parts of the record.
pub(super) fn as_json(sandbox: &Sandbox, state: &str, ips: &[IpAddr]) -> Value {
    json!({
        "namespace": sandbox.config.pod.namespace,
        "name": sandbox.config.pod.name,
        "uid": sandbox.config.uid,
        "id": sandbox.id,
        "attempt": sandbox.attempt,
        "created": sandbox.created,
        "state": state,
        "network": sandbox.network_name(),
        "netns": sandbox.netns,
        "pid": sandbox.process.map(|process| process.pid),
        "resolvConf": sandbox.resolv_conf,
        "ips": ips,
    })
}

/// Returns the current state of a pod: a word for a table, and the addresses in its namespace.
fn now(outcome: &Result<SandboxStatus, SandboxError>) -> (String, Vec<IpAddr>) {
    match outcome {
        Ok(SandboxStatus { fault: None, ips, .. }) => ("Ready".to_owned(), ips.clone()),
        Ok(SandboxStatus { fault: Some(fault), ips, .. }) => (format!("{fault:?}"), ips.clone()),
        Err(_) => ("Broken".to_owned(), Vec::new()),
    }
}

pub(super) fn joined(ips: &[IpAddr]) -> String {
    match ips {
        [] => "-".to_owned(),
        ips => ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn age(sandbox: &Sandbox) -> String {
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(sandbox.created);
    super::age(created.elapsed().unwrap_or_default())
}
