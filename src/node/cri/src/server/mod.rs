//! A server of CRI for pods' sandboxes only. A call becomes one on [`Sandboxes`], which keeps the records, the locks
//! and the networks: a restart loses no state. Input from the [`Socket`] has limits of size and number.

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

/// The limit of running calls. One more is refused.
const CALLS: u32 = 1024;
/// The limit of connections. One more takes the place of the one that was idle longest, and waits if all have calls.
const CONNECTIONS: usize = 128;
/// How long a connection may take until its first call.
const FIRST_CALL: Duration = Duration::from_secs(10);
/// How long a connection may be without a call. A client of gRPC connects again by itself.
const IDLE: Duration = Duration::from_secs(900);
/// The largest message in bytes.
const MESSAGE: usize = 4 << 20;
/// The time limit of a call: a set-up, its undo, and a while in the queue. The kubelet gives up after 4 minutes.
const CALL: Duration = Duration::from_secs(3 * OPERATION_LIMIT.as_secs());

/// The state that all calls share.
#[derive(Debug)]
struct Service {
    sandboxes: Sandboxes,
    cidr_file: PathBuf,
    calls: Arc<Semaphore>,
    /// The permits for changes to sandboxes, which go on without their callers.
    works: Arc<Semaphore>,
    /// The permits for making sandboxes at the same time.
    making: Semaphore,
    /// The permits for stopping and removing sandboxes at the same time.
    ending: Semaphore,
}

/// The limit of changes that run or wait.
const WORKS: u32 = 4096;
