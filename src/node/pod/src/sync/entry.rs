use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::{Backoff, jittered};
use super::work::Cause;
use super::worker::{Order, Orders};
use crate::sandbox::SandboxConfig;

pub(super) struct Entry {
    orders: Orders,
    serial: u64,
    /// The latest order is unfinished.
    pub(super) busy: bool,
    all_busy: Arc<AtomicUsize>,
    pub(super) want: Option<Arc<SandboxConfig>>,
    /// The pod keeps what it has, and gets nothing new.
    pub(super) ending: bool,
    backoff: Backoff,
    strikes: u32,
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

    pub(super) fn order(&mut self, want: Option<Arc<SandboxConfig>>, cause: Cause) {
        self.serial += 1;
        if !std::mem::replace(&mut self.busy, true) {
            self.all_busy.fetch_add(1, Ordering::Relaxed);
        }
        self.due = None;
        self.want.clone_from(&want);
        // The worker lives as long as the sender.
        let _ = self.orders.send(Some(Order { want, cause, serial: self.serial }));
    }

    pub(super) fn order_due(&mut self, now: Instant) {
        if let Some((_, cause)) = self.due.take_if(|(at, _)| !self.busy && *at <= now) {
            self.order(self.want.clone(), cause);
        }
    }

    /// A change may have mended a failed pod.
    pub(super) fn hurry(&mut self) {
        if self.failures() > 0
            && let Some((at, _)) = &mut self.due
        {
            *at = Instant::now();
        }
    }

    /// Whether a finished order was the latest; then the pod is idle.
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

    /// Plans no check if the pod is ending.
    pub(super) fn succeeded(&mut self, check: Option<Duration>) {
        self.backoff.reset();
        self.strikes = 0;
        let check = check.filter(|_| !self.ending);
        self.due = check.map(|every| (Instant::now() + jittered(every), Cause::Check(0)));
    }

    pub(super) fn failed(&mut self, cause: &Cause) {
        let wait = jittered(self.backoff.fail());
        let again = match cause {
            Cause::Check(_) => {
                self.strikes += 1;
                Cause::Check(self.strikes)
            }
            // A broken sandbox is still to be repaired.
            Cause::Lost { .. } => cause.clone(),
            Cause::Config | Cause::Retry | Cause::Ending => Cause::Retry,
        };
        self.due = Some((Instant::now() + wait, again));
    }

    pub(super) fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.rest();
    }
}
