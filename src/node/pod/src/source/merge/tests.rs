use super::*;
use crate::manifest::Defaults;
use SourceKind::{Api, File, Http};

/// A pod with more in its metadata, and with this host name.
fn named(name: &str, extra: &str, host: &str, place: &str) -> Arc<Manifest> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{extra}}}\nspec: {{hostname: {host}, containers: [{{name: c}}]}}\n"
    );
    let origin = Origin::Other(place.to_owned());
    Arc::new(Manifest::parse(text.as_bytes(), &origin, &Defaults::default()).unwrap().remove(0))
}

fn pod(name: &str, extra: &str, place: &str) -> Arc<Manifest> {
    named(name, extra, "h", place)
}

fn set(storage: &mut Storage, source: SourceKind, pods: Vec<Arc<Manifest>>) -> (Vec<PodUpdate>, Vec<Loser>) {
    let outcome = storage.set(source, pods, &BTreeSet::new());
    (outcome.updates, storage.losers().cloned().collect())
}

fn said(updates: &[PodUpdate]) -> Vec<String> {
    let names = |update: &PodUpdate| update.pods.iter().map(|pod| pod.id.name.clone()).collect::<Vec<_>>();
    updates
        .iter()
        .map(|update| format!("{:?} {} {}", update.op, update.source, names(update).join(",")))
        .collect()
}

#[test]
fn a_source_that_is_read_first_is_told_even_without_pods() {
    let mut storage = Storage::default();
    assert!(!storage.seen(File));
    assert_eq!(said(&set(&mut storage, File, vec![]).0), ["Add file "]);
    assert!(storage.seen(File) && !storage.seen(Http));
    assert!(set(&mut storage, File, vec![]).0.is_empty());
}

#[test]
fn differences_become_updates() {
    let mut storage = Storage::default();
    let (a, b) = (pod("a", "", "1"), pod("b", ", uid: b", "1"));
    let (updates, losers) = set(&mut storage, File, vec![a.clone(), b.clone()]);
    assert_eq!((said(&updates), losers), (vec!["Add file a,b".to_owned()], vec![]));
    assert_eq!(updates[0].pods[0].facts.annotations[SOURCE_ANNOTATION], "file");
    assert!(set(&mut storage, File, vec![b.clone(), a.clone()]).0.is_empty(), "order means nothing");

    // Without a UID an edited pod is another.
    let edited = vec![pod("a", ", labels: {x: y}", "1"), named("b", ", uid: b", "other", "1")];
    assert_eq!(
        said(&set(&mut storage, File, edited.clone()).0),
        ["Remove file a", "Add file a", "Update file b"]
    );
    // Only the network's facts count.
    let labels = vec![edited[0].clone(), named("b", ", uid: b, labels: {x: y}", "other", "1")];
    assert!(set(&mut storage, File, labels).0.is_empty());
    let going = ", uid: b, deletionGracePeriodSeconds: 1, deletionTimestamp: '2026-01-01T00:00:00Z'";
    let going = vec![edited[0].clone(), named("b", going, "other", "1")];
    assert_eq!(said(&set(&mut storage, File, going).0), ["Delete file b"]);
    assert_eq!(said(&set(&mut storage, File, vec![]).0), ["Remove file a,b"]);
    assert!(storage.pods().is_empty());
}

#[test]
fn the_first_to_have_a_name_keeps_it_and_the_next_takes_over() {
    let mut storage = Storage::default();
    let (mine, other) = (pod("a", "", "x"), pod("a", "", "w"));
    assert_eq!(said(&set(&mut storage, Api, vec![mine.clone()]).0), ["Add api a"]);
    let (updates, losers) = set(&mut storage, File, vec![other.clone(), pod("b", "", "w")]);
    assert_eq!(said(&updates), ["Add file b"]);
    assert_eq!((losers.len(), losers[0].source, &losers[0].winner), (1, File, &mine.origin));
    // An edit keeps the name, though the UID is new.
    let (updates, losers) = set(&mut storage, Api, vec![pod("a", ", labels: {x: y}", "x")]);
    assert_eq!((said(&updates), losers.len()), (vec!["Remove api a".into(), "Add api a".into()], 1));
    let (updates, losers) = set(&mut storage, Api, vec![]);
    assert_eq!((said(&updates), losers.len()), (vec!["Remove api a".into(), "Add file a".into()], 0));
    // Within one source the first in order wins, and then stays.
    let (_, losers) = set(&mut storage, File, vec![mine, other.clone()]);
    assert_eq!((losers.len(), &losers[0].winner), (1, &other.origin));
}

#[test]
fn one_uid_is_for_one_pod() {
    let mut storage = Storage::default();
    set(&mut storage, File, vec![pod("z", ", uid: u", "1")]);
    let (updates, losers) = set(&mut storage, Http, vec![pod("a", ", uid: u", "2")]);
    assert_eq!(said(&updates), ["Add http "]);
    assert_eq!(losers[0].uid.as_deref(), Some("u"));
    let (updates, losers) = set(&mut storage, File, vec![]);
    assert_eq!((said(&updates), losers.len()), (vec!["Remove file z".into(), "Add http a".into()], 0));
}

#[test]
fn changes_of_one_pod_are_differences_too() {
    let mut storage = Storage::default();
    set(&mut storage, Api, vec![pod("a", ", uid: a", "1"), pod("b", ", uid: b", "1")]);
    let mut change = |change| said(&storage.change(Api, change).updates);
    assert_eq!(change(PodChange::Put(pod("c", ", uid: c", "1"))), ["Add api c"]);
    assert_eq!(change(PodChange::Put(pod("c", ", uid: c, labels: {x: y}", "1"))), [""; 0]);
    assert_eq!(change(PodChange::Put(named("c", ", uid: c", "n", "1"))), ["Update api c"]);
    assert_eq!(change(PodChange::Put(pod("c", ", uid: d", "1"))), ["Remove api c", "Add api c"]);
    assert_eq!(change(PodChange::Drop(PodId::new("default", "b"))), ["Remove api b"]);
    assert_eq!(change(PodChange::Drop(PodId::new("default", "b"))), [""; 0]);
    assert_eq!(storage.besides(Api, &PodId::new("default", "a")).0, 1);
    // What a source can't tell of stays.
    let keep = BTreeSet::from([PodId::new("default", "a")]);
    assert_eq!(said(&storage.set(Api, vec![], &keep).updates), ["Remove api c"]);
    let (a, b) = (PodId::new("default", "a"), PodId::new("default", "b"));
    assert_eq!((storage.besides(Api, &a), storage.besides(Api, &b).0), ((0, 0), 1));
}

#[test]
fn a_uid_goes_to_one_that_waits_and_by_a_change_as_well() {
    let mut storage = Storage::default();
    set(&mut storage, Api, vec![pod("z", ", uid: u", "1")]);
    assert_eq!(said(&storage.change(Api, PodChange::Put(pod("a", ", uid: u", "1"))).updates), [""; 0]);
    assert_eq!(said(&storage.change(Api, PodChange::Put(pod("b", ", uid: u", "1"))).updates), [""; 0]);
    assert_eq!(storage.losers().count(), 2);
    let outcome = storage.change(Api, PodChange::Drop(PodId::new("default", "z")));
    assert_eq!(
        (said(&outcome.updates), outcome.losers_changed),
        (vec!["Remove api z".into(), "Add api a".into()], true)
    );
    assert_eq!(
        said(&storage.change(Api, PodChange::Put(pod("a", ", uid: v", "1"))).updates),
        ["Remove api a", "Add api a,b"]
    );
    assert_eq!((storage.losers().count(), storage.waiting.len()), (0, 0));
}
