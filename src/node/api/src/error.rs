//! The errors of a server, of its answers, and of the way to it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a request has failed. Another attempt may succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{url}: {source}")]
    Http { url: String, source: HttpError },
    #[error("watching {url}: {message} (code {code})")]
    Watch { url: String, code: u16, message: String },
    #[error(transparent)]
    Access(StartError),
    #[error("{url}: more than {limit}")]
    TooMuch { url: String, limit: String },
    #[error("{url}: unexpected answer: {reason}")]
    Answer { url: String, reason: String },
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The server cannot be reached, or its identity is wrong.
    #[error("{0}")]
    Connect(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("status {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status { status: u16, message: String },
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error(transparent)]
    Header(#[from] StartError),
    #[error("bad redirection to \"{}\"", .0.escape_debug())]
    Redirect(String),
}

/// The reason why a source cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("\"{}\" is not an http or https URL: {reason}", url.escape_debug())]
    Url { url: String, reason: String },
    /// A header is not valid. Contains its name, if it has one.
    #[error("header \"{}\" is not of the form NAME: VALUE", .0.escape_debug())]
    Header(String),
    #[error("headers in {}: {reason}", path.display())]
    HeaderFile { path: PathBuf, reason: String },
    #[error("{}: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("{what}: {reason}")]
    Tls { what: String, reason: String },
    #[error("the name of the node is missing: the API server must know whose pods to tell of")]
    NoNode,
}
