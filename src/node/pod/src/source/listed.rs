//! Decides which pods of an API server are wanted, from a list and the events of a watch. Keeps the errors of unusable
//! pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cnimble_api::{Notice, notice, tame};

use super::merge::{PodChange, SOURCE_ANNOTATION};
use super::wire::{NamedObject, Object};
use super::{Condition, SourceError, SourceKind};
use crate::PodId;
use crate::manifest::{MANAGED_ANNOTATION, Manifest, Origin};

/// The annotation of mirror pods, by which a kubelet shows static pods. They are not wanted.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// How many unusable pods are reported with a reason. Further ones are only counted.
const DETAILED: usize = 100;
/// The longest valid name in bytes.
const NAME: usize = 253;

/// The known state of a server's pods.
pub(super) struct ServerPods {
    server: String,
    node: String,
    pub(super) origin: Arc<Origin>,
    annotations: Arc<AtomicBool>,
    only_managed: Arc<AtomicBool>,
    /// The annotations that most pods have, shared by them.
    usual: Arc<BTreeMap<String, String>>,
    /// The unusable pods, the first ones with the reason.
    bad: BTreeMap<PodId, Option<Condition>>,
    /// Whether the complaints have changed since [`ServerPods::news`].
    news: bool,
}

/// The meaning of a watch's event.
#[derive(Debug)]
pub(super) enum Event {
    Nothing,
    Pod(PodChange),
    Gone,
}

impl ServerPods {
    pub(super) fn new(
        server: String,
        node: String,
        annotations: Arc<AtomicBool>,
        only_managed: Arc<AtomicBool>,
    ) -> Self {
        let usual = BTreeMap::from([(SOURCE_ANNOTATION.to_owned(), SourceKind::Api.to_string())]);
        let origin = Arc::new(Origin::Api(server.clone()));
        let usual = Arc::new(usual);
        ServerPods {
            server,
            node,
            origin,
            annotations,
            only_managed,
            usual,
            bad: BTreeMap::new(),
            news: false,
        }
    }

    /// Returns the errors of all unusable pods.
    pub(super) fn complaints(&self) -> Vec<Condition> {
        let mut all: Vec<Condition> = self.bad.values().flatten().cloned().collect();
        let more = self.bad.len().saturating_sub(all.len());
        if more > 0 {
            let err = SourceError::More { url: self.server.clone(), more };
            all.push(Condition::new(SourceKind::Api, &self.origin, err));
        }
        all
    }

    /// Returns the complaints if they have changed since the last call, otherwise `None`.
    pub(super) fn news(&mut self) -> Option<Vec<Condition>> {
        std::mem::take(&mut self.news).then(|| self.complaints())
    }

    /// Returns the unusable pods. Their earlier state must stay, because what they want is unknown.
    pub(super) fn bad(&self) -> BTreeSet<PodId> {
        self.bad.keys().cloned().collect()
    }

    /// Returns the number of unusable pods.
    pub(super) fn bad_pods(&self) -> usize {
        self.bad.len()
    }

    /// Returns the error of an unusable answer.
    pub(super) fn answer(&self, reason: impl AsRef<str>) -> SourceError {
        let url = format!("{}/api/v1/pods", self.server);
        SourceError::Api(cnimble_api::Error::Answer { url, reason: tame(reason.as_ref()) })
    }

    /// Forgets the unusable pods at the begin of a list.
    pub(super) fn begin(&mut self) {
        self.news |= !self.bad.is_empty();
        self.bad.clear();
    }

    /// Reads an item of a list. Returns the pod if it is wanted, and `None` if it is unwanted or unusable.
    pub(super) fn item(&mut self, text: &[u8]) -> Result<Option<Arc<Manifest>>, SourceError> {
        match self.judge(text)? {
            Some(PodChange::Put(pod)) => Ok(Some(pod)),
            Some(PodChange::Drop(_)) | None => Ok(None),
        }
    }

    /// Reads a line of a watch, and updates `version`.
    pub(super) fn event(&mut self, line: &[u8], version: &mut Option<String>) -> Result<Event, SourceError> {
        Ok(match notice(&self.server, line, version)? {
            Notice::Nothing => Event::Nothing,
            Notice::Gone => Event::Gone,
            Notice::Put(object) => self.judge(object.as_bytes())?.map_or(Event::Nothing, Event::Pod),
            Notice::Drop(object) => match named(object).id() {
                Some(id) => {
                    self.good(&id);
                    Event::Pod(PodChange::Drop(id))
                }
                None => Event::Nothing,
            },
        })
    }

    /// Records that a pod is usable or gone, which ends a complaint about it.
    fn good(&mut self, id: &PodId) {
        self.news |= self.bad.remove(id).is_some();
    }

    /// Records that a pod is unusable. Its earlier state stays.
    pub(super) fn spoilt(&mut self, id: PodId, err: SourceError) {
        // Such long names are invalid, and would take memory.
        let id = if id.namespace.len().max(id.name.len()) > NAME { PodId::new("", "") } else { id };
        let detailed =
            self.bad.values().flatten().count() < DETAILED || self.bad.get(&id).is_some_and(Option::is_some);
        let complaint = detailed.then(|| {
            let mut complaint = Condition::new(SourceKind::Api, &self.origin, err);
            complaint.pod = Some(id.clone());
            complaint
        });
        let before = self.bad.insert(id, complaint.clone());
        self.news |=
            before.is_none_or(|before| error_text(before.as_ref()) != error_text(complaint.as_ref()));
    }

    /// Decides about a pod from its JSON. Returns `None` for an unusable one. Fails if the text is no JSON at all.
    fn judge(&mut self, text: &[u8]) -> Result<Option<PodChange>, SourceError> {
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
        Ok(self.judge_object(object))
    }

    /// Decides about a parsed pod. An unwanted or ended one is a [`PodChange::Drop`].
    fn judge_object(&mut self, mut object: Object) -> Option<PodChange> {
        let Some(id) = object.id() else {
            self.spoilt(PodId::new("", ""), self.answer("a pod without a name"));
            return None;
        };
        // The node is compared again, because an older server may ignore the selector.
        let managed = object.annotation(MANAGED_ANNOTATION) == Some("true");
        let anothers = !managed && self.only_managed.load(Ordering::Relaxed);
        if anothers || object.annotation(MIRROR).is_some() || object.node() != Some(&self.node) {
            self.good(&id);
            return Some(PodChange::Drop(id));
        }
        let all = self.annotations.load(Ordering::Relaxed);
        object.keep_annotations(|key| all || key.ends_with("gress-bandwidth") || key == MANAGED_ANNOTATION);
        match Manifest::from_pod(object.pod(), &self.origin) {
            Ok(mut pod) => {
                self.good(&id);
                if pod.facts.ended {
                    return Some(PodChange::Drop(id));
                }
                if pod.facts.annotations.is_empty() {
                    pod.facts.annotations = Arc::clone(&self.usual);
                } else {
                    pod.annotate(SOURCE_ANNOTATION, &SourceKind::Api.to_string());
                }
                Some(PodChange::Put(Arc::new(pod)))
            }
            Err(err) => {
                self.spoilt(id, err.into());
                None
            }
        }
    }
}

fn error_text(complaint: Option<&Condition>) -> Option<String> {
    complaint.map(|complaint| complaint.error.to_string())
}

/// Reads only the names of an object. An unreadable one has none.
fn named(text: &str) -> NamedObject<'_> {
    serde_json::from_str(text).unwrap_or_default()
}
