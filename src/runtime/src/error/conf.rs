//! Files in the configuration directory.

use std::fmt;
use std::io;
use std::path::PathBuf;

use cnimble_cni as cni;

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// The directory can't be listed.
    #[error("can't list the configuration directory {}: {source}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file can't be read.
    #[error("{}: can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is no JSON.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What the parser says.
        reason: String,
    },
    /// The file is JSON, but no network. The reason has the path to the bad value.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: cni::Error,
    },
    /// No usable file has this network.
    #[error("no network \"{name}\" in {}{}", dir.display(), NoNetworkHint { known, bad })]
    NoNetwork {
        /// The directory.
        dir: PathBuf,
        /// The network asked for.
        name: String,
        /// The networks that are there.
        known: Vec<String>,
        /// Files that were skipped because of an error: one may be the right one.
        bad: Vec<ConfError>,
    },
}

struct NoNetworkHint<'a> {
    known: &'a [String],
    bad: &'a [ConfError],
}

impl fmt::Display for NoNetworkHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known {
            [] => write!(f, "; there is none at all")?,
            known => write!(f, "; there is {}", known.join(", "))?,
        }
        for bad in self.bad {
            write!(f, "; skipped {bad}")?;
        }
        Ok(())
    }
}
