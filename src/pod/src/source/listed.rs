//! What an API server says of pods: the pages of a list, and the events of a watch.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{Complaint, SourceError};
use crate::PodId;
use crate::manifest::{Manifest, Origin};

/// A pod that the kubelet made in the API to show a static pod there. It is no pod to run.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods as the server has told them so far.
pub(super) struct Listed {
    server: String,
    pub(super) origin: Origin,
    pods: BTreeMap<PodId, Manifest>,
    /// Pods that can't be used.
    bad: BTreeMap<PodId, Complaint>,
}

/// A page of a list.
pub(super) struct Page {
    pub(super) items: Vec<Value>,
    /// What to ask the next page with; empty if it is the last.
    pub(super) token: String,
    /// The version to watch from.
    pub(super) version: Option<String>,
}

/// What came of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing about pods.
    Nothing,
    /// There may be other pods now.
    Pods,
    /// The server has forgotten the version that was watched from.
    Gone,
}

impl Listed {
    pub(super) fn new(server: String) -> Self {
        let origin = Origin::Api(server.clone());
        Listed { server, origin, pods: BTreeMap::new(), bad: BTreeMap::new() }
    }

    pub(super) fn pods(&self) -> Vec<Manifest> {
        self.pods.values().cloned().collect()
    }

    pub(super) fn complaints(&self) -> Vec<Complaint> {
        self.bad.values().cloned().collect()
    }

    pub(super) fn answer(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Answer { url: format!("{}/api/v1/pods", self.server), reason: reason.into() }
    }

    /// Reads a page; no pod is kept before [`Listed::replace`].
    pub(super) fn page(&self, bytes: &[u8]) -> Result<Page, SourceError> {
        let mut page: Value = serde_json::from_slice(bytes).map_err(|err| self.answer(err.to_string()))?;
        let meta = |key: &str| page.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
        let (version, token) = (meta("resourceVersion").map(str::to_owned), meta("continue"));
        let token = token.unwrap_or_default().to_owned();
        let items = match page.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(Value::Null) => Vec::new(),
            _ => return Err(self.answer("a list of pods without items")),
        };
        Ok(Page { items, token, version })
    }

    /// These are all pods that there are.
    pub(super) fn replace(&mut self, items: Vec<Value>) {
        let mut before = std::mem::take(&mut self.pods);
        self.bad.clear();
        for item in items {
            self.take(item, &mut before);
        }
    }

    /// One event of a watch; `version` follows what was seen.
    pub(super) fn event(&mut self, line: &[u8], version: &mut Option<String>) -> Result<Event, SourceError> {
        if line.trim_ascii().is_empty() {
            return Ok(Event::Nothing);
        }
        let mut event: Value = serde_json::from_slice(line)
            .map_err(|err| self.answer(format!("an event that is no JSON: {err}")))?;
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let seen = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(str::to_owned);
        let came = match kind {
            "BOOKMARK" => Event::Nothing,
            "ADDED" | "MODIFIED" => {
                let mut before = id(&object).and_then(|id| self.pods.remove_entry(&id)).into_iter().collect();
                self.take(object, &mut before);
                Event::Pods
            }
            "DELETED" => {
                if let Some(id) = id(&object) {
                    self.pods.remove(&id);
                    self.bad.remove(&id);
                }
                Event::Pods
            }
            "ERROR" => {
                let code =
                    object.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                let reason = object.get("reason").and_then(Value::as_str).unwrap_or_default();
                if code == Some(410) || matches!(reason, "Expired" | "Gone") {
                    return Ok(Event::Gone);
                }
                let message = object.get("message").and_then(Value::as_str).unwrap_or(reason);
                // From where this failed there is no going on.
                *version = None;
                return Err(SourceError::Watch {
                    url: self.server.clone(),
                    code: code.unwrap_or(0),
                    message: message.to_owned(),
                });
            }
            other => return Err(self.answer(format!("an event of type \"{}\"", other.escape_debug()))),
        };
        if seen.is_some() {
            *version = seen;
        }
        Ok(came)
    }

    /// Keeps a pod. One that can't be used leaves what there was of it before.
    fn take(&mut self, object: Value, before: &mut BTreeMap<PodId, Manifest>) {
        let id = id(&object);
        let result = serde_path_to_error::deserialize::<_, Pod>(object)
            .map_err(|err| self.answer(format!("{}: {}", err.path(), err.inner())))
            .and_then(|pod| Ok(Manifest::from_pod(pod, &self.origin)?));
        let Some(id) = id else {
            let nameless = PodId::new("", "");
            self.bad.insert(nameless, Complaint::new(&self.origin, self.answer("a pod without a name")));
            return;
        };
        match result {
            Ok(pod) => {
                self.bad.remove(&id);
                if pod.annotations().contains_key(MIRROR) {
                    self.pods.remove(&id);
                } else {
                    self.pods.insert(id, pod);
                }
            }
            Err(err) => {
                let mut complaint = Complaint::new(&self.origin, err);
                complaint.pod = Some(id.clone());
                self.bad.insert(id.clone(), complaint);
                if let Some(old) = before.remove(&id) {
                    self.pods.insert(id, old);
                }
            }
        }
    }
}

/// Which pod an object is, whatever else is wrong with it.
fn id(object: &Value) -> Option<PodId> {
    let meta = |key: &str| object.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
    let namespace = meta("namespace").filter(|namespace| !namespace.is_empty());
    Some(PodId::new(namespace.unwrap_or("default"), meta("name")?))
}

/// For fuzzers: takes any bytes for a page of a list and for the lines of a watch.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(bytes: &[u8]) {
    let mut listed = Listed::new("https://k".to_owned());
    if let Ok(page) = listed.page(bytes) {
        listed.replace(page.items);
    }
    let mut version = Some("1".to_owned());
    for line in bytes.split(|byte| *byte == b'\n') {
        let event = listed.event(line, &mut version);
        if matches!(event, Err(SourceError::Watch { .. })) {
            assert_eq!(version, None);
        }
        assert!(listed.pods.iter().all(|(id, pod)| pod.id == *id && !pod.annotations().contains_key(MIRROR)));
        assert!(listed.complaints().iter().all(|complaint| !complaint.error.to_string().is_empty()));
    }
}
