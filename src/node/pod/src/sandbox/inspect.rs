//! The state of a sandbox beyond its record.

use std::fmt;
use std::net::IpAddr;

use cnimble_netlink::NetNs;

use super::config::{Sandbox, SandboxState};
use super::error::{Cause, Causes, SandboxError, SandboxOperation};
use super::{Sandboxes, links, process};

/// Why a sandbox cannot serve its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Unfinished,
    Stopping,
    Stopped,
    /// The sandbox is from before a reboot.
    Stale,
    NoNamespace,
    NoProcess,
    /// A link of the network is gone from the host.
    NoLink,
    /// The namespace lacks an address of the set-up.
    NoAddress,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Unfinished => "its set-up has not been finished",
            Fault::Stopping => "it is being stopped, or that has not been finished",
            Fault::Stopped => "it is stopped",
            Fault::Stale => "it is from before a reboot",
            Fault::NoNamespace => "its network namespace is gone",
            Fault::NoProcess => "its pause process has died",
            Fault::NoLink => "a link of its network is gone from the host",
            Fault::NoAddress => "an address that it was given is not in its namespace",
        })
    }
}

/// A sandbox with its present state.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxStatus {
    pub sandbox: Sandbox,
    /// The fault, or `None` if none was found.
    pub fault: Option<Fault>,
    /// The present addresses. The list is empty on the node's network.
    pub ips: Vec<IpAddr>,
}

impl Sandboxes {
    /// Returns the fault that the record, the namespace and the process show. It looks at no link or address, and asks
    /// no plugin.
    pub fn fault(&self, sandbox: &Sandbox) -> Option<Fault> {
        match sandbox.state {
            _ if self.is_stale(sandbox) => return Some(Fault::Stale),
            SandboxState::SettingUp => return Some(Fault::Unfinished),
            SandboxState::Stopping => return Some(Fault::Stopping),
            SandboxState::Stopped => return Some(Fault::Stopped),
            SandboxState::Ready => {}
        }
        if let Some(netns) = &sandbox.netns
            && matches!(NetNs::find(netns), Ok(None))
        {
            return Some(Fault::NoNamespace);
        }
        let dead = sandbox.process.is_some_and(|process| !process::is_alive(process));
        dead.then_some(Fault::NoProcess)
    }

    /// Looks into the namespace for addresses, and on the host for links. It asks no plugin.
    ///
    /// # Errors
    /// Fails for an unknown ID, and if the namespace or the interface cannot be read.
    pub async fn inspect(&self, id: &str) -> Result<SandboxStatus, SandboxError> {
        let sandbox = self.get(id)?.ok_or_else(|| SandboxError::Unknown { id: id.to_owned() })?;
        let mut fault = self.fault(&sandbox);
        let mut ips = Vec::new();
        if fault.is_none() && sandbox.netns.is_some() {
            let status = self.inner.network.status(&sandbox.network()).await;
            ips = status.map_err(|err| inspecting(&sandbox, err.into()))?;
            // The pod may have more addresses, from router advertisements.
            if sandbox.ips.iter().any(|ip| !ips.contains(ip)) {
                fault = Some(Fault::NoAddress);
            } else if self.lacks_link(&sandbox).await {
                fault = Some(Fault::NoLink);
            }
        }
        Ok(SandboxStatus { sandbox, fault, ips })
    }

    /// Returns whether a link of the sandbox is gone from the host. It returns false if the links can't be listed.
    async fn lacks_link(&self, sandbox: &Sandbox) -> bool {
        let links = self.links_of(sandbox);
        // Netlink blocks the thread.
        let present = tokio::task::spawn_blocking(links::present).await.ok().flatten();
        present.is_some_and(|present| links.iter().any(|link| !present.contains(link)))
    }

    /// Runs the plugins' CHECK, unless the pod is on the node's network. Fails for an unknown ID.
    pub async fn check(&self, id: &str) -> Result<(), SandboxError> {
        let sandbox = self.get(id)?.ok_or_else(|| SandboxError::Unknown { id: id.to_owned() })?;
        if sandbox.config.host_network {
            return Ok(());
        }
        let checked = self.inner.network.check(&sandbox.network()).await;
        checked.map_err(|err| inspecting(&sandbox, err.into()))
    }
}

/// Returns the error of an inspection.
fn inspecting(sandbox: &Sandbox, cause: Cause) -> SandboxError {
    Causes::from(cause).into_error(SandboxOperation::Inspect, &sandbox.config.pod)
}
