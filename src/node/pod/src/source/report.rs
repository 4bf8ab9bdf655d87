//! Passes the sources' pods and problems to the listener, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::merge::{MergeEffect, PodChange, Storage};
use super::{Condition, PodUpdate, SourceError, SourceKind};
use crate::PodId;
use crate::manifest::{Manifest, Origin};

/// The state that the sources share.
#[derive(Debug)]
pub(super) struct SharedSources {
    /// The lock that is held while updates are sent, which keeps them in order.
    order: tokio::sync::Mutex<()>,
    state: Mutex<MergedSources>,
    updates: mpsc::Sender<PodUpdate>,
    pub(super) conditions: watch::Sender<Vec<Condition>>,
}

/// The pods of all sources, and what is wrong with each source.
#[derive(Debug, Default)]
pub(super) struct MergedSources {
    pub(super) storage: Storage,
    problems: BTreeMap<SourceKind, Vec<Condition>>,
}

impl MergedSources {
    /// Returns whether the source as a whole can't be read.
    pub(super) fn fails(&self, source: SourceKind) -> bool {
        self.problems.get(&source).into_iter().flatten().any(|condition| condition.whole)
    }
}

/// How many pods without a name or UID are reported.
const LOSERS: usize = 100;

impl SharedSources {
    pub(super) fn new(updates: mpsc::Sender<PodUpdate>) -> Self {
        SharedSources {
            order: tokio::sync::Mutex::default(),
            state: Mutex::default(),
            updates,
            conditions: watch::Sender::new(Vec::new()),
        }
    }

    /// Locks the state.
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, MergedSources> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes all conditions if they have changed. Known ones keep their time.
    fn publish(&self) {
        let state = self.state();
        let mut all: Vec<Condition> = state.problems.values().flatten().cloned().collect();
        all.extend(state.storage.losers().take(LOSERS).map(|loser| {
            let (pod, origin) = (Box::new(loser.pod.clone()), Origin::clone(&loser.origin));
            let winner = Origin::clone(&loser.winner);
            let error = match loser.uid.clone() {
                None => SourceError::DuplicateName { pod, origin, winner },
                Some(uid) => SourceError::DuplicateUid { pod, uid, origin, winner },
            };
            Condition::new(loser.source, &loser.origin, error)
        }));
        drop(state);
        self.conditions.send_if_modified(|conditions| {
            if conditions.len() == all.len() && conditions.iter().zip(&all).all(|(a, b)| a.is_same(b)) {
                return false;
            }
            for condition in &mut all {
                let known = conditions.iter().find(|known| known.is_same(condition));
                condition.since = known.map_or(condition.since, |known| known.since);
            }
            *conditions = all;
            true
        });
    }
}

impl Condition {
    /// Returns the condition of a part of a source that can't be used. It began now, and names the pod if the error
    /// does.
    pub(super) fn new(source: SourceKind, origin: &Origin, error: SourceError) -> Self {
        let pod = match &error {
            SourceError::Manifest(err) => err.pod.as_deref().cloned(),
            SourceError::DuplicateName { pod, .. } | SourceError::DuplicateUid { pod, .. } => {
                Some((**pod).clone())
            }
            _ => None,
        };
        let (origin, error, since) = (origin.clone(), Arc::new(error), SystemTime::now());
        Condition { source, origin, pod, error, whole: false, since }
    }

    /// Returns the condition of a source that can't be read as a whole.
    pub(super) fn whole(source: SourceKind, origin: &Origin, error: SourceError) -> Self {
        Condition { whole: true, ..Condition::new(source, origin, error) }
    }

    /// Returns whether both are equal apart from the time.
    fn is_same(&self, other: &Condition) -> bool {
        self.source == other.source
            && self.origin == other.origin
            && self.pod == other.pod
            && self.whole == other.whole
            && self.error.to_string() == other.error.to_string()
    }
}

/// One source's way to the listener.
pub(super) struct Reporter {
    pub(super) kind: SourceKind,
    pub(super) shared: Arc<SharedSources>,
    pub(super) reread: watch::Receiver<()>,
}

impl Reporter {
    /// Reports all pods of the source.
    pub(super) async fn set(&self, pods: Vec<Arc<Manifest>>) {
        self.set_but(pods, &BTreeSet::new()).await;
    }

    /// Reports all pods of the source, except for the names in `keep`, whose part of the source can't be read.
    pub(super) async fn set_but(&self, pods: Vec<Arc<Manifest>>, keep: &BTreeSet<PodId>) {
        let _order = self.shared.order.lock().await;
        let outcome = self.shared.state().storage.set(self.kind, pods, keep);
        self.send_updates(outcome).await;
    }

    /// Reports a change of one pod.
    pub(super) async fn change(&self, change: PodChange) {
        let _order = self.shared.order.lock().await;
        let outcome = self.shared.state().storage.change(self.kind, change);
        self.send_updates(outcome).await;
    }

    /// Returns the number and bytes of other pods.
    pub(super) fn room(&self, id: &PodId) -> (usize, usize) {
        self.shared.state().storage.besides(self.kind, id)
    }

    async fn send_updates(&self, outcome: MergeEffect) {
        if outcome.losers_changed {
            self.shared.publish();
        }
        for update in outcome.updates {
            // Without a listener nobody needs the update.
            let _ = self.shared.updates.send(update).await;
        }
    }

    /// Replaces the source's problems.
    pub(super) fn complain(&self, complaints: Vec<Condition>) {
        let mut state = self.shared.state();
        let known = state.problems.entry(self.kind).or_default();
        if known.is_empty() && complaints.is_empty() {
            return;
        }
        let _before = mem::replace(known, complaints);
        drop(state);
        self.shared.publish();
    }

    /// Waits until the sources are to be read again.
    pub(super) async fn wanted(&mut self) {
        if self.reread.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
