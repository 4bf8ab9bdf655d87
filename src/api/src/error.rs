//! What can be wrong with a server, and with what it answers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a collection can't be had now. It may be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A request failed.
    #[error("{url}: {source}")]
    Http {
        /// Where to.
        url: String,
        /// Why.
        source: HttpError,
    },
    /// A watch said that it failed.
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
    /// A server has more than is taken.
    #[error("{url}: more than {limit}")]
    TooMuch {
        /// Which.
        url: String,
        /// Of what, and how many of it.
        limit: String,
    },
    /// It answered what can't be understood.
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
