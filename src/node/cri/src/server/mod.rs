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

/// The number of calls under way.
const CALLS: u32 = 1024;
/// One more takes the place of the one that was idle longest. If all have calls, it waits.
const CONNECTIONS: usize = 128;
/// How long a connection may take until its first call.
const FIRST_CALL: Duration = Duration::from_secs(10);
/// A client of gRPC connects again by itself.
const IDLE: Duration = Duration::from_secs(900);
/// The bytes of a message.
const MESSAGE: usize = 4 << 20;
/// The limit of a call: set-up and taking it back, and a while in the queue. The kubelet gives up after 4 minutes.
const CALL: Duration = Duration::from_secs(3 * OPERATION_LIMIT.as_secs());

/// The state that all calls share.
#[derive(Debug)]
struct Service {
    sandboxes: Sandboxes,
    cidr_file: PathBuf,
    calls: Arc<Semaphore>,
    /// A permit for each change to a sandbox, which goes on without its caller.
    works: Arc<Semaphore>,
    making: Semaphore,
    ending: Semaphore,
}

const WORKS: u32 = 4096;
