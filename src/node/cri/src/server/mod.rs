//! A server of CRI for pods' sandboxes only. A call becomes one on [`Sandboxes`], which keeps the records, the locks
//! and the networks: a restart loses no state. Input from the [`Socket`] has limits of size and number ([`Limits`]).

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sandboxes that are made at once, and as many that are stopped or removed; others wait for their turn.
    pub parallel: usize,
    pub calls: usize,
    /// One more takes the place of the one that was idle longest. If all have calls, it waits.
    pub connections: usize,
    /// How long a connection may take until its first call.
    pub first_call: Duration,
    pub idle: Duration,
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
    cidr_file: PathBuf,
    calls: Arc<Semaphore>,
    /// A permit for each change to a sandbox, which goes on without its caller.
    works: Arc<Semaphore>,
    making: Semaphore,
    ending: Semaphore,
}

const WORKS: u32 = 4096;
