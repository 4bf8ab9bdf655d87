//! The errors of a server, of its answers, and of the way to it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a collection is not available now. Another attempt may succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A request has failed.
    #[error("{url}: {source}")]
    Http { url: String, source: HttpError },
    /// A watch reported a failure.
    #[error("watching {url}: {message} (code {code})")]
    Watch { url: String, code: u16, message: String },
    /// The kubeconfig, or one of its files, is no longer valid.
    #[error(transparent)]
    Access(StartError),
    /// The answer exceeds a limit.
    #[error("{url}: more than {limit}")]
    TooMuch { url: String, limit: String },
    /// The answer is not understood.
    #[error("{url}: unexpected answer: {reason}")]
    Answer { url: String, reason: String },
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The server cannot be reached, or its identity is wrong.
    #[error("{0}")]
    Connect(String),
    /// The answer takes too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server answered with an error.
    #[error("status {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status { status: u16, message: String },
    /// The answer is too large.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// A header of the request cannot be read.
    #[error(transparent)]
    Header(#[from] StartError),
    /// The server redirects without end, or to an invalid URL.
    #[error("bad redirection to \"{}\"", .0.escape_debug())]
    Redirect(String),
}

/// The reason why a source cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A URL is not valid.
    #[error("\"{}\" is not an http or https URL: {reason}", url.escape_debug())]
    Url { url: String, reason: String },
    /// A header is not valid. Contains its name, if it has one.
    #[error("header \"{}\" is not of the form NAME: VALUE", .0.escape_debug())]
    Header(String),
    /// A file of headers cannot be read.
    #[error("headers in {}: {reason}", path.display())]
    HeaderFile { path: PathBuf, reason: String },
    /// A kubeconfig is not valid.
    #[error("{}: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    /// Certificates or keys are not valid.
    #[error("{what}: {reason}")]
    Tls { what: String, reason: String },
    /// The API server is to be asked for the pods of a node, but the node's name is missing.
    #[error("the name of the node is missing: the API server must know whose pods to tell of")]
    NoNode,
}
