//! A server of CRI, the kubelet's interface to container runtimes, for pods' sandboxes only.
//!
//! CRI is gRPC over a Unix socket. Here a call becomes one on [`Sandboxes`], which
//! keeps the records, the locks and the networks; the server itself has no state that a restart could lose.
//! Input from the socket has limits of size and number ([`Limits`]), and each call has a time limit.
//!
//! - [`Socket`]: the Unix socket, and what is there already.
//! - [`Server`]: connections and calls on it, until it is told to stop.

mod answer;
mod calls;
mod cidr;
mod connection;
mod guest;
mod info;
mod request;
mod route;
mod socket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use cnimble_pod::network::OPERATION_LIMIT;
use cnimble_pod::sandbox::Sandboxes;

pub use connection::Server;
pub use socket::{Socket, SocketError};

/// Limits of concurrent work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sandboxes that are made at once, and as many that are stopped or removed; others wait for their turn.
    pub parallel: usize,
    /// Calls under way; one more is refused.
    pub calls: usize,
    /// Connections. One more takes the place of the one that has been without a call for longest; if all have
    /// calls, it waits.
    pub connections: usize,
    /// How long a connection may take until its first call.
    pub first_call: Duration,
    /// How long a connection may be without a call after that.
    pub idle: Duration,
    /// The largest message that is read, in bytes.
    pub message: usize,
    /// How long a call may take in all. The kubelet gives up after 4 minutes.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            parallel: 32,
            calls: 1024,
            connections: 128,
            first_call: Duration::from_secs(10),
            // A client of gRPC connects again by itself.
            idle: Duration::from_secs(900),
            message: 4 << 20,
            // Set-up and taking it back, and a while in the queue.
            time: OPERATION_LIMIT * 3,
        }
    }
}

/// The state that all calls share.
#[derive(Debug)]
struct Service {
    sandboxes: Sandboxes,
    limits: Limits,
    /// Where the node's share of the pods' addresses is kept.
    cidr_file: PathBuf,
    /// A permit for each call.
    calls: Arc<Semaphore>,
    /// A permit for each change to a sandbox, which goes on without its caller.
    works: Arc<Semaphore>,
    /// Permits for making sandboxes.
    making: Semaphore,
    /// Permits for stopping and removing sandboxes.
    ending: Semaphore,
}

/// The number of permits of [`Service::works`].
const WORKS: u32 = 4096;
