//! Messages of CRI, `runtime.v1`, for clients and servers. Each has only the fields that are used, and a protobuf
//! reader skips others. `api.proto` of [kubernetes/cri-api](https://github.com/kubernetes/cri-api) describes them.

mod config;
mod runtime;
mod sandbox;

pub use config::*;
pub use runtime::*;
pub use sandbox::*;
