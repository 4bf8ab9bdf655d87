//! The loop's state of one pod.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::{Backoff, BackoffOptions, jittered};
use super::work::Cause;
use super::worker::{Order, Orders};

/// One pod of the loop.
pub(super) struct Entry<P> {
    orders: Orders<P>,
    serial: u64,
    /// Whether the latest order has not been finished.
    pub(super) busy: bool,
    /// How many entries are busy, of all.
    all_busy: Arc<AtomicUsize>,
    pub(super) want: Option<Arc<P>>,
    /// Whether it is to be gone soon: it keeps what it has, and gets nothing new.
    pub(super) ending: bool,
    backoff: Backoff,
    /// Checks in a row that failed.
    strikes: u32,
    /// When it is to be looked at next, and why.
    due: Option<(Instant, Cause)>,
}

impl<P> Entry<P> {
    pub(super) fn new(orders: Orders<P>, retry: BackoffOptions, all_busy: Arc<AtomicUsize>) -> Self {
        Entry {
            orders,
            serial: 0,
            busy: false,
            all_busy,
            want: None,
            ending: false,
            backoff: Backoff::new(retry),
            strikes: 0,
            due: None,
        }
    }

    /// Hands out an order, in place of one that was not begun yet.
    pub(super) fn order(&mut self, want: Option<Arc<P>>, cause: Cause) {
        self.serial += 1;
        if !std::mem::replace(&mut self.busy, true) {
            self.all_busy.fetch_add(1, Ordering::Relaxed);
        }
        self.due = None;
        self.want.clone_from(&want);
        // The worker lives as long as the sender does.
        let _ = self.orders.send(Some(Order { want, cause, serial: self.serial }));
    }

    /// Hands out what is due; whether something was.
    pub(super) fn order_due(&mut self, now: Instant) {
        if let Some((_, cause)) = self.due.take_if(|(at, _)| !self.busy && *at <= now) {
            self.order(self.want.clone(), cause);
        }
    }

    /// Looks at a pod that failed now rather than later: something has changed.
    pub(super) fn hurry(&mut self) {
        if self.failures() > 0
            && let Some((at, _)) = &mut self.due
        {
            *at = Instant::now();
        }
    }

    /// Whether a finished order was the latest; then nothing is in work any more.
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

    /// It worked: it will be checked in time, unless it is gone by then.
    pub(super) fn succeeded(&mut self, check: Option<Duration>) {
        self.backoff.reset();
        self.strikes = 0;
        let check = check.filter(|_| !self.ending);
        self.due = check.map(|every| (Instant::now() + jittered(every), Cause::Check(0)));
    }

    /// It failed: it is tried again in a while.
    pub(super) fn failed(&mut self, cause: &Cause) {
        let wait = jittered(self.backoff.fail());
        let again = match cause {
            Cause::Check(_) => {
                self.strikes += 1;
                Cause::Check(self.strikes)
            }
            // What broke is still to be repaired.
            Cause::Lost { .. } => cause.clone(),
            Cause::Config | Cause::Retry | Cause::Ending => Cause::Retry,
        };
        self.due = Some((Instant::now() + wait, again));
    }

    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

impl<P> Drop for Entry<P> {
    fn drop(&mut self) {
        self.rest();
    }
}
