//! The CNI protocol as types. Nothing in here does I/O.
//!
//! The source is the CNI specification 1.1.0 (<https://www.cni.dev/docs/spec/>) with the tags of its older versions.
//! Where the Go reference is more lenient and runtimes rely on it, the reference wins. Each such place says so.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | the configuration that a plugin reads, and [`capability`] for its `runtimeConfig` |
//! | [`list`] | the networks that a runtime reads |
//! | [`result`], [`error`] | the answers of a plugin |
//! | [`json`], [`fields`] | readers of JSON, whose errors have the path of a key |
//! | [`owner`], [`hash`] | the owner of an attachment, and names made of it |
//! | [`names`], [`mtu`], [`reach`] | rules that ADD and `cnimble validate --strict` share |
//! | [`verb`], [`args`], [`version`] | the verbs, `CNI_ARGS`, the versions of the protocol |

#![warn(missing_docs)]

pub mod args;
mod attachments;
pub mod capability;
pub mod cidr;
pub mod config;
pub mod error;
pub mod fields;
pub mod hash;
pub mod json;
pub mod list;
pub mod mtu;
pub mod names;
pub mod owner;
pub mod reach;
pub mod result;
pub mod verb;
pub mod version;

// Their types are in signatures of this crate.
pub use ipnetwork::{self, IpNetwork};
pub use serde_json;

pub use args::CniArgs;
pub use attachments::Attachment;
pub use capability::RuntimeConfig;
pub use config::PluginConfig;
pub use error::{Code, Error};
pub use hash::hash16;
pub use list::NetworkList;
pub use owner::Owner;
pub use result::{CniResult, Dns, DnsKeys, Interface, IpConfig, Route};
pub use verb::Verb;
pub use version::Version;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
