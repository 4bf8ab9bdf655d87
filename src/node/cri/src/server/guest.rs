//! How long connections are idle, which decides which one makes room for another.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::server::{FIRST_CALL, IDLE};

/// A connection, as its task and the server see it.
#[derive(Debug)]
pub(crate) struct Guest {
    calls: Mutex<Calls>,
    /// Whether the connection has been asked to end.
    leaving: watch::Sender<bool>,
    /// Notified at the end of each call.
    freed: Arc<Notify>,
}

#[derive(Debug)]
struct Calls {
    /// How many calls are running.
    under_way: usize,
    /// Whether there was ever a call.
    any: bool,
    /// The time at which a call began or ended last. Before the first call it is the time of the connection.
    last: Instant,
}

/// A running call, which ends on drop.
pub(crate) struct Call(Arc<Guest>);

impl Guest {
    /// Creates the state of a new connection, which has had no call.
    pub(crate) fn new(freed: Arc<Notify>) -> Arc<Self> {
        let calls = Calls { under_way: 0, any: false, last: Instant::now() };
        Arc::new(Guest { calls: Mutex::new(calls), leaving: watch::Sender::new(false), freed })
    }

    fn change<T>(&self, with: impl FnOnce(&mut Calls) -> T) -> T {
        with(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a call, which ends when the returned value is dropped.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        self.change(|calls| {
            *calls = Calls { under_way: calls.under_way + 1, any: true, last: Instant::now() }
        });
        Call(Arc::clone(self))
    }

    /// Returns since when the connection has been without a call. It returns `None` while one is running.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.change(|calls| (calls.under_way == 0).then_some(calls.last))
    }

    /// Returns whether there was ever a call.
    pub(crate) fn has_called(&self) -> bool {
        self.change(|calls| calls.any)
    }

    /// Asks the connection to end. Running calls are answered before.
    pub(crate) fn dismiss(&self) {
        self.leaving.send_replace(true);
    }

    /// Returns whether the connection was asked to end.
    pub(crate) fn is_dismissed(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Waits until the connection is asked to end, or has been without a call for too long: for seconds before the
    /// first call, and for minutes after it.
    pub(crate) async fn over(&self) {
        let mut leaving = self.leaving.subscribe();
        loop {
            let limit = if self.has_called() { IDLE } else { FIRST_CALL };
            // A running call has a limit of its own, so the wait begins again.
            let end = self.idle_since().map_or_else(|| Instant::now() + limit, |since| since + limit);
            if end <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(end) => {}
                _ = leaving.wait_for(|leaving| *leaving) => return,
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.change(|calls| {
            calls.under_way = calls.under_way.saturating_sub(1);
            calls.last = Instant::now();
        });
        self.0.freed.notify_one();
    }
}

/// Returns the connection that has been without a call for longest. It returns `None` if all have calls.
pub(crate) fn idlest(guests: &[Arc<Guest>]) -> Option<&Arc<Guest>> {
    guests
        .iter()
        .filter_map(|guest| Some((guest.idle_since()?, guest)))
        .min_by_key(|(since, _)| *since)
        .map(|(_, guest)| guest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection_and_a_call_does_not() {
        let guest = Guest::new(Arc::default());
        let begun = Instant::now();
        guest.over().await;
        assert_eq!(begun.elapsed(), FIRST_CALL);
        let call = guest.call();
        let (other, begun) = (Arc::clone(&guest), Instant::now());
        let over = tokio::spawn(async move { other.over().await });
        tokio::time::sleep(IDLE * 3).await;
        assert!(!over.is_finished() && guest.idle_since().is_none());
        drop(call);
        over.await.unwrap();
        assert!(begun.elapsed() >= IDLE * 4, "{:?}", begun.elapsed());
        guest.dismiss();
        guest.over().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_idlest_is_the_one_whose_last_call_is_longest_ago() {
        let mut guests = Vec::new();
        for _ in 0..3 {
            guests.push(Guest::new(Arc::default()));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(Arc::ptr_eq(idlest(&guests).unwrap(), &guests[0]));
        drop(guests[0].call());
        let call = guests[1].call();
        assert!(Arc::ptr_eq(idlest(&guests).unwrap(), &guests[2]));
        let calls = [guests[0].call(), guests[2].call(), call];
        assert!(idlest(&guests).is_none());
        drop(calls);
    }
}
