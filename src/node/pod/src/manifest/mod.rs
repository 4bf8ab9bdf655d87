//! Manifests: Pod objects in YAML with any number of documents, or in JSON: each a Pod, a PodList or a List. [`Pod`] of
//! the crate k8s-openapi reads it, so every field is checked. A [`Manifest`] keeps what the network needs.
//! Static pods (from files and URLs) get a kubelet's [`Defaults`]: the namespace `default`, and a UID, a hash of node,
//! origin and pod. So an edited manifest is another pod. Unknown fields are ignored, as by the kubelet.

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

/// The kubelet's limit of a file or an answer, in bytes.
pub const MAX_SIZE: usize = 10 << 20;

/// The kubelet keeps the UID that it made for a static pod here.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// With the value `true` no kubelet looks after the pod, and `cnimble run --write-status` writes its status.
pub const MANAGED_ANNOTATION: &str = "cnimble/managed";

/// Where a manifest comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    File(PathBuf),
    Url(String),
    Api(String),
    Other(String),
}

/// Hides the same as `Display`.
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Part of the hash that is the UID, and `spec.nodeName`; may be empty.
    pub node: String,
    /// Appends `-NODE` in lower case to the pod's name, as a kubelet does.
    pub suffix: bool,
}

/// A wanted pod, complete and validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub id: PodId,
    /// Another UID is another pod.
    pub uid: String,
    pub origin: Arc<Origin>,
    pub facts: Facts,
}

/// The result of [`Manifest::parse_each`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    pub pods: Vec<Manifest>,
    pub errors: Vec<ManifestError>,
}

impl Manifest {
    /// Returns all static pods or none.
    pub fn parse(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Result<Vec<Manifest>, ManifestError> {
        let Parsed { pods, errors } = Manifest::parse_each(bytes, origin, defaults);
        errors.into_iter().next().map_or(Ok(pods), Err)
    }

    /// A wrong pod doesn't keep the others out.
    pub fn parse_each(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Parsed {
        parse::each(bytes, origin, defaults)
    }

    /// Adds no defaults of static pods.
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
        Manifest { id, uid, origin: Arc::clone(origin), facts: Facts::of(pod) }
    }
}

fn id(pod: &Pod) -> Option<PodId> {
    let namespace =
        pod.metadata.namespace.as_deref().filter(|namespace| (1..=253).contains(&namespace.len()));
    let name = pod.metadata.name.as_deref().filter(|name| (1..=253).contains(&name.len()))?;
    Some(PodId::new(namespace.unwrap_or("default"), name))
}
