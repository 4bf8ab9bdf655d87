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
use cnimble_pod::sandbox::{DnsOptions, SandboxConfig};
use cnimble_pod::source::{Op, PodConfig, PodUpdate, SourceKind};
use cnimble_pod::sync::Input;

use super::writing::Writing;

type Inputs = mpsc::Sender<Input<SandboxConfig>>;

/// What is passed on, and what is known of it.
pub(super) struct Feed {
    pub(super) config: Arc<PodConfig>,
    pub(super) inputs: Inputs,
    pub(super) dns: DnsOptions,
    /// Who writes the status of pods, if somebody is to.
    pub(super) writing: Option<Writing>,
    closing: Closing,
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
    ) -> Self {
        Feed { config, inputs, dns, writing, closing: Closing::default() }
    }

    /// Passes updates on until one of both ends.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<PodUpdate>) {
        let mut conditions = self.config.conditions();
        let mut seen = BTreeSet::new();
        let (mut tried, mut ready) = (false, false);
        loop {
            let inputs = tokio::select! {
                update = updates.recv() => {
                    // The loop keeps what it was told last.
                    let Some(update) = update else { return std::future::pending().await };
                    seen.insert(update.source);
                    self.update(&update)
                }
                over = self.closing.over() => vec![Input::Unwant(over)],
                Ok(()) = conditions.changed(), if !tried => Vec::new(),
            };
            for input in inputs {
                if self.inputs.send(input).await.is_err() {
                    return;
                }
            }
            if !tried && self.config.tried_all_sources(&seen) {
                tried = true;
                let _ = self.inputs.send(Input::SourcesTried).await;
            }
            if !ready && self.config.seen_all_sources(&seen) {
                ready = true;
                let _ = self.inputs.send(Input::SourcesReady).await;
            }
        }
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
