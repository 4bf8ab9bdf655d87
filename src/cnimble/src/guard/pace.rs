//! The times of the guard's looks at the node.

use std::time::{Duration, Instant};

/// The share of the time that looks may take while other programs change rules all the time: 1 of 20, as long as a loss
/// is repaired within a second.
const SHARE: u32 = 19;
const LONGEST: Duration = Duration::from_millis(500);

/// The looks that follow a change. An ADD that ran meanwhile has lost its rules before its result was in the cache.
const AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(20)];

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
    later: Vec<Instant>,
    /// The earliest time of the next look.
    free: Instant,
    retry: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { due: Some(now), later: Vec::new(), free: now, retry: RETRY }
    }

    pub(super) fn disturbed(&mut self, now: Instant) {
        let next = now.max(self.free);
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
        self.later = AFTER.map(|after| now + after).into();
    }

    fn next(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.later.iter().copied()).min()
    }

    /// Waits for the time of the next look. It can be dropped.
    pub(super) async fn due(&self) {
        match self.next() {
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
        self.later.retain(|later| *later > begun);
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
    fn looks_follow_changes_at_once_and_twice_later() {
        let start = Instant::now();
        let at = |ms| start + ms * MS;
        let mut pace = Pace::new(start);
        assert_eq!(pace.next(), Some(start));
        pace.looked(start, at(10), Outcome::Quiet);
        assert_eq!(pace.next(), None);
        pace.disturbed(at(20));
        assert_eq!(pace.next(), Some(at(200)));
        pace.disturbed(at(190));
        assert_eq!(pace.next(), Some(at(200)), "a later change does not delay the look");
        pace.looked(at(200), at(1100), Outcome::Quiet);
        assert_eq!(pace.next(), Some(at(2190)));
        pace.disturbed(at(1101));
        assert_eq!(pace.next(), Some(at(1600)), "not more than half a second");
        pace.looked(at(1600), at(2000), Outcome::Repaired);
        pace.disturbed(at(2001));
        assert_eq!(pace.next(), Some(at(2001)), "after a repair at once");
        pace.looked(at(2001), at(2100), Outcome::Repaired);
        assert_eq!(pace.next(), Some(at(4001)));
        pace.looked(at(4001), at(4100), Outcome::Quiet);
        assert_eq!(pace.next(), Some(at(22_001)));
        pace.looked(at(22_001), at(22_100), Outcome::Quiet);
        assert_eq!(pace.next(), None);
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
