//! Merges sources as the kubelet's PodConfig storage does, without I/O. A source passes all wanted pods
//! ([`Storage::set`]) or a change ([`Storage::change`]), which concerns pods with its name or its UID only. The
//! difference gives the updates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Op, PodUpdate, SourceKind};
use crate::PodId;
use crate::manifest::{Manifest, Origin};

/// The kubelet's annotation for the source of a pod.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// A wanted pod that cannot run, because another one has its name or UID.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loser {
    pub(super) source: SourceKind,
    pub(super) pod: PodId,
    pub(super) origin: Arc<Origin>,
    /// The UID that both have. It is `None` if they have the same name.
    pub(super) uid: Option<String>,
    pub(super) winner: Arc<Origin>,
}

type Wanted = (SourceKind, Arc<Manifest>);

impl Loser {
    fn new((source, loser): &Wanted, winner: &Arc<Origin>, uid: Option<String>) -> Self {
        Loser {
            source: *source,
            pod: loser.id.clone(),
            origin: Arc::clone(&loser.origin),
            uid,
            winner: Arc::clone(winner),
        }
    }
}

/// All wanted pods of one name.
#[derive(Debug, Default)]
struct Slot {
    /// The candidates in the order of sources, then in a source's order.
    candidates: Vec<Wanted>,
    /// The pod that runs.
    chosen: Option<Wanted>,
    losers: Vec<Loser>,
    /// The UID for which the winner of the name waits, because a pod of another name has it.
    waits: Option<String>,
}

/// The pods of all sources.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// The sources that have been read.
    seen: BTreeSet<SourceKind>,
    slots: BTreeMap<PodId, Slot>,
    /// The names of the chosen pods by UID.
    uids: BTreeMap<String, PodId>,
    /// The names whose winners wait for a UID.
    waiting: BTreeMap<String, BTreeSet<PodId>>,
    /// Roughly the bytes of all candidates.
    weight: usize,
}

/// The effect of a change.
#[derive(Debug, Default)]
pub(super) struct MergeEffect {
    /// The updates for the listener. Removals come first, because a new pod may have the same name.
    pub(super) updates: Vec<PodUpdate>,
    pub(super) losers_changed: bool,
}

/// A change of one pod of a source.
#[derive(Debug)]
pub(super) enum PodChange {
    Put(Arc<Manifest>),
    Drop(PodId),
}

/// Returns whether both are the same pod of the same source.
fn same_pod(a: &Wanted, b: &Wanted) -> bool {
    a.0 == b.0 && a.1.uid == b.1.uid
}

impl Slot {
    /// Removes a source's candidates. Returns their weight.
    fn forget(&mut self, source: SourceKind) -> usize {
        let gone = self.candidates.extract_if(.., |(of, _)| *of == source);
        gone.map(|(_, pod)| pod.weight()).sum()
    }

    /// Returns the pod that has the name: the chosen one, a new one of the same origin, or else the first by source and
    /// order.
    fn winner(&self) -> Option<&Wanted> {
        let Some(chosen) = &self.chosen else { return self.candidates.first() };
        let mut candidates = self.candidates.iter();
        if let Some(same) = candidates.clone().find(|one| same_pod(chosen, one)) {
            return Some(same);
        }
        let successor = candidates.find(|one| chosen.0 == one.0 && chosen.1.origin == one.1.origin);
        successor.or(self.candidates.first())
    }
}

impl Storage {
    /// Returns whether the source has been read.
    pub(super) fn seen(&self, source: SourceKind) -> bool {
        self.seen.contains(&source)
    }

    /// Returns the pods that run.
    pub(super) fn pods(&self) -> Vec<Arc<Manifest>> {
        self.slots.values().filter_map(|slot| Some(Arc::clone(&slot.chosen.as_ref()?.1))).collect()
    }

    /// Returns the number of other names, and the bytes of all pods except this source's pod of the name.
    pub(super) fn besides(&self, source: SourceKind, id: &PodId) -> (usize, usize) {
        let own = self.slots.get(id).into_iter().flat_map(|slot| &slot.candidates);
        let own = own.filter(|(of, _)| *of == source);
        let weight: usize = own.map(|(_, pod)| pod.weight()).sum();
        (self.slots.len() - usize::from(self.slots.contains_key(id)), self.weight - weight)
    }

    /// Returns the pods that cannot run.
    pub(super) fn losers(&self) -> impl Iterator<Item = &Loser> {
        self.slots.values().flat_map(|slot| &slot.losers)
    }

    /// Replaces all pods of a source. The names in `keep` stay as they are, because their part of the source can't be
    /// read.
    pub(super) fn set(
        &mut self,
        source: SourceKind,
        pods: Vec<Arc<Manifest>>,
        keep: &BTreeSet<PodId>,
    ) -> MergeEffect {
        let first = self.seen.insert(source);
        let mut touched = BTreeSet::new();
        for (id, slot) in &mut self.slots {
            let before = slot.candidates.len();
            if !keep.contains(id) {
                self.weight -= slot.forget(source);
            }
            if slot.candidates.len() != before {
                touched.insert(id.clone());
            }
        }
        for pod in pods {
            touched.insert(pod.id.clone());
            self.add(source, pod);
        }
        let mut outcome = self.decide(touched);
        if first && !outcome.updates.iter().any(|update| update.source == source && update.op != Op::Remove) {
            // An empty update tells the listener that this source has been read.
            outcome.updates.push(PodUpdate { op: Op::Add, source, pods: Vec::new() });
        }
        outcome
    }

    /// Changes one pod of a source, which has at most one pod of each name.
    pub(super) fn change(&mut self, source: SourceKind, change: PodChange) -> MergeEffect {
        let id = match &change {
            PodChange::Put(pod) => pod.id.clone(),
            PodChange::Drop(id) => id.clone(),
        };
        if let Some(slot) = self.slots.get_mut(&id) {
            self.weight -= slot.forget(source);
        }
        match change {
            PodChange::Put(pod) => self.add(source, pod),
            PodChange::Drop(_) if !self.slots.contains_key(&id) => return MergeEffect::default(),
            PodChange::Drop(_) => {}
        }
        self.decide(BTreeSet::from([id]))
    }

    /// Adds a candidate behind those of the same source.
    fn add(&mut self, source: SourceKind, mut pod: Arc<Manifest>) {
        if pod.facts.annotations.get(SOURCE_ANNOTATION).is_none_or(|of| *of != source.to_string()) {
            Arc::make_mut(&mut pod).annotate(SOURCE_ANNOTATION, &source.to_string());
        }
        self.weight += pod.weight();
        let candidates = &mut self.slots.entry(pod.id.clone()).or_default().candidates;
        let behind = candidates.partition_point(|(of, _)| *of <= source);
        candidates.insert(behind, (source, pod));
    }

    /// Decides again about these names, and about pods that waited for a UID which becomes free. Returns the updates.
    fn decide(&mut self, touched: BTreeSet<PodId>) -> MergeEffect {
        let mut before: BTreeMap<PodId, Option<Wanted>> = BTreeMap::new();
        let mut outcome = MergeEffect::default();
        let mut round = touched;
        while !round.is_empty() {
            let mut free = BTreeSet::new();
            let mut claims: Vec<(PodId, Option<Wanted>)> = Vec::new();
            for id in round {
                let Some(slot) = self.slots.get_mut(&id) else { continue };
                let winner = slot.winner().cloned();
                if let Some(uid) = slot.waits.take()
                    && let Some(ids) = self.waiting.get_mut(&uid)
                {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.waiting.remove(&uid);
                    }
                }
                let chosen = slot.chosen.clone();
                let replaced =
                    chosen.as_ref().filter(|old| winner.as_ref().is_none_or(|new| !same_pod(old, new)));
                if let Some((_, old)) = replaced {
                    slot.chosen = None;
                    if self.uids.get(&old.uid) == Some(&id) {
                        self.uids.remove(&old.uid);
                        free.insert(old.uid.clone());
                    }
                }
                before.entry(id.clone()).or_insert(chosen);
                claims.push((id, winner));
            }
            // Of two pods with one UID the present holder stays, too.
            claims.sort_by_key(|(id, winner)| {
                winner.as_ref().is_none_or(|(_, pod)| self.uids.get(&pod.uid) != Some(id))
            });
            for (id, winner) in claims {
                outcome.losers_changed |= self.claim(&id, winner);
            }
            free.retain(|uid| !self.uids.contains_key(uid));
            round = free.iter().filter_map(|uid| self.waiting.get(uid)).flatten().cloned().collect();
        }
        outcome.updates = self.updates(&before);
        outcome
    }

    /// Makes the winner the chosen pod of its name if its UID is free. Returns whether the losers have changed.
    fn claim(&mut self, id: &PodId, winner: Option<Wanted>) -> bool {
        let Some(slot) = self.slots.get_mut(id) else { return false };
        let Some((source, pod)) = winner else {
            let changed = !slot.losers.is_empty();
            self.slots.remove(id);
            return changed;
        };
        let others = slot.candidates.iter().filter(|other| !Arc::ptr_eq(&other.1, &pod));
        let mut losers: Vec<Loser> = others.map(|other| Loser::new(other, &pod.origin, None)).collect();
        let taken = self.uids.get(&pod.uid).filter(|other| *other != id).cloned();
        match taken {
            Some(other) => {
                self.waiting.entry(pod.uid.clone()).or_default().insert(id.clone());
                let owner = self.slots.get(&other).and_then(|slot| slot.chosen.as_ref());
                let owner = owner.map_or_else(|| Arc::clone(&pod.origin), |(_, pod)| Arc::clone(&pod.origin));
                losers.push(Loser::new(&(source, Arc::clone(&pod)), &owner, Some(pod.uid.clone())));
            }
            None => {
                self.uids.entry(pod.uid.clone()).or_insert_with(|| id.clone());
            }
        }
        let waits = losers.last().and_then(|loser| loser.uid.clone());
        let Some(slot) = self.slots.get_mut(id) else { return false };
        slot.chosen = waits.is_none().then_some((source, pod));
        slot.waits = waits;
        let changed = slot.losers != losers;
        slot.losers = losers;
        changed
    }

    /// Compares the chosen pods with those before.
    fn updates(&self, before: &BTreeMap<PodId, Option<Wanted>>) -> Vec<PodUpdate> {
        let mut changes = Changes::new();
        for (id, old) in before {
            let new = self.slots.get(id).and_then(|slot| slot.chosen.as_ref());
            match (old, new) {
                (Some(old), Some(new)) if same_pod(old, new) => {
                    if old.1.differs(&new.1) {
                        let op = if new.1.facts.deletion.is_some() { Op::Delete } else { Op::Update };
                        add_change(&mut changes, op, new);
                    }
                }
                (old, new) => {
                    if let Some(old) = old {
                        add_change(&mut changes, Op::Remove, old);
                    }
                    if let Some(new) = new {
                        add_change(&mut changes, Op::Add, new);
                    }
                }
            }
        }
        changes.into_iter().map(|((op, source), pods)| PodUpdate { op, source, pods }).collect()
    }
}

type Changes = BTreeMap<(Op, SourceKind), Vec<Arc<Manifest>>>;

fn add_change(changes: &mut Changes, op: Op, (source, pod): &Wanted) {
    changes.entry((op, *source)).or_default().push(Arc::clone(pod));
}

#[cfg(test)]
mod tests;
