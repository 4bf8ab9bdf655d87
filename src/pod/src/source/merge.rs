//! Many sources, one set of pods: what the kubelet calls PodConfig's storage.
//!
//! A source always says all that it wants. From the difference to what it wanted before come
//! the updates. No I/O here.

use std::collections::{BTreeMap, BTreeSet};

use super::{Op, PodUpdate, SourceKind};
use crate::PodId;
use crate::manifest::{Manifest, Origin};

/// The annotation that says which source a pod came from. The kubelet's.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// A pod that can't be had because another has its name or UID.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loser {
    pub(super) source: SourceKind,
    pub(super) pod: PodId,
    pub(super) origin: Origin,
    /// What is taken: the name, or a UID.
    pub(super) uid: Option<String>,
    /// Who has it.
    pub(super) winner: Origin,
}

#[derive(Debug, Default)]
pub(super) struct Storage {
    wanted: BTreeMap<SourceKind, Vec<Manifest>>,
    current: BTreeMap<PodId, (SourceKind, Manifest)>,
}

impl Storage {
    /// Whether this source has ever said what it wants.
    pub(super) fn seen(&self, source: SourceKind) -> bool {
        self.wanted.contains_key(&source)
    }

    /// The pods of all sources.
    pub(super) fn pods(&self) -> Vec<Manifest> {
        self.current.values().map(|(_, pod)| pod.clone()).collect()
    }

    /// A source wants these pods and no others. Returns what changes, in the order in which it
    /// is to be told: what goes before what comes, as both may have one name.
    pub(super) fn set(
        &mut self,
        source: SourceKind,
        mut pods: Vec<Manifest>,
    ) -> (Vec<PodUpdate>, Vec<Loser>) {
        let first = !self.seen(source);
        for pod in &mut pods {
            let annotations = pod.pod.metadata.annotations.get_or_insert_default();
            annotations.insert(SOURCE_ANNOTATION.to_owned(), source.to_string());
        }
        self.wanted.insert(source, pods);
        let (next, losers) = self.choose();
        let mut changes: BTreeMap<(u8, SourceKind), Vec<Manifest>> = BTreeMap::new();
        let mut change = |op: Op, source: SourceKind, pod: &Manifest| {
            changes.entry((op as u8, source)).or_default().push(pod.clone());
        };
        for (id, (source, old)) in &self.current {
            if !next.get(id).is_some_and(|(now, new)| now == source && new.uid == old.uid) {
                change(Op::Remove, *source, old);
            }
        }
        for (id, (source, new)) in &next {
            match self.current.get(id) {
                Some((before, old)) if before == source && old.uid == new.uid => {
                    if differ(old, new) {
                        change(if new.is_deleting() { Op::Delete } else { Op::Update }, *source, new);
                    } else if old.pod.status != new.pod.status {
                        change(Op::Reconcile, *source, new);
                    }
                }
                _ => change(Op::Add, *source, new),
            }
        }
        self.current = next;
        let mut updates = Vec::new();
        for op in [Op::Remove, Op::Add, Op::Update, Op::Delete, Op::Reconcile] {
            for (key, pods) in &changes {
                if key.0 == op as u8 {
                    updates.push(PodUpdate { op, source: key.1, pods: pods.clone() });
                }
            }
        }
        if first && !updates.iter().any(|update| update.source == source && update.op != Op::Remove) {
            // The listener is to know that this source has been read.
            updates.push(PodUpdate { op: Op::Add, source, pods: Vec::new() });
        }
        (updates, losers)
    }

    /// Who gets each name: who has it already, else the first by source and order.
    fn choose(&self) -> (BTreeMap<PodId, (SourceKind, Manifest)>, Vec<Loser>) {
        let mut by_id: BTreeMap<&PodId, Vec<(SourceKind, &Manifest)>> = BTreeMap::new();
        for (source, pods) in &self.wanted {
            for pod in pods {
                by_id.entry(&pod.id).or_default().push((*source, pod));
            }
        }
        let mut chosen: Vec<(SourceKind, &Manifest)> = Vec::new();
        let mut losers = Vec::new();
        let lose = |(source, pod): (SourceKind, &Manifest), winner: &Manifest, uid: Option<String>| Loser {
            source,
            pod: pod.id.clone(),
            origin: pod.origin.clone(),
            uid,
            winner: winner.origin.clone(),
        };
        for (id, candidates) in by_id {
            let has = self.current.get(id);
            let same_uid = |(source, pod): &&(SourceKind, &Manifest)| {
                has.is_some_and(|(before, old)| before == source && old.uid == pod.uid)
            };
            let same_place = |(source, pod): &&(SourceKind, &Manifest)| {
                has.is_some_and(|(before, old)| before == source && old.origin == pod.origin)
            };
            let winner = candidates.iter().find(same_uid).or_else(|| candidates.iter().find(same_place));
            let Some(winner) = winner.or(candidates.first()) else { continue };
            let others = candidates.iter().filter(|other| !std::ptr::eq(other.1, winner.1));
            losers.extend(others.map(|other| lose(*other, winner.1, None)));
            chosen.push(*winner);
        }
        // One UID for two pods: again who has it already stays.
        chosen.sort_by_key(|(source, pod)| {
            !self.current.get(&pod.id).is_some_and(|(before, old)| before == source && old.uid == pod.uid)
        });
        let mut uids: BTreeMap<&str, &Manifest> = BTreeMap::new();
        let mut next = BTreeMap::new();
        for (source, pod) in chosen {
            if let Some(winner) = uids.get(pod.uid.as_str()) {
                losers.push(lose((source, pod), winner, Some(pod.uid.clone())));
                continue;
            }
            uids.insert(&pod.uid, pod);
            next.insert(pod.id.clone(), (source, pod.clone()));
        }
        (next, losers)
    }
}

/// Whether a pod wants something else now. What the kubelet compares.
fn differ(old: &Manifest, new: &Manifest) -> bool {
    let (a, b) = (&old.pod.metadata, &new.pod.metadata);
    let annotations = |pod: &Manifest| -> BTreeSet<(String, String)> {
        let own = ["kubernetes.io/config.source", "kubernetes.io/config.mirror", "kubernetes.io/config.seen"];
        let all = pod.annotations().iter().filter(|(key, _)| !own.contains(&key.as_str()));
        all.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    old.pod.spec != new.pod.spec
        || old.labels() != new.labels()
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || annotations(old) != annotations(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Defaults;
    use SourceKind::{Api, File, Http};

    fn pod(name: &str, extra: &str, place: &str) -> Manifest {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{extra}}}\nspec: {{containers: [{{name: c}}]}}\n"
        );
        Manifest::parse(text.as_bytes(), &Origin::Other(place.to_owned()), &Defaults::default())
            .unwrap()
            .remove(0)
    }

    fn said(updates: &[PodUpdate]) -> Vec<String> {
        let names =
            |update: &PodUpdate| update.pods.iter().map(|pod| pod.id.name.clone()).collect::<Vec<_>>();
        updates
            .iter()
            .map(|update| format!("{:?} {} {}", update.op, update.source, names(update).join(",")))
            .collect()
    }

    #[test]
    fn a_source_that_is_read_first_is_told_even_without_pods() {
        let mut storage = Storage::default();
        assert!(!storage.seen(File));
        assert_eq!(said(&storage.set(File, vec![]).0), ["Add file "]);
        assert!(storage.seen(File) && !storage.seen(Http));
        assert!(storage.set(File, vec![]).0.is_empty());
    }

    #[test]
    fn differences_become_updates() {
        let mut storage = Storage::default();
        let (a, b) = (pod("a", "", "1"), pod("b", ", uid: b", "1"));
        let (updates, losers) = storage.set(File, vec![a.clone(), b.clone()]);
        assert_eq!((said(&updates), losers), (vec!["Add file a,b".to_owned()], vec![]));
        assert_eq!(updates[0].pods[0].annotations()[SOURCE_ANNOTATION], "file");
        assert!(storage.set(File, vec![b.clone(), a.clone()]).0.is_empty(), "order means nothing");

        // Without a UID an edited pod is another; with one it is updated.
        let edited = vec![pod("a", ", labels: {x: y}", "1"), pod("b", ", uid: b, labels: {x: y}", "1")];
        assert_eq!(
            said(&storage.set(File, edited.clone()).0),
            ["Remove file a", "Add file a", "Update file b"]
        );
        let mut status = edited.clone();
        status[1].pod.status = Some(Default::default());
        assert_eq!(said(&storage.set(File, status).0), ["Reconcile file b"]);
        let mut going = edited;
        going[1].pod.metadata.deletion_grace_period_seconds = Some(1);
        going[1].pod.metadata.deletion_timestamp = serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap();
        assert_eq!(said(&storage.set(File, going).0), ["Delete file b"]);
        assert_eq!(said(&storage.set(File, vec![]).0), ["Remove file a,b"]);
        assert!(storage.pods().is_empty());
    }

    #[test]
    fn the_first_to_have_a_name_keeps_it_and_the_next_takes_over() {
        let mut storage = Storage::default();
        let (mine, other) = (pod("a", "", "x"), pod("a", "", "w"));
        assert_eq!(said(&storage.set(Api, vec![mine.clone()]).0), ["Add api a"]);
        let (updates, losers) = storage.set(File, vec![other.clone(), pod("b", "", "w")]);
        assert_eq!(said(&updates), ["Add file b"]);
        assert_eq!((losers.len(), losers[0].source, &losers[0].winner), (1, File, &mine.origin));
        // An edit doesn't lose the name, though the UID is new.
        let (updates, losers) = storage.set(Api, vec![pod("a", ", labels: {x: y}", "x")]);
        assert_eq!((said(&updates), losers.len()), (vec!["Remove api a".into(), "Add api a".into()], 1));
        let (updates, losers) = storage.set(Api, vec![]);
        assert_eq!((said(&updates), losers.len()), (vec!["Remove api a".into(), "Add file a".into()], 0));
        // Within one source the first in order wins, and then stays.
        let (_, losers) = storage.set(File, vec![mine, other.clone()]);
        assert_eq!((losers.len(), &losers[0].winner), (1, &other.origin));
    }

    #[test]
    fn one_uid_is_for_one_pod() {
        let mut storage = Storage::default();
        storage.set(File, vec![pod("z", ", uid: u", "1")]);
        let (updates, losers) = storage.set(Http, vec![pod("a", ", uid: u", "2")]);
        assert_eq!(said(&updates), ["Add http "]);
        assert_eq!(losers[0].uid.as_deref(), Some("u"));
        let (updates, losers) = storage.set(File, vec![]);
        assert_eq!((said(&updates), losers.len()), (vec!["Remove file z".into(), "Add http a".into()], 0));
    }
}
