//! What can be wrong with a server, and with what it answers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a collection can't be had now. It may be tried again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
pub enum Error {
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A request failed.
    #[error("{url}: {source}")]
    Http { url: String, source: HttpError },
    /// A watch said that it failed.
    #[error("watching {url}: {message} (code {code})")]
    Watch { url: String, code: u16, message: String },
    /// The kubeconfig, or a file that it names, can't be used any more.
    #[error(transparent)]
    Access(StartError),
    /// A server has more than is taken.
    #[error("{url}: more than {limit}")]
    TooMuch { url: String, limit: String },
    /// It answered what can't be understood.
    #[error("{url}: unexpected answer: {reason}")]
    Answer { url: String, reason: String },
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of fields: their names say what they are
pub enum HttpError {
    /// The server can't be reached, or isn't who it should be.
    #[error("{0}")]
    Connect(String),
    /// It takes too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// It answered with an error.
    #[error("status {status}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status { status: u16, message: String },
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
#[allow(missing_docs)] // of fields: their names say what they are
pub enum StartError {
    /// A URL that is none.
    #[error("\"{}\" is not an http or https URL: {reason}", url.escape_debug())]
    Url { url: String, reason: String },
    /// A header that is none: its name, if it has one.
    #[error("header \"{}\" is not of the form NAME: VALUE", .0.escape_debug())]
    Header(String),
    /// A file of headers that can't be read.
    #[error("headers in {}: {reason}", path.display())]
    HeaderFile { path: PathBuf, reason: String },
    /// A kubeconfig that can't be used.
    #[error("{}: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    /// Certificates or keys that can't be used.
    #[error("{what}: {reason}")]
    Tls { what: String, reason: String },
    /// The API server is to be asked for the pods of a node without a name.
    #[error("the name of the node is missing: the API server must know whose pods to tell of")]
    NoNode,
}
