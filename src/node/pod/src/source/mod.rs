//! The sources of pods: a directory of manifests, a URL and an API server. [`PodConfig`] merges all, as the kubelet's
//! type of that name does, and reports differences ([`PodUpdate`]). Errors become [`Condition`]s and never affect other
//! pods:
//! - A bad manifest keeps the pods of its last good version, until it is mended or removed. So does a URL that answers
//!   nonsense, or not at all. (A kubelet drops them when it reads the whole directory again.)
//! - Of two pods with one name or UID the first stays.
//! - Nothing may be cleaned up before all sources were read once ([`PodConfig::seen_all_sources`]).

mod api;
mod directory;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod listed;
mod merge;
mod report;
mod status;
mod url;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use api::ApiSource;
pub use cnimble_api::{HttpError, StartError};
pub use directory::Directory;
pub use error::SourceError;
pub use merge::SOURCE_ANNOTATION;
pub use status::{PodStatus, StatusWriter};
pub use url::UrlSource;

use crate::PodId;
use crate::manifest::{Manifest, Origin};
use report::{Reporter, SharedSources};

/// The kinds of sources. There can be one source of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    File,
    Http,
    Api,
}

impl fmt::Display for SourceKind {
    /// Writes the kubelet's words: `file`, `http`, `api`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The kinds of updates, in the order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// The pods are gone, or have ended for good.
    Remove,
    Add,
    /// Known pods want something else of the network.
    Update,
    /// The pods have a deletionTimestamp now.
    Delete,
}

/// Pods of one source to which the same happened.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUpdate {
    pub op: Op,
    pub source: SourceKind,
    /// The list is empty if the source has been read for the first time, and has no pods.
    pub pods: Vec<Arc<Manifest>>,
}

/// A present error of a source, or of one of its pods.
#[derive(Debug, Clone)]
pub struct Condition {
    pub source: SourceKind,
    /// The file, URL or server.
    pub origin: Origin,
    pub pod: Option<PodId>,
    pub error: Arc<SourceError>,
    /// Whether the source as a whole can't be read now, and not only one pod.
    pub whole: bool,
    /// The time at which the error began.
    pub since: SystemTime,
}

/// The sources to read.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub directory: Option<Directory>,
    pub url: Option<UrlSource>,
    pub api: Option<ApiSource>,
}

/// Reads the sources in tasks, which stop on drop.
#[derive(Debug)]
pub struct PodConfig {
    shared: Arc<SharedSources>,
    kinds: BTreeSet<SourceKind>,
    reread: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

impl PodConfig {
    /// Starts reading. Sources wait for the receiver of updates. Needs a tokio runtime with I/O and time. Fails for
    /// options that can never work, such as an invalid URL or kubeconfig. An error that may pass is a [`Condition`].
    pub fn start(sources: Sources) -> Result<(PodConfig, mpsc::Receiver<PodUpdate>), StartError> {
        let url = sources.url.map(url::Reader::new).transpose()?;
        let api = sources.api.map(api::Reader::new).transpose()?;
        let (updates, receiver) = mpsc::channel(50);
        let shared = Arc::new(SharedSources::new(updates));
        let reread = watch::Sender::new(());
        let mut tasks = JoinSet::new();
        let mut kinds = BTreeSet::new();
        let mut reporter = |kind| {
            kinds.insert(kind);
            Reporter { kind, shared: Arc::clone(&shared), reread: reread.subscribe() }
        };
        if let Some(directory) = sources.directory {
            tasks.spawn(directory::read(directory, reporter(SourceKind::File)));
        }
        if let Some(url) = url {
            tasks.spawn(url.read(reporter(SourceKind::Http)));
        }
        if let Some(api) = api {
            tasks.spawn(api.read(reporter(SourceKind::Api)));
        }
        Ok((PodConfig { shared, kinds, reread, _tasks: tasks }, receiver))
    }

    /// Returns whether all sources have been read, and the listener has taken their updates. `seen` has the sources of
    /// the updates that it has taken. Before that nothing may be cleaned up.
    pub fn seen_all_sources(&self, seen: &BTreeSet<SourceKind>) -> bool {
        let state = self.shared.state();
        self.kinds.iter().all(|kind| seen.contains(kind) && state.storage.seen(*kind))
    }

    /// Returns whether each source has been read, as by [`PodConfig::seen_all_sources`], or could not be read.
    pub fn tried_all_sources(&self, seen: &BTreeSet<SourceKind>) -> bool {
        let state = self.shared.state();
        self.kinds
            .iter()
            .all(|kind| if state.storage.seen(*kind) { seen.contains(kind) } else { state.fails(*kind) })
    }

    /// Returns the wanted pods as they are known now.
    pub fn pods(&self) -> Vec<Arc<Manifest>> {
        self.shared.state().storage.pods()
    }

    /// Returns a receiver for the present errors.
    pub fn conditions(&self) -> watch::Receiver<Vec<Condition>> {
        self.shared.conditions.subscribe()
    }

    /// Reads every source again now.
    pub fn reread(&self) {
        self.reread.send_replace(());
    }
}
