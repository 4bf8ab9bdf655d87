//! From the sources to the loop.
//!
//! A pod with a deletionTimestamp is on its way out. A kubelet lets its containers run until they
//! end or its grace period is over, and takes its sandbox down then. The containers aren't ours to
//! see, so a pod keeps the network that it has until its deletionTimestamp, by which the API server
//! means the end of the grace period, or until it is gone or has ended, if that is sooner. It gets
//! no network that it hasn't got. A pod that we are said to look after alone has no containers: it
//! is taken down at once, as by a kubelet whose containers have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use cnimble_pod::PodId;
use cnimble_pod::manifest::Manifest;
use cnimble_pod::sandbox::{DnsOptions, Sandbox, SandboxConfig, Sandboxes};
use cnimble_pod::source::{Condition, Op, PodConfig, PodUpdate, SOURCE_ANNOTATION, SourceKind};
use cnimble_pod::sync::Input;

use super::writing::Writing;

type Inputs = mpsc::Sender<Input<SandboxConfig>>;

/// What is passed on, and what is known of it.
pub(super) struct Feed {
    pub(super) config: Arc<PodConfig>,
    pub(super) inputs: Inputs,
    pub(super) dns: DnsOptions,
    /// The writer of the pods' status, if there is one.
    pub(super) writing: Option<Writing>,
    closing: Closing,
    /// Where pods of the API server are on record, until it has told of its pods.
    restorable: Option<Sandboxes>,
    /// Those that were taken from there, with their UIDs.
    restored: BTreeMap<PodId, String>,
}

/// Pods that keep their network for a while.
#[derive(Default)]
struct Closing {
    pods: BTreeMap<PodId, (Instant, String)>,
    order: BTreeSet<(Instant, PodId)>,
}

impl Closing {
    fn put(&mut self, pod: &Manifest, left: Duration) {
        self.forget(&pod.id);
        let end = Instant::now() + left;
        self.pods.insert(pod.id.clone(), (end, pod.uid.clone()));
        self.order.insert((end, pod.id.clone()));
    }

    fn forget(&mut self, id: &PodId) {
        if let Some((end, _)) = self.pods.remove(id) {
            self.order.remove(&(end, id.clone()));
        }
    }

    /// Waits until the time of one is over, and gives away all whose is.
    async fn over(&mut self) -> Vec<(PodId, String)> {
        match self.order.first() {
            Some((end, _)) => sleep_until(*end).await,
            None => std::future::pending().await,
        }
        let now = Instant::now();
        let mut over = Vec::new();
        while let Some((_, id)) = self.order.pop_first().filter(|(end, id)| {
            let ends = *end <= now;
            if !ends {
                self.order.insert((*end, id.clone()));
            }
            ends
        }) {
            over.extend(self.pods.remove(&id).map(|(_, uid)| (id, uid)));
        }
        over
    }
}

impl Feed {
    pub(super) fn new(
        config: Arc<PodConfig>,
        inputs: Inputs,
        dns: DnsOptions,
        writing: Option<Writing>,
        restorable: Option<Sandboxes>,
    ) -> Self {
        let (closing, restored) = (Closing::default(), BTreeMap::new());
        Feed { config, inputs, dns, writing, closing, restorable, restored }
    }

    /// Passes updates on until one of both ends.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<PodUpdate>) {
        let mut conditions = self.config.conditions();
        // What has failed before anybody listened counts as well.
        conditions.mark_changed();
        let mut seen = BTreeSet::new();
        let (mut tried, mut ready) = (false, false);
        loop {
            let inputs = tokio::select! {
                update = updates.recv() => {
                    // The loop keeps what it was told last.
                    let Some(update) = update else { return std::future::pending().await };
                    seen.insert(update.source);
                    let mut inputs = self.update(&update);
                    inputs.extend(self.settle(&update));
                    inputs
                }
                over = self.closing.over() => vec![Input::Unwant(over)],
                Ok(()) = conditions.changed(), if !tried || self.restorable.is_some() => {
                    let failing = |of: &Condition| of.source == SourceKind::Api && of.whole;
                    let down = conditions.borrow_and_update().iter().any(failing);
                    if down { self.restore().await } else { Vec::new() }
                }
            };
            for input in inputs {
                if self.inputs.send(input).await.is_err() {
                    return;
                }
            }
            // Not one after the other: in between it would seem that some source can't be read, which ends a
            // run that is to end when all has been tried.
            if !ready && self.config.seen_all_sources(&seen) {
                (tried, ready) = (true, true);
                let _ = self.inputs.send(Input::SourcesReady).await;
            } else if !tried && self.config.tried_all_sources(&seen) {
                tried = true;
                let _ = self.inputs.send(Input::SourcesTried).await;
            }
        }
    }

    /// The API server can't be read, and has not been since we started: the pods that we have on record
    /// of it are wanted, also after a reboot, until it says otherwise.
    async fn restore(&mut self) -> Vec<Input<SandboxConfig>> {
        let Some(sandboxes) = self.restorable.take() else { return Vec::new() };
        let listing = tokio::task::spawn_blocking(move || sandboxes.list()).await;
        let listing = match listing {
            Ok(Ok(listing)) => listing,
            Ok(Err(err)) => {
                log::warn!("pods on record can't be restored: {err}");
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        let api = SourceKind::Api.to_string();
        let ours = |of: &Sandbox| of.config.annotations.get(SOURCE_ANNOTATION) == Some(&api);
        let pods: Vec<SandboxConfig> =
            listing.sandboxes.into_iter().filter(ours).map(|sandbox| sandbox.config).collect();
        self.restored = pods.iter().map(|pod| (pod.pod.clone(), pod.uid.clone())).collect();
        if pods.is_empty() {
            return Vec::new();
        }
        log::info!("the API server can't be read: {} of its pods are kept as they are on record", pods.len());
        vec![Input::Want(pods)]
    }

    /// The API server has told of all its pods: what it didn't name isn't wanted any more.
    fn settle(&mut self, update: &PodUpdate) -> Option<Input<SandboxConfig>> {
        if update.source != SourceKind::Api {
            return None;
        }
        self.restorable = None;
        let mut gone = std::mem::take(&mut self.restored);
        update.pods.iter().for_each(|pod| drop(gone.remove(&pod.id)));
        (!gone.is_empty()).then(|| Input::Unwant(gone.into_iter().collect()))
    }

    fn update(&mut self, update: &PodUpdate) -> Vec<Input<SandboxConfig>> {
        let api = update.source == SourceKind::Api;
        let (mut want, mut keep, mut unwant, mut release) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for pod in &update.pods {
            self.closing.forget(&pod.id);
            let writing = self.writing.as_ref().filter(|_| api && pod.is_managed());
            if update.op == Op::Remove {
                unwant.push((pod.id.clone(), pod.uid.clone()));
                self.writing.iter().filter(|_| api).for_each(|writing| writing.forget(pod));
                continue;
            }
            let config = || SandboxConfig::from_manifest(pod, &self.dns);
            match pod.time_left(SystemTime::now()) {
                None => {
                    writing.into_iter().for_each(|writing| writing.managed(pod, false));
                    want.push(config());
                }
                Some(_) if writing.is_some() => {
                    writing.into_iter().for_each(|writing| writing.managed(pod, true));
                    release.push(pod.id.clone());
                }
                Some(Duration::ZERO) => unwant.push((pod.id.clone(), pod.uid.clone())),
                Some(left) => {
                    keep.push(config());
                    self.closing.put(pod, left);
                }
            }
        }
        let mut inputs = Vec::new();
        if !unwant.is_empty() {
            inputs.push(Input::Unwant(unwant));
        }
        if !release.is_empty() {
            inputs.push(Input::Release(release));
        }
        if !keep.is_empty() {
            inputs.push(Input::Keep(keep));
        }
        if !want.is_empty() {
            inputs.push(Input::Want(want));
        }
        inputs
    }
}
