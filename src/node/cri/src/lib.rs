//! A client and a server of CRI, the kubelet's interface to container runtimes: gRPC over a Unix socket. It has the
//! calls about pods' sandboxes. Answers are not trusted: time, size and control characters are limited. [`Client`]
//! makes calls. [`server`] answers them for `cnimble serve`, beginning in its module `route`. [`wire`] has the messages
//! of both.

mod answer;
mod clean;
mod client;
mod config;
mod error;
mod find;
pub mod server;
#[cfg(test)]
mod tests;
pub mod wire;

pub use answer::{Cni, Condition, Loaded, Sandbox, SandboxStatus, Status, Version};
pub use client::{Client, WORK_LIMIT, blocking};
pub use config::{Dns, PodConfig, PortMapping, Protocol};
pub use error::CriError;
pub use find::{CRICTL_CONFIG, ENDPOINT_VARIABLE, USUAL, find_socket};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
