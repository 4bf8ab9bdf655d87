//! How long to wait before a server is asked again, as client-go's reflector does it.

use std::time::Duration;

use tokio::time::Instant;

/// How a list or a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All was listed.
    Listed,
    /// A watch's time was over.
    Over,
    /// The server has forgotten the version.
    Gone,
    /// It failed.
    Failed,
}

/// Waits longer and longer while a server fails.
#[derive(Debug, Clone)]
pub struct Pace {
    first: Duration,
    most: Duration,
    wait: Duration,
    gone: Option<Instant>,
}

impl Pace {
    /// `first` after the first failure, doubled each time up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Pace { first, most, wait: first, gone: None }
    }

    /// How long to wait after what began at `begun` and ended so; `None`: go on at once.
    pub fn after(&mut self, begun: Instant, end: End) -> Option<Duration> {
        let failed = match end {
            End::Listed => return None,
            // A watch that ends at once, again and again, is a failure, too.
            End::Over => begun.elapsed() < self.first,
            // To have forgotten is none, unless it happens again and again.
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
        // A watch that lasted was none.
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(pace.after(now, End::Over), None);
        assert_eq!(pace.after(Instant::now(), End::Over), Some(Duration::from_secs(1)));
        assert_eq!(pace.after(Instant::now(), End::Gone), None);
        assert_eq!(pace.after(Instant::now(), End::Gone), Some(Duration::from_secs(1)));
    }
}
