//! Reads manifests from YAML or JSON, with any number of documents, pods and lists. Completes static pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use sha2::{Digest, Sha256};

use cnimble_api::yaml::{self as yaml, MAX_VALUES, Step};
use cnimble_cni::hash::hex;

use super::error::{short, shown};
use super::limits::{self, MAX_FAULTS, MAX_MEMBERS};
use super::{
    Defaults, HASH_ANNOTATION, MAX_SIZE, Manifest, ManifestError, Origin, Parsed, Problem, id, validate,
};
use crate::PodId;

/// Reads one text, and collects its pods and errors.
struct Parser<'a> {
    origin: Arc<Origin>,
    defaults: &'a Defaults,
    parsed: Parsed,
    more: usize,
    #[cfg(feature = "fuzzing")]
    whole: Vec<Pod>,
}

/// Reads all pods of a text. Returns the valid ones beside the errors of the others.
pub(super) fn parse_each(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Parsed {
    let mut parser = Parser::new(origin, defaults);
    parser.text(bytes);
    let more = std::mem::take(&mut parser.more);
    if more > 0 {
        let (origin, problem) = (origin.clone(), Problem::More(more));
        parser.parsed.errors.push(ManifestError {
            origin,
            position: None,
            pod: None,
            path: String::new(),
            problem,
        });
    }
    parser.parsed
}

#[cfg(feature = "fuzzing")]
pub(crate) fn whole(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Vec<Pod> {
    let mut parser = Parser::new(origin, defaults);
    parser.text(bytes);
    parser.whole
}

/// Returns line and column of a path in the document, if they are known.
type Locate<'a> = dyn Fn(&[Step]) -> Option<(usize, usize)> + 'a;

impl<'a> Parser<'a> {
    fn new(origin: &Origin, defaults: &'a Defaults) -> Self {
        Parser {
            origin: Arc::new(origin.clone()),
            defaults,
            parsed: Parsed::default(),
            more: 0,
            #[cfg(feature = "fuzzing")]
            whole: Vec::new(),
        }
    }

    /// Adds an error. After [`MAX_FAULTS`] errors it only counts.
    fn fail(&mut self, position: Option<(usize, usize)>, pod: Option<PodId>, way: &[Step], problem: Problem) {
        if self.parsed.errors.len() >= MAX_FAULTS {
            self.more += 1;
            return;
        }
        let problem = match problem {
            Problem::Syntax(text) => Problem::Syntax(short(text)),
            other => other,
        };
        self.parsed.errors.push(ManifestError {
            origin: Origin::clone(&self.origin),
            position,
            pod: pod.map(Box::new),
            path: shown(way),
            problem,
        });
    }

    /// Reads a text as JSON or YAML.
    fn text(&mut self, bytes: &[u8]) {
        if bytes.len() > MAX_SIZE {
            return self.fail(None, None, &[], Problem::TooLarge);
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            return self.fail(None, None, &[], Problem::NotText);
        };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_start().starts_with('{') {
            if limits::values(text) > MAX_VALUES {
                let problem = Problem::Invalid(format!("it has more than {MAX_VALUES} values"));
                return self.fail(None, None, &[], problem);
            }
            match serde_json::from_str::<Value>(text) {
                Ok(value) => {
                    // JSON errors have no line. Nearly all JSON is YAML, whose parser knows the lines, so it is parsed
                    // again if one is needed.
                    let tree = std::cell::OnceCell::new();
                    return self.document(&value, &|way| {
                        let tree = tree.get_or_init(|| yaml::documents(text).0.into_iter().next());
                        tree.as_ref().map(|node: &yaml::Node| node.locate(way))
                    });
                }
                // YAML in the flow style looks like JSON, too. A text that is neither counts as bad JSON.
                Err(err) if yaml::documents(text).1.is_some() => {
                    let problem = err.to_string();
                    let problem = problem.split(" at line ").next().unwrap_or_default().to_owned();
                    return self.fail(Some((err.line(), err.column())), None, &[], Problem::Syntax(problem));
                }
                Err(_) => {}
            }
        }
        let (documents, fault) = yaml::documents(text);
        if documents.is_empty() && fault.is_none() {
            return self.fail(None, None, &[], Problem::Empty);
        }
        for document in documents {
            self.document(&document.value(), &|way| Some(document.locate(way)));
        }
        if let Some(fault) = fault {
            self.fail(Some(fault.position), None, &[], fault.problem.into());
        }
    }

    /// Reads a document, which is a pod or a list of pods.
    fn document(&mut self, value: &Value, locate: &Locate<'_>) {
        let (api_version, kind) = (text_at(value, "apiVersion"), text_at(value, "kind"));
        match (api_version, kind) {
            ("v1", "Pod") => self.pod(value, &[], locate),
            ("v1", "PodList" | "List") => match value.get("items") {
                None | Some(Value::Null) => {}
                Some(Value::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        let way = [Step::from("items"), Step::from(index)];
                        match item.get("kind").and_then(Value::as_str) {
                            Some("Pod") => self.pod(item, &way, locate),
                            None if kind == "PodList" => self.pod(item, &way, locate),
                            other => {
                                let api_version = item.get("apiVersion").and_then(Value::as_str);
                                let problem =
                                    other_kind(api_version.unwrap_or_default(), other.unwrap_or_default());
                                self.fail(locate(&way), None, &way, problem);
                            }
                        }
                    }
                }
                Some(_) => {
                    let way = [Step::from("items")];
                    self.fail(locate(&way), None, &way, Problem::Invalid("expected a list".to_owned()));
                }
            },
            _ => self.fail(locate(&[]), None, &[], other_kind(api_version, kind)),
        }
    }

    /// Completes and validates a pod. `base` is its path in the document.
    fn pod(&mut self, value: &Value, base: &[Step], locate: &Locate<'_>) {
        if let Some(crowd) = limits::crowded(value) {
            let way: Vec<Step> = base.iter().cloned().chain(crowd).collect();
            let problem = Problem::Invalid(format!("there are more than {MAX_MEMBERS}"));
            return self.fail(locate(&way), named(value), &way, problem);
        }
        let mut pod: Pod = match serde_path_to_error::deserialize(value) {
            Ok(pod) => pod,
            Err(err) => {
                let way: Vec<Step> = base.iter().cloned().chain(err.path().iter().filter_map(step)).collect();
                let problem = Problem::Invalid(short(err.inner().to_string()));
                return self.fail(locate(&way), named(value), &way, problem);
            }
        };
        self.complete(&mut pod);
        let id = id(&pod);
        let findings = validate::validate(&pod);
        for finding in &findings {
            let way: Vec<Step> = base.iter().cloned().chain(finding.way.iter().cloned()).collect();
            self.fail(locate(&way), id.clone(), &way, Problem::Invalid(finding.text.clone()));
        }
        if let Some(id) = id
            && findings.is_empty()
        {
            #[cfg(feature = "fuzzing")]
            self.whole.push(pod.clone());
            self.parsed.pods.push(Manifest::of(id, pod, &self.origin));
        }
    }

    /// Completes a static pod as a kubelet does. A missing UID becomes a hash of the node's name, the origin and the
    /// pod. A missing namespace becomes `default`. The name gets the suffix if that is requested. The node of the pod
    /// is always set to this one, if its name is known.
    fn complete(&self, pod: &mut Pod) {
        let Defaults { node, suffix } = self.defaults;
        if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
            let mut hash = Sha256::new();
            hash.update(format!("host:{node}\0{:?}\0", self.origin));
            // The hash is of the pod and not of the text, so that another comment does not make another pod.
            hash.update(serde_json::to_vec(pod).unwrap_or_default());
            let hash: String = hex(hash.finalize().into_iter().take(16));
            pod.metadata.uid = Some(hash);
        }
        let meta = &mut pod.metadata;
        if let Some(name) = meta.name.as_mut().filter(|name| *suffix && !name.is_empty() && !node.is_empty())
        {
            *name = format!("{name}-{}", node.to_lowercase());
        }
        if meta.namespace.as_deref().unwrap_or_default().is_empty() {
            meta.namespace = Some("default".to_owned());
        }
        let uid = meta.uid.clone().unwrap_or_default();
        meta.annotations.get_or_insert_default().insert(HASH_ANNOTATION.to_owned(), uid);
        if let Some(spec) = &mut pod.spec
            && !node.is_empty()
        {
            spec.node_name = Some(node.clone());
        }
    }
}

/// Returns the ID of an invalid pod for its error. It returns `None` without a name.
fn named(pod: &Value) -> Option<PodId> {
    let name = pod.pointer("/metadata/name")?.as_str().filter(|name| name.len() <= 253)?;
    let namespace = pod.pointer("/metadata/namespace").and_then(Value::as_str);
    Some(PodId::new(namespace.unwrap_or("default"), name))
}

/// Returns the problem of an object that is no pod.
fn other_kind(api_version: &str, kind: &str) -> Problem {
    let kind = short(kind.escape_debug().to_string());
    let api_version = short(api_version.escape_debug().to_string());
    Problem::Kind(format!("kind \"{kind}\" of apiVersion \"{api_version}\""))
}

/// Returns the text at a key, which is empty if there is none.
fn text_at<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn step(segment: &serde_path_to_error::Segment) -> Option<Step> {
    use serde_path_to_error::Segment;
    match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}
