use std::io;
use std::path::PathBuf;

use cnimble_api::HttpError;

use crate::PodId;
use crate::manifest::{ManifestError, Origin};

/// Why a source, or a pod of it, can't be used now. The source tries again.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{origin}: pod {pod} is ignored: {winner} has a pod of this name already")]
    DuplicateName { pod: Box<PodId>, origin: Origin, winner: Origin },
    #[error("{origin}: pod {pod} is ignored: {winner} has a pod with its UID {uid}")]
    DuplicateUid { pod: Box<PodId>, uid: String, origin: Origin, winner: Origin },
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("GET {url}: {source}")]
    Http { url: String, source: HttpError },
    #[error("{method} {url}: {source}")]
    Write { method: String, url: String, source: HttpError },
    #[error(transparent)]
    Api(cnimble_api::Error),
    #[error("{url}: more than {limit}: {what}")]
    TooMuch { url: String, limit: String, what: &'static str },
    #[error("{url}: {more} more pods can't be used")]
    More { url: String, more: usize },
}

impl From<cnimble_api::Error> for SourceError {
    fn from(err: cnimble_api::Error) -> Self {
        use cnimble_api::Error;
        match err {
            Error::Read { path, source } => SourceError::Read { path, source },
            Error::Http { url, source } => SourceError::Http { url, source },
            Error::TooMuch { url, limit } => {
                SourceError::TooMuch { url, limit, what: "what the server has told of is not taken" }
            }
            other => SourceError::Api(other),
        }
    }
}
