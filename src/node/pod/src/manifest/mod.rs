//! Manifests: Kubernetes' Pod objects as people write them, read, completed and judged.
//!
//! A manifest is YAML with any number of documents, or JSON: each a Pod, a PodList or a List. [`Pod`] of the crate
//! k8s-openapi reads it, so every field is checked. A [`Manifest`] keeps the facts that the network needs.
//! ```
//! use cnimble_pod::manifest::{Defaults, Manifest, Origin};
//!
//! let text = b"
//! apiVersion: v1
//! kind: Pod
//! metadata: {name: web}
//! spec:
//!   containers:
//!   - name: nginx
//!     ports:
//!     - {containerPort: 80, hostPort: 8080}
//! ";
//! let origin = Origin::File("/etc/pods/web.yaml".into());
//! let pods = Manifest::parse(text, &origin, &Defaults::default()).unwrap();
//! assert_eq!(pods[0].port_mappings()[0].host_port, 8080);
//!
//! let text = String::from_utf8_lossy(text).replace("8080", "80800");
//! let err = Manifest::parse(text.as_bytes(), &origin, &Defaults::default()).unwrap_err();
//! assert_eq!(
//!     err.to_string(),
//!     "/etc/pods/web.yaml:9:37: pod default/web: \
//!      spec.containers[0].ports[0].hostPort: 80800 is not between 1 and 65535",
//! );
//! ```
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
use facts::Facts;
pub(super) use limits::MAX_MEMBERS;
#[cfg(feature = "fuzzing")]
pub(super) use parse::whole;

use crate::PodId;
use error::shown;

/// The largest file or answer that is read, in bytes; the kubelet's limit.
pub const MAX_SIZE: usize = 10 << 20;

/// The annotation in which the kubelet keeps the UID that it made for a static pod.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// With the value `true` no kubelet looks after a pod of an API server, and we write its status (`cnimble run
/// --write-status`).
pub const MANAGED_ANNOTATION: &str = "cnimble/managed";

/// Where a manifest comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A file of the directory.
    File(PathBuf),
    /// An HTTP or HTTPS URL.
    Url(String),
    /// An API server, by its URL.
    Api(String),
    /// Anything else, by a name for people.
    Other(String),
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

/// Defaults of static pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The node's name. Part of the hash that is the UID, and `spec.nodeName`; may be empty.
    pub node: String,
    /// Whether the pod's name gets `-NODE` behind it, in lower case, as under a kubelet.
    pub suffix: bool,
}

/// A wanted pod, complete and validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its namespace and name.
    pub id: PodId,
    /// Its UID. Another UID is another pod.
    pub uid: String,
    /// Where it was found.
    pub origin: Arc<Origin>,
    facts: Facts,
}

/// The result of [`Manifest::parse_each`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// The pods that are fine.
    pub pods: Vec<Manifest>,
    /// The errors of the other pods.
    pub errors: Vec<ManifestError>,
}

impl Manifest {
    /// The static pods in a text, all or none.
    pub fn parse(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Result<Vec<Manifest>, ManifestError> {
        let Parsed { pods, errors } = Manifest::parse_each(bytes, origin, defaults);
        errors.into_iter().next().map_or(Ok(pods), Err)
    }

    /// The static pods in a text; one that is wrong doesn't keep the others out.
    pub fn parse_each(bytes: &[u8], origin: &Origin, defaults: &Defaults) -> Parsed {
        parse::each(bytes, origin, defaults)
    }

    /// A pod as it is, without a static pod's defaults: from an API server.
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
