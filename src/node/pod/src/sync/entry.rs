use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::{Backoff, jittered};
use super::work::Cause;
use super::worker::{Order, Orders};
use crate::sandbox::SandboxConfig;

/// The loop's knowledge of one pod.
pub(super) struct Entry {
    orders: Orders,
    serial: u64,
    /// Whether the latest order is unfinished.
    pub(super) busy: bool,
    /// The number of busy pods, which all entries share.
    all_busy: Arc<AtomicUsize>,
    /// The wanted configuration. It is `None` for an unwanted pod.
    pub(super) want: Option<Arc<SandboxConfig>>,
    /// Whether the pod is ending: it keeps what it has, and gets nothing new.
    pub(super) ending: bool,
    backoff: Backoff,
    /// The number of failed checks in a row.
    strikes: u32,
    /// The next planned order: when, and why.
    due: Option<(Instant, Cause)>,
}

impl Entry {
    pub(super) fn new(orders: Orders, all_busy: Arc<AtomicUsize>) -> Self {
        Entry {
            orders,
            serial: 0,
            busy: false,
            all_busy,
            want: None,
            ending: false,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
            strikes: 0,
            due: None,
        }
    }

    /// Orders the pod's worker to bring the pod up, or down for `None`. It replaces an order that the worker has not
    /// begun.
    pub(super) fn order(&mut self, want: Option<Arc<SandboxConfig>>, cause: Cause) {
        self.serial += 1;
        if !std::mem::replace(&mut self.busy, true) {
            self.all_busy.fetch_add(1, Ordering::Relaxed);
        }
        self.due = None;
        self.want.clone_from(&want);
        // This cannot fail, because the worker lives as long as the sender.
        let _ = self.orders.send(Some(Order { want, cause, serial: self.serial }));
    }

    /// Sends the planned order if its time has come and the pod is not busy.
    pub(super) fn order_due(&mut self, now: Instant) {
        if let Some((_, cause)) = self.due.take_if(|(at, _)| !self.busy && *at <= now) {
            self.order(self.want.clone(), cause);
        }
    }

    /// Plans the next try of a failed pod for now, because a change may have removed the reason.
    pub(super) fn hurry(&mut self) {
        if self.failures() > 0
            && let Some((at, _)) = &mut self.due
        {
            *at = Instant::now();
        }
    }

    /// Returns whether a finished order was the latest one. If so, the pod is idle from now on.
    pub(super) fn is_latest(&mut self, serial: u64) -> bool {
        let latest = serial == self.serial;
        if latest {
            self.rest();
        }
        latest
    }

    fn rest(&mut self) {
        if std::mem::take(&mut self.busy) {
            self.all_busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records a success, and plans the next check unless the pod is ending.
    pub(super) fn succeeded(&mut self, check: Option<Duration>) {
        self.backoff.reset();
        self.strikes = 0;
        let check = check.filter(|_| !self.ending);
        self.due = check.map(|every| (Instant::now() + jittered(every), Cause::Check(0)));
    }

    /// Records a failure, and plans the next try.
    pub(super) fn failed(&mut self, cause: &Cause) {
        let wait = jittered(self.backoff.fail());
        let again = match cause {
            Cause::Check(_) => {
                self.strikes += 1;
                Cause::Check(self.strikes)
            }
            // The sandbox is still broken, and must be repaired.
            Cause::Lost { .. } => cause.clone(),
            Cause::Config | Cause::Retry | Cause::Ending => Cause::Retry,
        };
        self.due = Some((Instant::now() + wait, again));
    }

    /// Returns the number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.rest();
    }
}
