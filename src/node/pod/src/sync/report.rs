use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::watch;

use super::work::Condition;
use crate::PodId;

/// The state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Phase {
    Pending,
    Ready,
    /// The network failed, or is no longer as it was. Another try follows.
    Failed,
    Terminating,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 4] = [Phase::Pending, Phase::Ready, Phase::Failed, Phase::Terminating];

    /// Returns the phase in a word, for output.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Ready => "Ready",
            Phase::Failed => "Failed",
            Phase::Terminating => "Terminating",
        }
    }
}

/// The state of a pod with details.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    #[serde(flatten)]
    pub id: PodId,
    /// The UID, which is empty for an unwanted pod.
    pub uid: String,
    pub phase: Phase,
    /// Why the pod isn't ready, in one word.
    pub reason: Option<&'static str>,
    /// The reason in a sentence.
    pub message: Option<String>,
    pub sandbox: Option<String>,
    pub ips: Vec<IpAddr>,
    /// How many times in a row it has failed.
    pub failures: u32,
    /// The time of the last change of phase or reason.
    #[serde(serialize_with = "unix_seconds")]
    pub since: SystemTime,
    /// How long the last work on it took.
    #[serde(rename = "tookSeconds", serialize_with = "seconds")]
    pub took: Duration,
}

fn unix_seconds<S: serde::Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    to.serialize_f64(since.as_secs_f64())
}

fn seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

impl PodReport {
    pub(super) fn new(id: PodId, uid: String, phase: Phase) -> Self {
        PodReport {
            id,
            uid,
            phase,
            reason: None,
            message: None,
            sandbox: None,
            ips: Vec::new(),
            failures: 0,
            since: SystemTime::now(),
            took: Duration::ZERO,
        }
    }

    /// Sets reason and message. `None` clears them.
    pub(super) fn condition(&mut self, condition: Option<Condition>) {
        (self.reason, self.message) = condition.map(|of| (of.reason, of.message)).unzip();
    }
}

/// The state of the loop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overall {
    /// Whether every source has been read at least once.
    pub sources_ready: bool,
    /// Whether all wanted pods have been tried, and unwanted ones are gone or have been tried.
    pub settled: bool,
    /// Whether some source is unreadable, and all that the others want has been tried.
    pub tried: bool,
    /// Why nothing can be done. It is `None` in the usual case.
    pub trouble: Option<String>,
}

/// The present state of all pods. It is cheap to clone, and all clones share one state.
#[derive(Debug, Clone)]
pub struct Board {
    pods: Arc<Mutex<BTreeMap<PodId, PodReport>>>,
    overall: Arc<watch::Sender<Overall>>,
    beat: Arc<Mutex<Instant>>,
}

impl Default for Board {
    fn default() -> Self {
        Board {
            pods: Arc::default(),
            overall: Arc::new(watch::Sender::new(Overall::default())),
            beat: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl Board {
    /// Returns the reports of all pods, sorted by ID.
    pub fn pods(&self) -> Vec<PodReport> {
        self.lock().values().cloned().collect()
    }

    /// Returns how many pods there are in each phase, also for phases without any.
    pub fn counts(&self) -> BTreeMap<Phase, usize> {
        let mut counts: BTreeMap<Phase, usize> = Phase::ALL.into_iter().map(|phase| (phase, 0)).collect();
        for pod in self.lock().values() {
            *counts.entry(pod.phase).or_default() += 1;
        }
        counts
    }

    /// Returns a receiver for the state of the loop.
    pub fn overall(&self) -> watch::Receiver<Overall> {
        self.overall.subscribe()
    }

    /// Returns how long ago the loop last went round. It does so every second, or within five seconds in trouble.
    pub fn age(&self) -> Duration {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Records that the loop goes round.
    pub(super) fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Changes the state of the loop, and notifies only if it differs.
    pub(super) fn set_overall(&self, change: impl FnOnce(&mut Overall)) {
        self.overall.send_if_modified(|overall| {
            let before = overall.clone();
            change(overall);
            *overall != before
        });
    }

    /// Removes the report of a pod. Returns `None` if there was none.
    pub(super) fn remove(&self, id: &PodId) -> Option<PodReport> {
        self.lock().remove(id)
    }

    /// Changes the report of a pod, which is made if it is missing. Returns it if anything that matters to readers has
    /// changed.
    pub(super) fn update(
        &self,
        id: &PodId,
        uid: &str,
        change: impl FnOnce(&mut PodReport),
    ) -> Option<PodReport> {
        let mut pods = self.lock();
        let mut is_new = false;
        let report = pods.entry(id.clone()).or_insert_with(|| {
            is_new = true;
            PodReport::new(id.clone(), uid.to_owned(), Phase::Pending)
        });
        let before = (report.phase, report.reason, report.message.clone(), report.ips.clone());
        let uid_before = std::mem::replace(&mut report.uid, uid.to_owned());
        change(report);
        if report.phase != before.0 || report.reason != before.1 {
            report.since = SystemTime::now();
        }
        let after = (report.phase, report.reason, report.message.clone(), report.ips.clone());
        (is_new || before != after || uid_before != report.uid).then(|| report.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodId, PodReport>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
