//! What can be wrong with a source.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

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

/// How a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The server can't be reached, or isn't who it should be.
    #[error("{0}")]
    Connect(String),
    /// It takes too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// It answered with an error.
    #[error("status {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server says about it, shortened.
        message: String,
    },
    /// It answers too much.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// What is to be sent can't be read.
    #[error(transparent)]
    Header(#[from] StartError),
    /// It sends us elsewhere, without end or to no URL.
    #[error("bad redirection to \"{}\"", .0.escape_debug())]
    Redirect(String),
}

/// Sources that can't even be tried.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A URL that is none.
    #[error("\"{}\" is not an http or https URL: {reason}", url.escape_debug())]
    Url {
        /// It.
        url: String,
        /// Why.
        reason: String,
    },
    /// A header that is none: its name, if it has one.
    #[error("header \"{}\" is not of the form NAME: VALUE", .0.escape_debug())]
    Header(String),
    /// A file of headers that can't be read.
    #[error("headers in {}: {reason}", path.display())]
    HeaderFile {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A kubeconfig that can't be used.
    #[error("{}: {reason}", path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Certificates or keys that can't be used.
    #[error("{what}: {reason}")]
    Tls {
        /// Which.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The API server is to be asked for the pods of a node without a name.
    #[error("the name of the node is missing: the API server must know whose pods to tell of")]
    NoNode,
}
