//! Passes pods from the sources to the loop.
//!
//! A kubelet takes a terminating pod's sandbox down when its containers have ended or the grace period is over. The
//! containers are invisible here. So a pod keeps its network until its deletionTimestamp, which the API server sets to
//! the end of the grace period. It loses the network earlier if it ends or is deleted, and gets no new one.
//!
//! A pod that cnimble alone manages has no containers. It is taken down as soon as it is terminating.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use cnimble_pod::PodId;
use cnimble_pod::sandbox::{DnsOptions, SandboxConfig, Sandboxes};
use cnimble_pod::source::{Op, PodConfig, PodUpdate, SOURCE_ANNOTATION, SourceKind};
use cnimble_pod::sync::Input;

use super::writing::Writing;

type Inputs = mpsc::Sender<Input>;

/// Terminating pods with the end of their grace period and their UIDs.
type Closing = BTreeMap<PodId, (Instant, String)>;

/// Converts updates of the sources into inputs of the loop.
pub(super) struct Feed {
    pub(super) config: Arc<PodConfig>,
    /// The input of the loop.
    pub(super) inputs: Inputs,
    pub(super) dns: DnsOptions,
    /// Where the status of pods is written, if that is requested.
    pub(super) writing: Option<Writing>,
    closing: Closing,
    /// The records of pods, from which those of the API server may be restored. It is `None` once the server has listed
    /// its pods or they were restored.
    restorable: Option<Sandboxes>,
    /// The pods that were restored from the records, with their UIDs.
    restored: BTreeMap<PodId, String>,
}

impl Feed {
    /// Creates the feed. `restorable` is `None` without an API server.
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

    /// Passes updates on until the loop ends. When the sources end it waits forever, because the loop keeps the last
    /// updates.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<PodUpdate>) {
        let mut conditions = self.config.conditions();
        // A failure before this subscription counts, too.
        conditions.mark_changed();
        let mut seen = BTreeSet::new();
        let (mut tried, mut ready) = (false, false);
        loop {
            let inputs = tokio::select! {
                update = updates.recv() => {
                    // The loop keeps the last updates.
                    let Some(update) = update else { return std::future::pending().await };
                    seen.insert(update.source);
                    let mut inputs = self.update(&update);
                    inputs.extend(self.drop_unlisted(&update));
                    inputs
                }
                over = over(&mut self.closing) => vec![Input::Unwant(over)],
                Ok(()) = conditions.changed(), if !tried || self.restorable.is_some() => {
                    let down = conditions
                        .borrow_and_update()
                        .iter()
                        .any(|of| of.source == SourceKind::Api && of.whole);
                    if down { self.restore().await } else { Vec::new() }
                }
            };
            for input in inputs {
                if self.inputs.send(input).await.is_err() {
                    return;
                }
            }
            // Only one of both is sent. Between the two a source would look unreadable, which ends a run with `--once`.
            if !ready && self.config.seen_all_sources(&seen) {
                (tried, ready) = (true, true);
                let _ = self.inputs.send(Input::SourcesReady).await;
            } else if !tried && self.config.tried_all_sources(&seen) {
                tried = true;
                let _ = self.inputs.send(Input::SourcesTried).await;
            }
        }
    }

    /// Returns the recorded pods of the API server as wanted ones. This happens once, if the server can't be read after
    /// the start, so that pods have their network after a reboot, too.
    async fn restore(&mut self) -> Vec<Input> {
        let Some(sandboxes) = self.restorable.take() else { return Vec::new() };
        let listing = tokio::task::spawn_blocking(move || sandboxes.list()).await;
        let listing = match listing {
            Ok(Ok(listing)) => listing,
            Ok(Err(err)) => {
                log::warn!("can't restore recorded pods: {err}");
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        let api = SourceKind::Api.to_string();
        let configs = listing.sandboxes.into_iter().map(|sandbox| sandbox.config);
        let pods: Vec<SandboxConfig> =
            configs.filter(|config| config.annotations.get(SOURCE_ANNOTATION) == Some(&api)).collect();
        self.restored = pods.iter().map(|pod| (pod.pod.clone(), pod.uid.clone())).collect();
        if pods.is_empty() {
            return Vec::new();
        }
        log::info!(
            "the API server can't be read: {} of its pods are restored from their records",
            pods.len()
        );
        vec![Input::Want(pods)]
    }

    /// Drops the restored pods that the API server doesn't list. Its first update also ends the restoring.
    fn drop_unlisted(&mut self, update: &PodUpdate) -> Option<Input> {
        if update.source != SourceKind::Api {
            return None;
        }
        self.restorable = None;
        let mut gone = std::mem::take(&mut self.restored);
        update.pods.iter().for_each(|pod| drop(gone.remove(&pod.id)));
        (!gone.is_empty()).then(|| Input::Unwant(gone.into_iter().collect()))
    }

    /// Returns the inputs for an update: pods to remove, to release, to keep until the end of their grace period, and
    /// to set up.
    fn update(&mut self, update: &PodUpdate) -> Vec<Input> {
        let api = update.source == SourceKind::Api;
        let (mut want, mut keep, mut unwant, mut release) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for pod in &update.pods {
            self.closing.remove(&pod.id);
            let writing = self.writing.as_ref().filter(|_| api && pod.facts.managed);
            if update.op == Op::Remove {
                unwant.push((pod.id.clone(), pod.uid.clone()));
                self.writing.iter().filter(|_| api).for_each(|writing| writing.forget(pod));
                continue;
            }
            let config = || SandboxConfig::from_manifest(pod, &self.dns);
            match pod.time_left(SystemTime::now()) {
                None => {
                    writing.into_iter().for_each(|writing| writing.managed(pod));
                    want.push(config());
                }
                Some(_) if writing.is_some() => {
                    writing.into_iter().for_each(|writing| writing.ending(pod));
                    release.push(pod.id.clone());
                }
                Some(Duration::ZERO) => unwant.push((pod.id.clone(), pod.uid.clone())),
                Some(left) => {
                    keep.push(config());
                    self.closing.insert(pod.id.clone(), (Instant::now() + left, pod.uid.clone()));
                }
            }
        }
        let inputs = [
            (!unwant.is_empty()).then_some(Input::Unwant(unwant)),
            (!release.is_empty()).then_some(Input::Release(release)),
            (!keep.is_empty()).then_some(Input::Keep(keep)),
            (!want.is_empty()).then_some(Input::Want(want)),
        ];
        inputs.into_iter().flatten().collect()
    }
}

/// Waits until the grace period of a pod is over, and takes all such pods out of the map. Without pods it waits
/// forever.
async fn over(closing: &mut Closing) -> Vec<(PodId, String)> {
    match closing.values().map(|(end, _)| *end).min() {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
    let now = Instant::now();
    let (over, left): (Closing, Closing) =
        std::mem::take(closing).into_iter().partition(|(_, (end, _))| *end <= now);
    *closing = left;
    over.into_iter().map(|(id, (_, uid))| (id, uid)).collect()
}
