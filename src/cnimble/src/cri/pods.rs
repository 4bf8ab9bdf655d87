//! The subcommand `cnimble cri pods`.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use cnimble_cri::{Client, Sandbox, SandboxStatus};

use super::{report, short};
use crate::Session;
use crate::output::View;
use crate::report::Report;
use crate::style::{Paint, joined, table};

/// Lists the sandboxes of the runtime. If the details of one can't be read, it is listed without them and the failure
/// is logged.
pub(super) async fn pods(session: &Session, client: &Client) -> Result<(), Report> {
    let what = "can't list the runtime's pods";
    let mut all = Vec::new();
    for sandbox in client.sandboxes().await.map_err(|err| report(what, &err))? {
        match client.sandbox(&sandbox.id).await {
            Ok(status) => all.push(Pod::new(sandbox, Some(status))),
            // The runtime has removed the sandbox since the listing.
            Err(err) if err.is_no_sandbox() => {}
            Err(err) => {
                log::warn!("{}: {err}", sandbox.pod());
                all.push(Pod::new(sandbox, None));
            }
        }
    }
    session.show(&Pods(all))
}

#[derive(Serialize)]
struct Pods(Vec<Pod>);

/// A sandbox as the runtime reports it. The details are `None` if the runtime doesn't report them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    namespace: String,
    name: String,
    uid: String,
    pub(super) id: String,
    /// How many sandboxes the pod had before this one.
    pub(super) attempt: u32,
    /// Seconds since 1970. It is 0 if the runtime has no time.
    created: u64,
    state: &'static str,
    host_network: Option<bool>,
    ips: Option<Vec<IpAddr>>,
    netns: Option<PathBuf>,
    pid: Option<u32>,
}

impl Pod {
    /// Combines the entry of a listing with the details.
    pub(super) fn new(sandbox: Sandbox, status: Option<SandboxStatus>) -> Self {
        let state = sandbox.state();
        let Sandbox { namespace, name, uid, id, attempt, created, .. } = sandbox;
        let (host_network, ips, netns, pid) = match status {
            Some(of) => (Some(of.host_network), Some(of.ips), of.netns, of.pid),
            None => (None, None, None, None),
        };
        Pod { namespace, name, uid, id, attempt, created, state, host_network, ips, netns, pid }
    }

    /// Returns the pod's namespace and name.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn line(&self) -> Vec<String> {
        let addresses = match &self.ips {
            _ if self.host_network == Some(true) => "the node's".to_owned(),
            Some(ips) if !ips.is_empty() => joined(ips),
            _ => "-".to_owned(),
        };
        let age = match self.created {
            // containerd has no creation time for a sandbox that it failed to create.
            0 => "-".to_owned(),
            created => crate::pod::age_of(created),
        };
        let attempt = self.attempt.to_string();
        vec![self.title(), self.state.to_owned(), addresses, attempt, age, short(&self.id).to_owned()]
    }
}

impl View for Pods {
    fn text(&self, paint: Paint) -> String {
        let lines: Vec<Vec<String>> = self.0.iter().map(Pod::line).collect();
        table(&["POD", "STATE", "ADDRESSES", "ATTEMPT", "AGE", "SANDBOX"], &lines, paint)
    }
}
