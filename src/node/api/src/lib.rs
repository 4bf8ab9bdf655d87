//! A client of Kubernetes API servers. A [`Connection`] uses a kubeconfig or a pod's service account, and reads it
//! again as tokens and certificates are replaced. A [`Collection`] lists in pages and watches. It passes on the bytes
//! of the objects, one at a time and within limits. Both send their requests by [`http`].

mod access;
mod collection;
mod error;
mod exec;
pub mod http;
mod identity;
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
pub use identity::ClientIdentity;
pub use pace::{End, Pace, spread};
pub use secret::{Secret, redact};
pub use text::{is_unseen, tame};
pub use wire::{Notice, notice};

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
