use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cnimble_runtime::Error;

use super::repair::Repair;
use super::work::{Cause, Condition, Up, Work};
use crate::PodId;
use crate::network::NetworkError;
use crate::sandbox::links;
use crate::sandbox::{
    Cause as SandboxCause, Pods, Sandbox, SandboxConfig, SandboxError, SandboxState, Sandboxes,
};
use crate::source::SOURCE_ANNOTATION;

/// How many failed checks in a row give a pod a new sandbox, as with a kubelet's liveness probes.
const STRIKES: u32 = 3;

/// The work of the loop on sandboxes.
#[derive(Debug)]
pub struct SandboxWork {
    sandboxes: Sandboxes,
    repair: Repair,
    known: Arc<Mutex<BTreeMap<PodId, Arc<WatchedSandbox>>>>,
    /// The unreadable records that have been logged.
    unreadable: Mutex<BTreeSet<String>>,
}

/// A sandbox that is up, with its links on the host.
#[derive(Debug, Clone)]
struct WatchedSandbox {
    sandbox: Sandbox,
    links: Vec<String>,
    /// Whether it has been reported as broken.
    lost: bool,
}

impl SandboxWork {
    /// Returns the work on these sandboxes. `repair` runs before a failed CHECK counts.
    pub fn new(sandboxes: Sandboxes, repair: Repair) -> Self {
        SandboxWork { sandboxes, repair, known: Arc::default(), unreadable: Mutex::default() }
    }

    /// Stops a sandbox, unless the pod has another one by now.
    async fn discard(&self, pod: &PodId, sandbox: &str) -> Result<(), Condition> {
        let current = self.sandboxes.find(pod).map_err(|err| condition(FAILED_KILL, &err))?;
        if current.is_some_and(|current| current.id == sandbox && current.state == SandboxState::Ready) {
            self.sandboxes.stop(sandbox).await.map_err(|err| condition(FAILED_KILL, &err))?;
        }
        Ok(())
    }

    /// Remembers a sandbox, so that it is watched and checked.
    fn remember(&self, sandbox: Sandbox) -> Up {
        let up = Up { sandbox: sandbox.id.clone(), ips: sandbox.ips.clone() };
        let links = self.sandboxes.links_of(&sandbox);
        let known = WatchedSandbox { sandbox: lean(sandbox), links, lost: false };
        lock(&self.known).insert(known.sandbox.config.pod.clone(), Arc::new(known));
        up
    }

    /// Returns the network that an ending pod has. Fails without one, because it gets no new one.
    fn existing_network(&self, pod: &SandboxConfig) -> Result<Up, Condition> {
        let found = self.sandboxes.find(&pod.pod).map_err(|err| condition(FAILED_CREATE, &err))?;
        match found.filter(|of| of.config.serves(pod) && self.sandboxes.fault(of).is_none()) {
            Some(sandbox) => Ok(self.remember(sandbox)),
            None => Err(Condition { reason: FAILED_CREATE, message: "the pod is being deleted".to_owned() }),
        }
    }

    /// Runs CHECK. Fails if it fails, except that after [`STRIKES`] failures in a row that plugins reported the sandbox
    /// is stopped, so that the pod gets a new one. That needs a usable network.
    async fn check(&self, pod: &PodId, strikes: u32) -> Result<(), Condition> {
        let Some(known) = lock(&self.known).get(pod).cloned() else { return Ok(()) };
        let Err(err) = self.check_and_repair(pod, &known.sandbox.id).await else { return Ok(()) };
        if strikes + 1 < STRIKES || !is_refusal(&err) || self.sandboxes.network().ready().is_err() {
            return Err(condition(CHECK_FAILED, &err));
        }
        log::warn!("pod {pod} gets a new sandbox: {err}");
        self.discard(pod, &known.sandbox.id).await
    }

    /// Runs CHECK. If plugins report a failure, puts back what the host has lost of the sandbox, and runs CHECK again.
    /// So a flush of the packet rules costs the pod neither its sandbox nor its address.
    async fn check_and_repair(&self, pod: &PodId, sandbox: &str) -> Result<(), SandboxError> {
        let outcome = self.sandboxes.check(sandbox).await;
        if !outcome.as_ref().is_err_and(is_refusal) {
            return outcome;
        }
        let Some(parts) = self.repair.put_back(sandbox).await else { return outcome };
        log::info!("pod {pod}: put back what the host had lost: {parts}");
        self.sandboxes.check(sandbox).await
    }
}

const FAILED_CREATE: &str = "FailedCreatePodSandBox";
const FAILED_KILL: &str = "FailedKillPod";
const CHECK_FAILED: &str = "NetworkCheckFailed";
const NOT_READY: &str = "NetworkNotReady";

/// Converts an error into a condition. A network that is not ready has its own reason.
fn condition(reason: &'static str, err: &SandboxError) -> Condition {
    let reason = match err.causes().first() {
        Some(SandboxCause::NotReady(_)) => NOT_READY,
        Some(SandboxCause::Network(err)) if matches!(&**err, NetworkError::NotReady(_)) => NOT_READY,
        _ => reason,
    };
    Condition { reason, message: err.to_string() }
}

/// Returns whether all failures are errors that plugins reported, and not those of missing or silent plugins.
fn is_refusal(err: &SandboxError) -> bool {
    err.causes().iter().all(|cause| match cause {
        SandboxCause::Network(err) => match &**err {
            NetworkError::Plugins { failures, .. } => failures.iter().all(
                |failure| matches!(failure, Error::Plugins(plugins) if plugins.first.cause.is_refusal()),
            ),
            _ => false,
        },
        _ => false,
    })
}

impl Work for SandboxWork {
    async fn up(&self, pod: &Arc<SandboxConfig>, cause: &Cause) -> Result<Up, Condition> {
        match cause {
            Cause::Lost { sandbox, .. } => self.discard(&pod.pod, sandbox).await?,
            Cause::Check(strikes) => self.check(&pod.pod, *strikes).await?,
            Cause::Ending => return self.existing_network(pod),
            Cause::Config | Cause::Retry => {}
        }
        let sandbox = self.sandboxes.run(pod).await.map_err(|err| condition(FAILED_CREATE, &err))?;
        Ok(self.remember(sandbox))
    }

    async fn down(&self, pod: &PodId) -> Result<(), Condition> {
        lock(&self.known).remove(pod);
        self.sandboxes.down(pod).await.map(|_| ()).map_err(|err| condition(FAILED_KILL, &err))
    }

    async fn existing(&self) -> Result<Vec<PodId>, String> {
        let sandboxes = self.sandboxes.clone();
        let listing = tokio::task::spawn_blocking(move || {
            // Pods of `cnimble pod up` have no source, and are not this loop's.
            sandboxes.pods(|of| of.config.annotations.contains_key(SOURCE_ANNOTATION))
        })
        .await;
        let Pods { pods, problems } =
            listing.map_err(|err| err.to_string())?.map_err(|err| err.to_string())?;
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, cause) in &problems {
            let problem = format!("sandbox {id}: {cause}");
            if unreadable.insert(problem.clone()) {
                log::warn!("{problem}");
            }
        }
        Ok(pods)
    }

    async fn lost(&self) -> Vec<(PodId, Cause)> {
        let (sandboxes, known) = (self.sandboxes.clone(), Arc::clone(&self.known));
        // Netlink and namespaces block the thread.
        let looked = tokio::task::spawn_blocking(move || find_lost(&sandboxes, &known)).await;
        looked.unwrap_or_default()
    }

    async fn clean(&self) -> Result<(), String> {
        self.sandboxes.gc().await.map_err(|err| err.to_string())
    }
}

/// Returns the record without its large parts, because there may be thousands. Network, addresses and the text of
/// resolv.conf are empty. Of the configuration the pod, its UID and `host_network` stay.
fn lean(sandbox: Sandbox) -> Sandbox {
    let config = SandboxConfig {
        host_network: sandbox.config.host_network,
        ..SandboxConfig::new(sandbox.config.pod, sandbox.config.uid)
    };
    Sandbox { config, network: None, ips: Vec::new(), resolv_conf: None, ..sandbox }
}

/// Returns the pods whose sandboxes are broken. Each sandbox is reported once.
fn find_lost(
    sandboxes: &Sandboxes,
    known: &Mutex<BTreeMap<PodId, Arc<WatchedSandbox>>>,
) -> Vec<(PodId, Cause)> {
    let pods: Vec<Arc<WatchedSandbox>> = lock(known).values().filter(|pod| !pod.lost).cloned().collect();
    let present = if pods.is_empty() { None } else { links::present() };
    let mut lost = Vec::new();
    for pod in pods {
        let fault = sandboxes.fault(&pod.sandbox);
        let missing =
            pod.links.iter().find(|name| present.as_ref().is_some_and(|present| !present.contains(*name)));
        let what = match (fault, missing) {
            (Some(fault), _) => fault.to_string(),
            (None, Some(link)) => format!("its link {link} is gone from the host"),
            (None, None) => continue,
        };
        // The pod may have been taken down meanwhile, or have another sandbox.
        let id = &pod.sandbox.config.pod;
        if let Some(now) = lock(known).get_mut(id).filter(|now| now.sandbox.id == pod.sandbox.id) {
            Arc::make_mut(now).lost = true;
            lost.push((id.clone(), Cause::Lost { sandbox: pod.sandbox.id.clone(), what }));
        }
    }
    lost
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
