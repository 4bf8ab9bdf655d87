//! A client of Kubernetes API servers: it connects to one, and follows a collection.
//!
//! [`Connection`] uses a kubeconfig or a pod's service account, and reads it again as tokens and certificates are
//! replaced. [`Collection`] lists in pages and watches. The caller receives the bytes of the objects, one object at a
//! time and within limits, and interprets them.
//!
//! Read `access` for connections, then `collection` for lists and watches. Both send their requests by [`http`].

mod access;
mod collection;
mod error;
mod exec;
pub mod http;
mod kubeconfig;
mod pace;
mod page;
mod secret;
mod text;
mod wire;
pub mod yaml;

pub use access::{Connection, Server, encode};
pub use collection::{Collection, Lines, PAGE};
pub use error::{Error, HttpError, StartError};
pub use http::{Client, Tls};
pub use pace::{End, Pace};
pub use secret::{Secret, redact};
pub use text::{is_unseen, tame};
pub use wire::{Notice, notice};

/// Entry points for fuzzers.
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
