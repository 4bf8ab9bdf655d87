//! What sources have read, on its way to whoever listens: merged, in order, with what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::merge::{self, Storage};
use super::{Condition, PodUpdate, SourceError, SourceKind};
use crate::PodId;
use crate::manifest::{Manifest, Origin};

#[derive(Debug)]
pub(super) struct Shared {
    /// Locked while updates are sent, so that their order is the order of the changes.
    pub(super) storage: tokio::sync::Mutex<Storage>,
    pub(super) state: Mutex<State>,
    pub(super) updates: mpsc::Sender<PodUpdate>,
    pub(super) conditions: watch::Sender<Vec<Condition>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) seen: BTreeSet<SourceKind>,
    pub(super) pods: Vec<Manifest>,
    /// What each source has to complain about.
    problems: BTreeMap<SourceKind, Vec<Complaint>>,
    duplicates: Vec<(SourceKind, Complaint)>,
}

impl Shared {
    pub(super) fn new(updates: mpsc::Sender<PodUpdate>) -> Self {
        Shared {
            storage: tokio::sync::Mutex::default(),
            state: Mutex::default(),
            updates,
            conditions: watch::Sender::new(Vec::new()),
        }
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of all complaints; those that were known keep their time.
    fn publish(&self) {
        let state = self.state();
        let all: Vec<(SourceKind, Complaint)> = state
            .problems
            .iter()
            .flat_map(|(kind, list)| list.iter().map(|complaint| (*kind, complaint.clone())))
            .chain(state.duplicates.iter().cloned())
            .collect();
        drop(state);
        self.conditions.send_if_modified(|conditions| {
            let same = |condition: &Condition, (kind, complaint): &(SourceKind, Complaint)| {
                condition.source == *kind
                    && condition.origin == complaint.origin
                    && condition.pod == complaint.pod
                    && condition.error.to_string() == complaint.error.to_string()
            };
            if conditions.len() == all.len() && conditions.iter().zip(&all).all(|(a, b)| same(a, b)) {
                return false;
            }
            let now = SystemTime::now();
            let next = all.iter().map(|complaint| {
                let known = conditions.iter().find(|condition| same(condition, complaint));
                Condition {
                    source: complaint.0,
                    origin: complaint.1.origin.clone(),
                    pod: complaint.1.pod.clone(),
                    error: Arc::clone(&complaint.1.error),
                    since: known.map_or(now, |condition| condition.since),
                }
            });
            *conditions = next.collect();
            true
        });
    }
}

/// Something that a source can't do.
#[derive(Debug, Clone)]
pub(super) struct Complaint {
    pub(super) origin: Origin,
    pub(super) pod: Option<PodId>,
    pub(super) error: Arc<SourceError>,
}

impl Complaint {
    pub(super) fn new(origin: &Origin, error: SourceError) -> Self {
        let pod = match &error {
            SourceError::Manifest(err) => err.pod.as_deref().cloned(),
            SourceError::DuplicateName { pod, .. } | SourceError::DuplicateUid { pod, .. } => {
                Some((**pod).clone())
            }
            _ => None,
        };
        Complaint { origin: origin.clone(), pod, error: Arc::new(error) }
    }
}

/// A source's way to tell what it has read.
pub(super) struct Reporter {
    pub(super) kind: SourceKind,
    pub(super) shared: Arc<Shared>,
    pub(super) reread: watch::Receiver<()>,
}

impl Reporter {
    /// These are all pods of this source.
    pub(super) async fn set(&self, pods: Vec<Manifest>) {
        let mut storage = self.shared.storage.lock().await;
        let (updates, losers) = storage.set(self.kind, pods);
        {
            let mut state = self.shared.state();
            state.seen.insert(self.kind);
            state.pods = storage.pods();
            let complain = |loser: merge::Loser| {
                let (pod, origin, winner) = (Box::new(loser.pod), loser.origin.clone(), loser.winner);
                let error = match loser.uid {
                    None => SourceError::DuplicateName { pod, origin, winner },
                    Some(uid) => SourceError::DuplicateUid { pod, uid, origin, winner },
                };
                (loser.source, Complaint::new(&loser.origin, error))
            };
            state.duplicates = losers.into_iter().map(complain).collect();
        }
        self.shared.publish();
        for update in updates {
            // Without a listener nobody wants to know.
            let _ = self.shared.updates.send(update).await;
        }
    }

    /// This is all that is wrong with this source.
    pub(super) fn complain(&self, complaints: Vec<Complaint>) {
        self.shared.state().problems.insert(self.kind, complaints);
        self.shared.publish();
    }

    /// Waits until somebody wants everything to be read again.
    pub(super) async fn wanted(&mut self) {
        if self.reread.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
