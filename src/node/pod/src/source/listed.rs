//! Pods of an API server, from a list and the events of a watch: which are to run, and the errors of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cnimble_api::{Notice, notice, tame};

use super::merge::{Change, SOURCE_ANNOTATION};
use super::wire::{Named, Object};
use super::{Condition, SourceError, SourceKind};
use crate::PodId;
use crate::manifest::{MANAGED_ANNOTATION, Manifest, Origin};

/// The kubelet shows a static pod by a mirror pod, which is not to be run.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Further bad pods are reported without the reason.
const DETAILED: usize = 100;
const NAME: usize = 253;

pub(super) struct Listed {
    server: String,
    node: String,
    pub(super) origin: Arc<Origin>,
    annotations: Arc<AtomicBool>,
    only_managed: Arc<AtomicBool>,
    /// Most pods share these annotations.
    usual: Arc<BTreeMap<String, String>>,
    /// Further unusable pods have no reason.
    bad: BTreeMap<PodId, Option<Condition>>,
    news: bool,
}

#[derive(Debug)]
pub(super) enum Event {
    Nothing,
    Pod(Change),
    Gone,
}

impl Listed {
    pub(super) fn new(
        server: String,
        node: String,
        annotations: Arc<AtomicBool>,
        only_managed: Arc<AtomicBool>,
    ) -> Self {
        let usual = BTreeMap::from([(SOURCE_ANNOTATION.to_owned(), SourceKind::Api.to_string())]);
        let origin = Arc::new(Origin::Api(server.clone()));
        let usual = Arc::new(usual);
        Listed { server, node, origin, annotations, only_managed, usual, bad: BTreeMap::new(), news: false }
    }

    pub(super) fn complaints(&self) -> Vec<Condition> {
        let mut all: Vec<Condition> = self.bad.values().flatten().cloned().collect();
        let more = self.bad.len().saturating_sub(all.len());
        if more > 0 {
            let err = SourceError::More { url: self.server.clone(), more };
            all.push(Condition::new(SourceKind::Api, &self.origin, err));
        }
        all
    }

    /// `None` if they are the same as before.
    pub(super) fn news(&mut self) -> Option<Vec<Condition>> {
        std::mem::take(&mut self.news).then(|| self.complaints())
    }

    /// The wishes of unusable pods aren't known.
    pub(super) fn bad(&self) -> BTreeSet<PodId> {
        self.bad.keys().cloned().collect()
    }

    pub(super) fn bad_pods(&self) -> usize {
        self.bad.len()
    }

    pub(super) fn answer(&self, reason: impl AsRef<str>) -> SourceError {
        let url = format!("{}/api/v1/pods", self.server);
        SourceError::Api(cnimble_api::Error::Answer { url, reason: tame(reason.as_ref()) })
    }

    pub(super) fn begin(&mut self) {
        self.news |= !self.bad.is_empty();
        self.bad.clear();
    }

    /// Returns a pod to run.
    pub(super) fn item(&mut self, text: &[u8]) -> Result<Option<Arc<Manifest>>, SourceError> {
        match self.judge(text)? {
            Some(Change::Put(pod)) => Ok(Some(pod)),
            Some(Change::Drop(_)) | None => Ok(None),
        }
    }

    /// `version` follows the events.
    pub(super) fn event(&mut self, line: &[u8], version: &mut Option<String>) -> Result<Event, SourceError> {
        Ok(match notice(&self.server, line, version)? {
            Notice::Nothing => Event::Nothing,
            Notice::Gone => Event::Gone,
            Notice::Put(object) => self.judge(object.as_bytes())?.map_or(Event::Nothing, Event::Pod),
            Notice::Drop(object) => match named(object).id() {
                Some(id) => {
                    self.good(&id);
                    Event::Pod(Change::Drop(id))
                }
                None => Event::Nothing,
            },
        })
    }

    fn good(&mut self, id: &PodId) {
        self.news |= self.bad.remove(id).is_some();
    }

    /// The pod's earlier state stays.
    pub(super) fn spoilt(&mut self, id: PodId, err: SourceError) {
        // Names of that length are invalid, and would take memory.
        let id = if id.namespace.len().max(id.name.len()) > NAME { PodId::new("", "") } else { id };
        let detailed =
            self.bad.values().flatten().count() < DETAILED || self.bad.get(&id).is_some_and(Option::is_some);
        let complaint = detailed.then(|| {
            let mut complaint = Condition::new(SourceKind::Api, &self.origin, err);
            complaint.pod = Some(id.clone());
            complaint
        });
        let text = |complaint: &Condition| complaint.error.to_string();
        let before = self.bad.insert(id, complaint.clone());
        self.news |= before.is_none_or(|before| before.as_ref().map(text) != complaint.as_ref().map(text));
    }

    /// `None` for an unusable pod.
    fn judge(&mut self, text: &[u8]) -> Result<Option<Change>, SourceError> {
        let object = match serde_json::from_slice::<Object>(text) {
            Ok(object) => object,
            Err(err) if err.is_data() => {
                let mut from = serde_json::Deserializer::from_slice(text);
                let wrong = serde_path_to_error::deserialize::<_, Object>(&mut from);
                let wrong =
                    wrong.err().map_or_else(String::new, |err| format!("{}: {}", err.path(), err.inner()));
                let text = String::from_utf8_lossy(text);
                let id = named(&text).id().unwrap_or_else(|| PodId::new("", ""));
                let err = self.answer(format!("pod {id}: {wrong}"));
                self.spoilt(id, err);
                return Ok(None);
            }
            Err(err) => return Err(self.answer(format!("a pod that is no JSON: {err}"))),
        };
        Ok(self.take(object))
    }

    fn take(&mut self, mut object: Object) -> Option<Change> {
        let Some(id) = object.id() else {
            self.spoilt(PodId::new("", ""), self.answer("a pod without a name"));
            return None;
        };
        // An older server may ignore the selector.
        let managed = object.annotation(MANAGED_ANNOTATION) == Some("true");
        let anothers = !managed && self.only_managed.load(Ordering::Relaxed);
        if anothers || object.annotation(MIRROR).is_some() || object.node() != Some(&self.node) {
            self.good(&id);
            return Some(Change::Drop(id));
        }
        let all = self.annotations.load(Ordering::Relaxed);
        object.keep_annotations(|key| all || key.ends_with("gress-bandwidth") || key == MANAGED_ANNOTATION);
        match Manifest::from_pod(object.pod(), &self.origin) {
            Ok(mut pod) => {
                self.good(&id);
                if pod.facts.ended {
                    return Some(Change::Drop(id));
                }
                if pod.facts.annotations.is_empty() {
                    pod.facts.annotations = Arc::clone(&self.usual);
                } else {
                    pod.annotate(SOURCE_ANNOTATION, &SourceKind::Api.to_string());
                }
                Some(Change::Put(Arc::new(pod)))
            }
            Err(err) => {
                self.spoilt(id, err.into());
                None
            }
        }
    }
}

fn named(text: &str) -> Named<'_> {
    serde_json::from_str(text).unwrap_or_default()
}
