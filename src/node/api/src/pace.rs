//! The pauses before a server is asked again after a failure, as in client-go's reflector.

use std::time::Duration;

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

    /// Returns the pause after a call that began at `begun` and ended with `end`. `None` is no pause. A success ends
    /// the doubling.
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
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_wait_and_success_ends_it() {
        let mut pace = Pace::new(Duration::from_secs(1), Duration::from_secs(3));
        let now = Instant::now();
        let waits: Vec<_> = (0..3).map(|_| pace.after(now, End::Failed).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(1), Some(2), Some(3)]);
        assert_eq!(pace.after(now, End::Listed), None);
        // A watch that lasted for a while is no failure.
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(pace.after(now, End::Over), None);
        assert_eq!(pace.after(Instant::now(), End::Over), Some(Duration::from_secs(1)));
        assert_eq!(pace.after(Instant::now(), End::Gone), None);
        assert_eq!(pace.after(Instant::now(), End::Gone), Some(Duration::from_secs(1)));
    }
}
