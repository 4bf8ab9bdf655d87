//! A client of container runtimes, by CRI, the kubelet's interface to them.
//!
//! CRI is gRPC over a Unix socket. The service is `runtime.v1.RuntimeService`, of which the calls about
//! pods' sandboxes are here. Answers of a runtime are not trusted. Every
//! call has a time limit, every answer has a size limit, and texts lose their control characters.
//!
//! [`Client`] makes calls. [`server`] answers them for `cnimble serve`, beginning in its module `route`. [`wire`] has
//! the messages of both.
//!
//! ```no_run
//! # async fn example() -> Result<(), cnimble_cri::CriError> {
//! let client = cnimble_cri::Client::connect(&cnimble_cri::find(None)?).await?;
//! for sandbox in client.sandboxes().await? {
//!     println!("{} {}", sandbox.pod(), sandbox.state());
//! }
//! # Ok(())
//! # }
//! ```

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
pub use config::{PodConfig, Port, Protocol};
pub use error::CriError;
pub use find::{CRICTL_CONFIG, ENDPOINT_VARIABLE, USUAL, find};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
