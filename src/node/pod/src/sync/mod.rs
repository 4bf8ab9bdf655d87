//! The sync loop makes the present pods match the wanted ones, and keeps them so. It waits for the next of:
//! - **a change of the wanted pods** ([`Input`]): the pod's worker gets an order.
//! - **a broken sandbox**, looked for every second: a process, a namespace or an interface is gone.
//! - **the sync tick**, every second: failed pods are tried again after a wait that doubles, others checked at times.
//! - **housekeeping**, every two seconds: unwanted pods are taken down once every source has been read, not before.
//!
//! Each pod has a worker with one order at a time; of those that come meanwhile only the latest counts. A pod that
//! fails or hangs holds up no other pod, up to [`SyncOptions::parallel`] of them. If the list of sandboxes cannot be
//! read, the loop only tries again after 100 ms, doubled up to 5 s.
//! Dropping the loop's future ends running plugins, and the next loop finds their unfinished work.

mod backoff;
mod entry;
mod housekeeping;
mod repair;
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
use super::sandbox::SandboxConfig;

pub use repair::Repair;
pub use report::{Board, Overall, Phase, PodReport};
pub use sandbox_work::SandboxWork;
pub use sync_loop::{Ended, SyncLoop};
pub use work::{Cause, Condition, Up, Work};

/// What the sources report to the loop.
#[derive(Debug)]
pub enum Input {
    /// New or changed pods.
    Want(Vec<SandboxConfig>),
    /// The pods of these names are unwanted, if they (still) have these UIDs.
    Unwant(Vec<(PodId, String)>),
    /// The pods are ending. They keep their network until they are unwanted, and get no other.
    Keep(Vec<SandboxConfig>),
    /// The pods must be taken down completely. [`Event::Gone`] reports when that is done.
    Release(Vec<PodId>),
    /// Every source has been read, so all wanted pods are known.
    SourcesReady,
    /// Every source has been read, or could not be.
    SourcesTried,
}

/// The options of the loop.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// The time between checks of a pod that is up, plus a random part of up to a fifth. `None` checks never.
    pub check: Option<Duration>,
    /// The time between clean-ups of objects without a pod. `None` cleans up never, not even on request.
    pub clean: Option<Duration>,
    /// How many pods are worked on at the same time.
    pub parallel: usize,
    pub listener: Listener,
}

impl Default for SyncOptions {
    /// Checks each minute, cleans up every ten minutes, and works on 16 pods at the same time, without a listener.
    fn default() -> Self {
        SyncOptions {
            check: Some(Duration::from_secs(60)),
            clean: Some(Duration::from_secs(600)),
            parallel: 16,
            listener: Listener::default(),
        }
    }
}

/// What the loop reports.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The state of a pod has changed.
    Pod(PodReport),
    /// An unwanted pod has been taken down.
    Gone(PodId),
    /// Work on a pod has ended.
    Worked {
        id: PodId,
        /// `up`, `check`, `repair` or `down`.
        operation: &'static str,
        took: Duration,
        /// Why it failed, in one word. It is `None` after a success.
        failure: Option<&'static str>,
    },
    /// The loop can do nothing, for this reason. `None` ends that.
    Trouble(Option<String>),
    Warning(String),
}

/// A function that gets the events. The loop waits for it, so it should not take long.
#[derive(Clone, Default)]
pub struct Listener(Option<Arc<Tell>>);

type Tell = dyn Fn(&Event) + Send + Sync;

impl Listener {
    /// Creates a listener from a function. The loop waits for it, so it must not block.
    pub fn new(tell: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Listener(Some(Arc::new(tell)))
    }

    fn notify(&self, event: &Event) {
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
    Leave,
    TearDown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    RetryNow,
    CleanNow,
    Stop(Pods),
}

/// Sends commands to a loop. It is cheap to clone. Commands to a loop that has ended are lost.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

impl Handle {
    /// Tries failed pods again at once, because something has changed.
    pub fn retry_now(&self) {
        let _ = self.commands.send(Command::RetryNow);
    }

    /// Cleans up as soon as no pod is busy, however long ago the last time was. Has no effect with
    /// [`SyncOptions::clean`] off.
    pub fn clean_now(&self) {
        let _ = self.commands.send(Command::CleanNow);
    }

    /// Stops the loop. It waits for running work, or takes all pods down, for at most 30 s. [`Ended`] has the pods that
    /// are then unfinished.
    pub fn stop(&self, pods: Pods) {
        let _ = self.commands.send(Command::Stop(pods));
    }
}
