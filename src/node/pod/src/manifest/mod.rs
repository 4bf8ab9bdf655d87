//! Manifests: Pod objects in YAML with any number of documents, or in JSON. Each document is a Pod, a PodList or a
//! List. [`Pod`] of the crate k8s-openapi reads it, so every field is checked. A [`Manifest`] keeps what the network
//! needs. Static pods (from files and URLs) get a kubelet's [`Defaults`]: the namespace `default`, and a UID, a hash of
//! node, origin and pod. So an edited manifest is another pod. Unknown fields are ignored, as by the kubelet.

mod access;
mod error;
mod facts;
mod limits;
mod names;
mod parse;
#[cfg(test)]
mod tests;
mod validate;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

pub use access::DnsPolicy;
pub use error::{ManifestError, Problem};
pub use facts::Facts;
pub(super) use limits::MAX_MEMBERS;
#[cfg(feature = "fuzzing")]
pub(super) use parse::whole;

use crate::PodId;
use error::shown;

/// The largest manifest in bytes, as for a kubelet's file or HTTP answer.
pub const MAX_SIZE: usize = 10 << 20;

/// The annotation in which the kubelet keeps the UID that it made for a static pod.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// The annotation of pods that no kubelet manages, with the value `true`. `cnimble run --write-status` then writes the
/// pod's status.
pub const MANAGED_ANNOTATION: &str = "cnimble/managed";

/// Where a manifest comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    File(PathBuf),
    Url(String),
    Api(String),
    Other(String),
}

/// Hides the query of a URL, as `Display` does.
impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({:?})", self.to_string())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => path.display().fmt(f),
            // The query may be a secret.
            Origin::Url(text) => f.write_str(text.split(['?', '#']).next().unwrap_or_default()),
            Origin::Api(text) | Origin::Other(text) => f.write_str(text),
        }
    }
}

/// What static pods get that their manifests lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The node's name, which is part of the hash that is the UID, and becomes `spec.nodeName`. May be empty.
    pub node: String,
    /// Appends `-NODE` in lower case to the pod's name, as a kubelet does.
    pub suffix: bool,
}

/// A wanted pod, complete and validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub id: PodId,
    /// The UID. A pod of the same name with another UID is another pod.
    pub uid: String,
    pub origin: Arc<Origin>,
    pub facts: Facts,
}

/// The result of [`Manifest::parse_each`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// The valid pods.
    pub pods: Vec<Manifest>,
    /// The errors in the text, and in the other pods.
    pub errors: Vec<ManifestError>,
}

impl Manifest {
    /// Reads static pods. Fails with the first error, even if other pods are valid.
    pub fn parse(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Result<Vec<Manifest>, ManifestError> {
        let Parsed { pods, errors } = Manifest::parse_each(bytes, origin, defaults);
        errors.into_iter().next().map_or(Ok(pods), Err)
    }

    /// Reads static pods. Returns the valid ones beside the errors of the others.
    pub fn parse_each(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Parsed {
        parse::parse_each(bytes, origin, defaults)
    }

    /// Validates a pod as it is, without the defaults of static pods. Fails with the first fault.
    pub fn from_pod(pod: Pod, origin: &Arc<Origin>) -> Result<Manifest, ManifestError> {
        let id = id(&pod);
        match validate::validate(&pod).into_iter().next() {
            Some(finding) => Err(ManifestError {
                origin: Origin::clone(origin),
                position: None,
                pod: id.map(Box::new),
                path: shown(&finding.way),
                problem: Problem::Invalid(finding.text),
            }),
            None => Ok(Manifest::of(id.unwrap_or_else(|| PodId::new("", "")), pod, origin)),
        }
    }

    fn of(id: PodId, mut pod: Pod, origin: &Arc<Origin>) -> Manifest {
        let uid = pod.metadata.uid.take().unwrap_or_default();
        Manifest { id, uid, origin: Arc::clone(origin), facts: Facts::from_pod(pod) }
    }
}

/// Returns the pod's ID, or `None` without a name of a possible length. A namespace that is missing, or of an impossible
/// length, is `default` here.
fn id(pod: &Pod) -> Option<PodId> {
    let namespace =
        pod.metadata.namespace.as_deref().filter(|namespace| (1..=253).contains(&namespace.len()));
    let name = pod.metadata.name.as_deref().filter(|name| (1..=253).contains(&name.len()))?;
    Some(PodId::new(namespace.unwrap_or("default"), name))
}
