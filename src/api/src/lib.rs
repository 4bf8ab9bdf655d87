//! A client of Kubernetes API servers: how to reach one, and how to follow a collection.
//!
//! [`Connection`] goes by a kubeconfig, or by what a pod of the cluster is told, and reads it again as tokens
//! and certificates are replaced. [`Collection`] lists in pages and watches. What the objects mean is the
//! caller's business: it gets their bytes, one object at a time, within limits.

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

pub use access::{Connection, Server, encode};
pub use collection::{Collection, Lines, PAGE};
pub use error::{Error, HttpError, StartError};
pub use http::{Client, Tls};
pub use pace::{End, Pace};
pub use secret::{Secret, redact};
pub use text::{is_unseen, tame};
pub use wire::{Notice, notice};

/// For fuzzers.
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
