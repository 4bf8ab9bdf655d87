//! Where pods come from: a directory of manifests, a URL, an API server.
//!
//! [`PodConfig`] reads and merges all sources, as the kubelet's type of that name does. A listener gets the differences
//! to earlier pods ([`PodUpdate`]). Errors become [`Condition`]s and never affect other pods.
//! ```no_run
//! use cnimble_pod::source::{Directory, PodConfig, Sources};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sources = Sources { directory: Some(Directory::new("/etc/pods")), ..Sources::default() };
//! let (config, mut updates) = PodConfig::start(sources)?;
//! let update = updates.recv().await.ok_or("no update")?;
//! println!("{:?} {:?}", update.op, update.pods);
//! assert!(config.seen_all_sources(&[update.source].into()));
//! # Ok(())
//! # }
//! ```
//! # What goes wrong
//! - A bad manifest keeps the pods of its last good version, until it is mended or removed. So does a URL that answers
//!   nonsense, or not at all. (A kubelet drops them when it reads the whole directory again.)
//! - Of two pods with one name or UID the first stays. The other is a condition until the first goes.
//! - A source that was never read hasn't been *seen*: nothing may be cleaned up before all are
//!   ([`PodConfig::seen_all_sources`]).

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
use report::{Complaint, Reporter, Shared};

/// A kind of source; there can be one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A directory of manifests.
    File,
    /// The URL of a manifest.
    Http,
    /// A Kubernetes API server.
    Api,
}

impl fmt::Display for SourceKind {
    /// The kubelet's words: `file`, `http`, `api`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SourceKind::File => "file",
            SourceKind::Http => "http",
            SourceKind::Api => "api",
        })
    }
}

/// A kind of update, in the order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// They are gone, or have ended for good.
    Remove,
    /// The pods are new.
    Add,
    /// They want something else of the network, and are the same pods still.
    Update,
    /// They are to go in peace: they have a deletionTimestamp now.
    Delete,
}

/// Pods of one source to which the same happened.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUpdate {
    /// The kind of the update.
    pub op: Op,
    /// The source of the pods.
    pub source: SourceKind,
    /// May be empty: the source has been read for the first time, and has none.
    pub pods: Vec<Arc<Manifest>>,
}

/// Something that is wrong now.
#[derive(Debug, Clone)]
pub struct Condition {
    /// The source with the error.
    pub source: SourceKind,
    /// With which file, URL or server of it.
    pub origin: Origin,
    /// With which pod, if it is about one.
    pub pod: Option<PodId>,
    /// The error of the source.
    pub error: Arc<SourceError>,
    /// Whether because of it the source as a whole can't be read now.
    pub whole: bool,
    /// The time of the first failure.
    pub since: SystemTime,
}

/// The sources to read.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A directory of manifests.
    pub directory: Option<Directory>,
    /// A URL that answers with manifests.
    pub url: Option<UrlSource>,
    /// A Kubernetes API server.
    pub api: Option<ApiSource>,
}

/// The pods that are wanted, from all sources. Reading stops when it is dropped.
#[derive(Debug)]
pub struct PodConfig {
    shared: Arc<Shared>,
    kinds: BTreeSet<SourceKind>,
    reread: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

impl PodConfig {
    /// Begins to read, in a tokio runtime with I/O and time. The receiver gets changes in order; sources wait for it.
    /// Fails for options that can never work, such as an invalid URL or kubeconfig. A passing error is a [`Condition`].
    pub fn start(sources: Sources) -> Result<(PodConfig, mpsc::Receiver<PodUpdate>), StartError> {
        let url = sources.url.map(url::Reader::new).transpose()?;
        let api = sources.api.map(api::Reader::new).transpose()?;
        let (updates, receiver) = mpsc::channel(50);
        let shared = Arc::new(Shared::new(updates));
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

    /// Whether all sources have been read and are in `seen`, the sources of the listener's updates.
    pub fn seen_all_sources(&self, seen: &BTreeSet<SourceKind>) -> bool {
        let state = self.shared.state();
        self.kinds.iter().all(|kind| seen.contains(kind) && state.storage.seen(*kind))
    }

    /// Whether each source has been read, as by [`PodConfig::seen_all_sources`], or has failed to be.
    pub fn tried_all_sources(&self, seen: &BTreeSet<SourceKind>) -> bool {
        let state = self.shared.state();
        self.kinds.iter().all(|kind| match state.storage.seen(*kind) {
            true => seen.contains(kind),
            false => state.fails(*kind),
        })
    }

    /// The pods that are wanted now.
    pub fn pods(&self) -> Vec<Arc<Manifest>> {
        self.shared.state().storage.pods()
    }

    /// The present errors, with notification of changes.
    pub fn conditions(&self) -> watch::Receiver<Vec<Condition>> {
        self.shared.conditions.subscribe()
    }

    /// Reads every source again now.
    pub fn reread(&self) {
        self.reread.send_replace(());
    }
}
