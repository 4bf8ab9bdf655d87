//! The sync loop: brings wanted and present pods together, and keeps them so.
//!
//! Like the kubelet's loop, it waits for the next of these events:
//! - **a change of the wanted pods** ([`Input`]): the pod's worker gets an order.
//! - **a broken sandbox**, looked for every second: a process, a namespace or an interface is gone. It is repaired.
//! - **the sync tick**, every second: failed pods are tried again after a wait that doubles, others are checked at times.
//! - **housekeeping**, every two seconds: unwanted pods are taken down once every source has been read, not before.
//!
//! Each pod has a worker with one order at a time; of those that come meanwhile only the latest counts. A pod that
//! fails or hangs holds up no other pod, up to [`SyncOptions::parallel`] of them. If the list of sandboxes cannot be
//! read, the loop does nothing. It tries again after 100 ms, doubled up to 5 s.
//!
//! [`Board`] shows the state of every pod. [`Handle::stop`] ends the loop. Dropping its future kills running plugins,
//! as a crash would, and the next loop finds their unfinished work. [`SandboxWork`] is the [`Work`] with sandboxes:
//! ```no_run
//! use cnimble_pod::PodId;
//! use cnimble_pod::sandbox::{SandboxConfig, Sandboxes};
//! use cnimble_pod::sync::{Input, Pods, SandboxWork, SyncLoop, SyncOptions};
//! # async fn example(sandboxes: Sandboxes) -> Result<(), Box<dyn std::error::Error>> {
//! let (looping, handle) = SyncLoop::new(SandboxWork::new(sandboxes), SyncOptions::default());
//! let board = looping.board();
//! let (inputs, received) = tokio::sync::mpsc::channel(8);
//! let task = tokio::spawn(looping.run(received));
//! inputs.send(Input::Want(vec![SandboxConfig::new(PodId::new("default", "web"), "a-uid")])).await?;
//! inputs.send(Input::SourcesReady).await?;
//! board.overall().wait_for(|overall| overall.settled).await?;
//! println!("{:?}", board.pods());
//! handle.stop(Pods::Leave);
//! task.await?;
//! # Ok(())
//! # }
//! ```

mod backoff;
mod entry;
mod housekeeping;
mod report;
mod sandbox_work;
mod sync_loop;
#[cfg(test)]
mod tests;
mod work;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::PodId;

pub use backoff::BackoffOptions;
pub use report::{Board, Overall, Phase, PodReport};
pub use sandbox_work::SandboxWork;
pub use sync_loop::{Ended, SyncLoop};
pub use work::{Cause, Condition, Up, Wanted, Work};

/// An input from the sources.
#[derive(Debug)]
pub enum Input<P> {
    /// These pods are wanted, new or changed.
    Want(Vec<P>),
    /// These aren't any more: the pods of these names, if they (still) have these UIDs.
    Unwant(Vec<(PodId, String)>),
    /// These have been told to go: they keep the network that they have until they are unwanted, and get no other.
    Keep(Vec<P>),
    /// Nothing is to be left of these, and it is told ([`Event::Gone`]) when nothing is.
    Release(Vec<PodId>),
    /// Every source has been read.
    SourcesReady,
    /// Every source has been read, or could not be.
    SourcesTried,
}

/// How the loop works.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// The time between two sync ticks.
    pub tick: Duration,
    /// The time between two housekeepings.
    pub housekeeping: Duration,
    /// Between looks for broken sandboxes.
    pub relist: Duration,
    /// Between checks of a pod that is up, and a bit more; `None` is never.
    pub check: Option<Duration>,
    /// Between clean-ups of what belongs to no pod; `None` is never.
    pub clean: Option<Duration>,
    /// After a pod's failure.
    pub retry: BackoffOptions,
    /// When nothing can be done at all.
    pub trouble: BackoffOptions,
    /// How many pods are worked on at once.
    pub parallel: usize,
    /// How long a stop waits for work that has been begun.
    pub stop_limit: Duration,
    /// The listener for events.
    pub listener: Listener,
}

impl Default for SyncOptions {
    fn default() -> Self {
        let (from_100ms, second) = (Duration::from_millis(100), Duration::from_secs(1));
        SyncOptions {
            tick: second,
            housekeeping: Duration::from_secs(2),
            relist: second,
            check: Some(Duration::from_secs(60)),
            clean: Some(Duration::from_secs(600)),
            retry: BackoffOptions { first: second, most: Duration::from_secs(60) },
            trouble: BackoffOptions { first: from_100ms, most: Duration::from_secs(5) },
            parallel: 16,
            stop_limit: Duration::from_secs(30),
            listener: Listener::default(),
        }
    }
}

/// An event of the loop.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A pod is another way than before.
    Pod(PodReport),
    /// Nothing is left of a pod.
    Gone(PodId),
    /// Work on a pod has ended.
    Worked {
        /// The ID of the pod.
        id: PodId,
        /// `up`, `check`, `repair` or `down`.
        operation: &'static str,
        /// How long it took.
        took: Duration,
        /// Why it failed, in one word.
        failure: Option<&'static str>,
    },
    /// The loop can do nothing, for this reason. `None` ends the trouble.
    Trouble(Option<String>),
    /// Something of lesser importance failed.
    Warning(String),
}

/// Is called with everything that happens, from within the loop: it should not take long.
#[derive(Clone, Default)]
pub struct Listener(Option<Arc<Tell>>);

type Tell = dyn Fn(&Event) + Send + Sync;

impl Listener {
    /// A listener that calls `tell`.
    pub fn new(tell: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Listener(Some(Arc::new(tell)))
    }

    fn tell(&self, event: &Event) {
        if let Some(tell) = &self.0 {
            tell(event);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// The fate of the pods when the loop ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pods {
    /// They stay as they are.
    Leave,
    /// All of them are taken down first.
    TearDown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    RetryNow,
    CleanNow,
    Stop(Pods),
}

/// Tells a running loop something. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

impl Handle {
    /// Tries pods that failed again now: something has changed.
    pub fn retry_now(&self) {
        let _ = self.commands.send(Command::RetryNow);
    }

    /// Cleans up as soon as no pod is worked on, however long ago the last time was.
    pub fn clean_now(&self) {
        let _ = self.commands.send(Command::CleanNow);
    }

    /// Ends the loop: nothing new is begun, and what has been begun is finished, within [`SyncOptions::stop_limit`].
    pub fn stop(&self, pods: Pods) {
        let _ = self.commands.send(Command::Stop(pods));
    }
}
