//! What can be wrong with a source.

use std::io;
use std::path::PathBuf;

use cnimble_api::{HttpError, StartError};

use crate::PodId;
use crate::manifest::{ManifestError, Origin};

/// Why a source, or a pod of it, can't be had now. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A manifest is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Another pod has its name.
    #[error("{origin}: pod {pod} is ignored: {winner} has a pod of this name already")]
    DuplicateName {
        /// The pod.
        pod: Box<PodId>,
        /// Where it is.
        origin: Origin,
        /// Where the other one is.
        winner: Origin,
    },
    /// Another pod has its UID.
    #[error("{origin}: pod {pod} is ignored: {winner} has a pod with its UID {uid}")]
    DuplicateUid {
        /// The pod.
        pod: Box<PodId>,
        /// The UID of both.
        uid: String,
        /// Where it is.
        origin: Origin,
        /// Where the other one is.
        winner: Origin,
    },
    /// A file or directory can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something among the manifests is no file.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A request failed.
    #[error("GET {url}: {source}")]
    Http {
        /// Where to.
        url: String,
        /// How.
        source: HttpError,
    },
    /// Something could not be written to an API server.
    #[error("{method} {url}: {source}")]
    Write {
        /// How.
        method: String,
        /// Where to.
        url: String,
        /// Why not.
        source: HttpError,
    },
    /// The watch of an API server said that it failed.
    #[error("watching {url}: {message} (code {code})")]
    Watch {
        /// Which.
        url: String,
        /// The Status' code.
        code: u16,
        /// And message.
        message: String,
    },
    /// The kubeconfig, or a file that it names, can't be used any more.
    #[error(transparent)]
    Access(StartError),
    /// An API server has more than can be kept.
    #[error("{url}: more than {limit}: {what}")]
    TooMuch {
        /// Which.
        url: String,
        /// Of what, and how many of it.
        limit: String,
        /// What becomes of it.
        what: &'static str,
    },
    /// There are more bad pods than are told of.
    #[error("{url}: {more} more pods can't be used")]
    More {
        /// Which.
        url: String,
        /// How many.
        more: usize,
    },
    /// An API server answered what can't be understood.
    #[error("{url}: unexpected answer: {reason}")]
    Answer {
        /// Which.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<cnimble_api::Error> for SourceError {
    fn from(err: cnimble_api::Error) -> Self {
        use cnimble_api::Error;
        match err {
            Error::Read { path, source } => SourceError::Read { path, source },
            Error::Http { url, source } => SourceError::Http { url, source },
            Error::Watch { url, code, message } => SourceError::Watch { url, code, message },
            Error::Access(err) => SourceError::Access(err),
            Error::TooMuch { url, limit } => {
                SourceError::TooMuch { url, limit, what: "what the server has told of is not taken" }
            }
            Error::Answer { url, reason } => SourceError::Answer { url, reason },
        }
    }
}
