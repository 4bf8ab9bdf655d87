//! CRI's messages, `runtime.v1`, as they go over the wire: the fields that are used, by their numbers. For clients and
//! servers.
//!
//! protobuf passes over fields that a reader doesn't know, and what a writer leaves out has its
//! default. So a message needs no more than what is used of it. What each means is said in CRI's definition,
//! `api.proto` of [kubernetes/cri-api](https://github.com/kubernetes/cri-api).
#![allow(missing_docs, reason = "the fields have the names of CRI's definition, which documents them")]

mod config;
mod runtime;
mod sandbox;

pub use config::*;
pub use runtime::*;
pub use sandbox::*;
