//! Errors of calls to a runtime.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

use crate::clean::clean;

/// Why a call failed. Texts of the runtime have no control characters here.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CriError {
    #[error("no container runtime's socket is there: {}", list(.tried))]
    NoSocket { tried: Vec<PathBuf> },
    #[error("{endpoint} names no Unix socket{origin}: a path is needed, or unix:// and a path")]
    Endpoint { endpoint: String, origin: String },
    #[error("{}: {why}", .socket.display())]
    Connect { socket: PathBuf, why: String },
    #[error("{} is not the socket of a CRI runtime: {why}", .socket.display())]
    NotCri { socket: PathBuf, why: String },
    #[error("{}: {method} had no answer within {} s", .socket.display(), .limit.as_secs())]
    Late { socket: PathBuf, method: &'static str, limit: Duration },
    #[error("the runtime doesn't implement {method}")]
    Unimplemented { method: &'static str },
    #[error("the runtime has no such sandbox: {why}")]
    NoSandbox { why: String },
    #[error("{method}: {why} ({code})")]
    Refused { method: &'static str, code: String, why: String },
    #[error("{method}: the runtime's answer can't be used: {why}")]
    Answer { method: &'static str, why: String },
}

fn list(tried: &[PathBuf]) -> String {
    tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl CriError {
    /// Returns the error of a socket that can't be connected to.
    pub(crate) fn connect(socket: &Path, why: String) -> Self {
        CriError::Connect { socket: socket.to_owned(), why }
    }

    /// Returns the error of a program that answers, but is no CRI runtime.
    pub(crate) fn not_cri(socket: &Path, why: String) -> Self {
        CriError::NotCri { socket: socket.to_owned(), why }
    }

    /// Converts a status of gRPC. Without an answer of the runtime, the error is [`CriError::NotCri`].
    ///
    /// Three codes of the runtime have a variant of their own. The unknown method is [`CriError::Unimplemented`], and the
    /// unknown sandbox is [`CriError::NoSandbox`]. An answer that is too large (OUT_OF_RANGE) is [`CriError::Answer`].
    /// All other codes become [`CriError::Refused`].
    pub(crate) fn from_status(socket: &Path, method: &'static str, status: &Status) -> Self {
        let why = clean(status.message());
        // A status that the runtime sent has no source, unlike an error of the transport.
        if let Some(source) = std::error::Error::source(status) {
            return CriError::NotCri { socket: socket.to_owned(), why: innermost(source) };
        }
        match status.code() {
            Code::Unimplemented => CriError::Unimplemented { method },
            Code::NotFound => CriError::NoSandbox { why },
            Code::OutOfRange => CriError::Answer { method, why },
            code => CriError::Refused { method, code: format!("{code:?}"), why },
        }
    }

    /// Returns whether the error says that there is no such sandbox, or none any more.
    pub fn is_no_sandbox(&self) -> bool {
        match self {
            CriError::NoSandbox { .. } => true,
            // containerd 1.6 has no code for it in calls on the sandbox' task. Only the text says so.
            CriError::Refused { code, why, .. } => code == "Unknown" && why.contains("not found"),
            _ => false,
        }
    }
}

/// Returns the text of the last cause. The texts of the others only say that something failed.
pub(crate) fn innermost(err: &dyn std::error::Error) -> String {
    let mut last = err;
    while let Some(next) = last.source() {
        last = next;
    }
    clean(&last.to_string())
}
