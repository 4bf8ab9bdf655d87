//! The times of the guard's looks at the node.

use std::time::{Duration, Instant};

/// The share of the time that looks may take while other programs change rules all the time: 1 of 20, as long as a loss
/// is repaired within a second.
const SHARE: u32 = 19;
const LONGEST: Duration = Duration::from_millis(500);

const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing was lost.
    Quiet,
    Repaired,
    Failed,
    /// A part of the node is left alone until this time.
    Paused(Instant),
}

/// Without a change and a failure there is no look, and no timer.
#[derive(Debug)]
pub(super) struct Pace {
    due: Option<Instant>,
    /// The earliest time of the next look.
    free: Instant,
    retry: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { due: Some(now), free: now, retry: RETRY }
    }

    pub(super) fn disturbed(&mut self, now: Instant) {
        let next = now.max(self.free);
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
    }

    /// Waits for the time of the next look. It can be dropped.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn looked(&mut self, begun: Instant, ended: Instant, outcome: Outcome) {
        self.free = match outcome {
            Outcome::Repaired => ended,
            _ => ended + (ended.saturating_duration_since(begun) * SHARE).min(LONGEST),
        };
        self.due = match outcome {
            Outcome::Failed => Some(ended + self.retry),
            Outcome::Paused(end) => Some(end),
            Outcome::Quiet | Outcome::Repaired => None,
        };
        self.retry = match outcome {
            Outcome::Failed => (self.retry * 2).min(LONGEST_RETRY),
            _ => RETRY,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn looks_follow_changes_and_failures_only() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.due, Some(start));
        pace.looked(start, start + 10 * MS, Outcome::Quiet);
        assert_eq!(pace.due, None);
        pace.disturbed(start + 20 * MS);
        assert_eq!(pace.due, Some(start + 200 * MS));
        pace.disturbed(start + 300 * MS);
        assert_eq!(pace.due, Some(start + 200 * MS), "a later change does not delay the look");
        pace.looked(start, start + 900 * MS, Outcome::Quiet);
        pace.disturbed(start + 901 * MS);
        assert_eq!(pace.due, Some(start + 1400 * MS), "not more than half a second");
        pace.looked(start, start + 2000 * MS, Outcome::Repaired);
        pace.disturbed(start + 2001 * MS);
        assert_eq!(pace.due, Some(start + 2001 * MS), "after a repair at once");
    }

    #[test]
    fn failures_are_repeated_less_and_less_often() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut waited = |outcome| {
            pace.looked(start, start, outcome);
            pace.due.map(|due| (due - start).as_secs())
        };
        let failures: Vec<_> = (0..8).map(|_| waited(Outcome::Failed)).collect();
        assert_eq!(failures, [1, 2, 4, 8, 16, 32, 60, 60].map(Some));
        assert_eq!(waited(Outcome::Quiet), None);
        assert_eq!(waited(Outcome::Failed), Some(1));
        assert_eq!(waited(Outcome::Paused(start + Duration::from_secs(600))), Some(600));
    }
}
