//! `cnimble pod ls` and `status`: list pods and show their state.

use std::net::IpAddr;
use std::path::Path;

use futures::StreamExt;
use serde::Serialize;
use serde_json::json;

use cnimble_pod::sandbox::{Sandbox, SandboxConfig, SandboxError, SandboxStatus, Sandboxes};

use super::super::Session;
use super::super::output::View;
use super::super::report::{Exit, Report};
use super::super::style::{self, Paint, rows, table};
use super::{age_of, find_sandbox, report};

/// The number of pods that are inspected at once.
const AT_ONCE: usize = 16;

/// Lists the pods with their current state. It fails after the list if a record can't be read.
pub(super) async fn ls(session: &Session, sandboxes: &Sandboxes) -> Result<(), Report> {
    let what = "can't list the pods";
    let listing = sandboxes.list().map_err(|err| report::report_error(what, &err))?;
    let looks = listing.sandboxes.iter().map(|sandbox| async move {
        let (state, ips) = now(&sandboxes.inspect(&sandbox.id).await);
        Shown::new(sandbox, state, ips)
    });
    let pods = futures::stream::iter(looks).buffered(AT_ONCE).collect().await;
    let problems = listing.problems.iter().map(|(_, problem)| problem.to_string()).collect();
    let view = Pods { pods, problems };
    session.show(&view)?;
    session.judge(Exit::Files, "some pods' records can't be read", &view.problems)
}

/// Shows a pod. It fails with [`Exit::Found`] if the pod has a fault. Otherwise it runs the plugins' CHECK, whose
/// failure has its own exit status.
pub(super) async fn status(session: &Session, sandboxes: &Sandboxes, pod: &str) -> Result<(), Report> {
    let what = format!("pod {pod} is not as it should be");
    let sandbox = find_sandbox(sandboxes, pod, &format!("can't examine pod {pod}"))?;
    let outcome = async {
        let status = sandboxes.inspect(&sandbox.id).await?;
        if status.fault.is_none() {
            sandboxes.check(&sandbox.id).await?;
        }
        Ok(status)
    };
    let outcome: Result<_, SandboxError> = outcome.await;
    let (state, ips) = now(&outcome);
    let error = outcome.as_ref().err().map(ToString::to_string);
    session.show(&Shown { error, ..Shown::new(&sandbox, state, ips) })?;
    let quiet = |report: Report| if session.json { Report::new(report.exit, "") } else { report };
    match outcome {
        Ok(status) => match status.fault {
            None => Ok(()),
            Some(fault) => Err(quiet(
                Report::because(Exit::Found, what, fault).hint("`cnimble pod up FILE` sets it up again"),
            )),
        },
        Err(err) => Err(quiet(report::report_error(what, &err))),
    }
}

/// The pods, and the records that can't be read.
#[derive(Serialize)]
struct Pods<'s> {
    pods: Vec<Shown<'s>>,
    problems: Vec<String>,
}

/// A pod in output, without the internal parts of its record.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown<'s> {
    namespace: &'s str,
    name: &'s str,
    uid: &'s str,
    id: &'s str,
    attempt: u32,
    created: u64,
    state: String,
    network: Option<&'s str>,
    netns: Option<&'s Path>,
    pid: Option<u32>,
    resolv_conf: Option<&'s Path>,
    ips: Vec<IpAddr>,
    /// Why the pod could not be inspected or checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    config: &'s SandboxConfig,
}

impl<'s> Shown<'s> {
    /// Combines the record with the state and the addresses of now.
    pub(super) fn new(sandbox: &'s Sandbox, state: String, ips: Vec<IpAddr>) -> Self {
        Shown {
            namespace: &sandbox.config.pod.namespace,
            name: &sandbox.config.pod.name,
            uid: &sandbox.config.uid,
            id: &sandbox.id,
            attempt: sandbox.attempt,
            created: sandbox.created,
            state,
            network: sandbox.network_name(),
            netns: sandbox.netns.as_deref(),
            pid: sandbox.process.map(|process| process.pid),
            resolv_conf: sandbox.resolv_conf.as_deref(),
            ips,
            error: None,
            config: &sandbox.config,
        }
    }

    fn line(&self) -> Vec<String> {
        let pod = self.config.pod.to_string();
        let network = self.network.unwrap_or("-").to_owned();
        let short = self.id.get(..12).unwrap_or(self.id).to_owned();
        vec![pod, self.state.clone(), joined(&self.ips), network, age_of(self.created), short]
    }
}

impl View for Pods<'_> {
    fn text(&self, paint: Paint) -> String {
        let lines: Vec<Vec<String>> = self.pods.iter().map(Shown::line).collect();
        table(&["POD", "STATE", "ADDRESSES", "NETWORK", "AGE", "SANDBOX"], &lines, paint)
    }
}

impl View for Shown<'_> {
    fn text(&self, paint: Paint) -> String {
        let mut lines = vec![("uid", self.uid.to_owned()), ("sandbox", self.id.to_owned())];
        lines.push(("network", self.network.unwrap_or("the node's").to_owned()));
        lines.extend(self.netns.map(|netns| ("namespace", netns.display().to_string())));
        lines.extend(self.ips.iter().map(|ip| ("address", ip.to_string())));
        for port in &self.config.ports {
            let protocol = json!(port.protocol);
            let on = port.host_ip.map(|ip| format!(" on {ip}")).unwrap_or_default();
            let protocol = protocol.as_str().unwrap_or_default();
            lines.push(("port", format!("{}{on} → {} {protocol}", port.host_port, port.container_port)));
        }
        lines.extend(self.resolv_conf.map(|path| ("resolv.conf", path.display().to_string())));
        lines.extend(self.pid.map(|pid| ("process", pid.to_string())));
        lines.push(("age", age_of(self.created)));
        let pod = paint.bold(&self.config.pod.to_string());
        format!("{pod} {}\n{}", self.state, rows(&lines, paint))
    }
}

/// Returns the state in a word, and the addresses in the namespace. A pod that can't be inspected is `Broken`.
fn now(outcome: &Result<SandboxStatus, SandboxError>) -> (String, Vec<IpAddr>) {
    match outcome {
        Ok(SandboxStatus { fault: None, ips, .. }) => ("Ready".to_owned(), ips.clone()),
        Ok(SandboxStatus { fault: Some(fault), ips, .. }) => (format!("{fault:?}"), ips.clone()),
        Err(_) => ("Broken".to_owned(), Vec::new()),
    }
}

/// Returns the addresses with spaces between them, or `-` for none.
pub(super) fn joined(ips: &[IpAddr]) -> String {
    match ips {
        [] => "-".to_owned(),
        ips => style::joined(ips),
    }
}
