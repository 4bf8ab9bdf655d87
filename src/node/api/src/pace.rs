//! The pauses before a server is asked again after a failure, as in client-go's reflector.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A list was read.
    Listed,
    /// A watch has ended in the usual way.
    Over,
    /// The server has forgotten the version.
    Gone,
    /// The call failed.
    Failed,
}

/// Pauses that grow while a server fails.
#[derive(Debug, Clone)]
pub struct Pace {
    first: Duration,
    most: Duration,
    wait: Duration,
    /// The begin of the last call that ended with [`End::Gone`].
    gone: Option<Instant>,
}

impl Pace {
    /// Creates a pace whose pause is `first` after the first failure, and doubles with each further one up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Pace { first, most, wait: first, gone: None }
    }

    /// Returns the pause after a call that began at `begun` and ended with `end`, by chance up to twice as long. `None`
    /// is no pause. A success ends the doubling.
    pub fn after(&mut self, begun: Instant, end: End) -> Option<Duration> {
        let failed = match end {
            End::Listed => return None,
            // A watch that repeatedly ends at once is a failure, too.
            End::Over => begun.elapsed() < self.first,
            // A forgotten version is no failure, unless it happens repeatedly.
            End::Gone => self.gone.replace(begun).is_some_and(|last| last.elapsed() < self.most),
            End::Failed => true,
        };
        if !failed {
            self.wait = self.first;
            return None;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(self.most);
        Some(spread(wait))
    }
}

/// Returns a time between `wait` and twice as much, by chance: many nodes lose one server at the same moment, and are
/// not to come back to it at the same moment.
pub fn spread(wait: Duration) -> Duration {
    let chance = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_micros() % 1000;
    wait + wait * chance / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_the_same_length_are_spread() {
        let wait = Duration::from_secs(1);
        let pauses: std::collections::BTreeSet<_> = (0..1000).map(|_| spread(wait)).collect();
        assert!(pauses.len() > 1 && pauses.iter().all(|pause| *pause >= wait && *pause < wait * 2));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_wait_and_success_ends_it() {
        let mut pace = Pace::new(Duration::from_secs(1), Duration::from_secs(3));
        let now = Instant::now();
        for least in [1, 2, 3, 3] {
            let wait = pace.after(now, End::Failed).unwrap();
            let least = Duration::from_secs(least);
            assert!(wait >= least && wait < least * 2, "{wait:?}");
        }
        assert_eq!(pace.after(now, End::Listed), None);
        // A watch that lasted for a while is no failure.
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(pace.after(now, End::Over), None);
        assert!(pace.after(Instant::now(), End::Over).is_some());
        assert_eq!(pace.after(Instant::now(), End::Gone), None);
        assert!(pace.after(Instant::now(), End::Gone).is_some());
    }
}
