//! Messages of CRI, `runtime.v1`, for clients and servers. Each has only the fields that are used, with their numbers.
//!
//! A protobuf reader skips unknown fields, and an absent field has its default. `api.proto` of
//! [kubernetes/cri-api](https://github.com/kubernetes/cri-api) describes the fields.

mod config;
mod runtime;
mod sandbox;

pub use config::*;
pub use runtime::*;
pub use sandbox::*;
