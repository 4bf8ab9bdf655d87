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
    DuplicateName { pod: Box<PodId>, origin: Origin, winner: Origin },
    /// Another pod has its UID.
    #[error("{origin}: pod {pod} is ignored: {winner} has a pod with its UID {uid}")]
    DuplicateUid { pod: Box<PodId>, uid: String, origin: Origin, winner: Origin },
    /// A file or directory can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Something among the manifests is no file.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// An HTTP request failed.
    #[error("GET {url}: {source}")]
    Http { url: String, source: HttpError },
    /// Something could not be written to an API server.
    #[error("{method} {url}: {source}")]
    Write { method: String, url: String, source: HttpError },
    /// The watch of an API server said that it failed.
    #[error("watching {url}: {message} (code {code})")]
    Watch { url: String, code: u16, message: String },
    /// The kubeconfig, or a file that it names, can't be used any more.
    #[error(transparent)]
    Access(StartError),
    /// An API server has more than can be kept.
    #[error("{url}: more than {limit}: {what}")]
    TooMuch { url: String, limit: String, what: &'static str },
    /// There are more bad pods than are told of.
    #[error("{url}: {more} more pods can't be used")]
    More { url: String, more: usize },
    /// An API server answered what can't be understood.
    #[error("{url}: unexpected answer: {reason}")]
    Answer { url: String, reason: String },
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
