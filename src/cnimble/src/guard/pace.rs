//! The times of the guard's looks at the node.

use std::time::{Duration, Instant};

/// The pause after a look without a repair, in multiples of its processor time. It is at most [`LONGEST`], so that a
/// loss is repaired within a second.
const SHARE: u32 = 19;
/// The longest such pause.
const LONGEST: Duration = Duration::from_millis(500);

/// The share of a processor that looks take in the long run is one of so many parts, whatever other programs and pods
/// do.
const PARTS: u32 = 25;
/// The processor time that looks may take at once after a rest.
const CREDIT: Duration = Duration::from_secs(2);

/// The times of the looks that follow a change. An ADD that ran meanwhile may have lost its rules before its result was
/// in the cache.
const AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(20)];

/// The time between two looks without a change. The kernel does not report changes of files and of most sysctls.
const REGULAR: Duration = Duration::from_secs(30);
/// The same time in multiples of a look's processor time, if that is longer. Looks at a large node are so much rarer
/// that they take one percent of a processor.
const REGULAR_SHARE: u32 = 100;

/// The time after the first failure, and the wait for a lock. It doubles with each failure.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time after a failure.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The outcome of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundOutcome {
    /// Nothing was lost.
    Quiet,
    /// Something was lost and repaired, and no repair failed.
    Repaired,
    /// A repair failed, or the node could not be examined.
    Failed,
    /// Another process has locked a network.
    Waiting,
    /// A part of the node is left alone until this time.
    Paused(Instant),
}

/// Decides when the next look begins.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time of the next look, unless one of `later` comes first.
    due: Instant,
    /// The looks that follow the last change.
    later: Vec<Instant>,
    /// The earliest time of the next look, as the last one has to be paid for.
    free: Instant,
    /// The time after the next failure.
    retry: Duration,
    /// The time of the last change, or of the start.
    changed: Instant,
    /// The processor time that looks may take at the time behind it, from which it grows.
    credit: (Duration, Instant),
}

impl Pace {
    /// Requests a look at once.
    pub(super) fn new(now: Instant) -> Self {
        let (free, changed, credit) = (now, now, (CREDIT, now));
        Pace { due: now, later: Vec::new(), free, retry: RETRY, changed, credit }
    }

    /// Records a change, which requests a look as soon as one is allowed.
    pub(super) fn disturbed(&mut self, now: Instant) {
        self.due = self.due.min(now.max(self.free));
        self.later = AFTER.map(|after| now + after).into();
        self.changed = now;
    }

    /// Returns whether a look at this time can be due to the last change.
    pub(super) fn follows_change(&self, now: Instant) -> bool {
        let [.., last] = AFTER;
        now.saturating_duration_since(self.changed) < last + LONGEST_RETRY
    }

    /// Returns the time of the next look.
    fn next(&self) -> Instant {
        self.later.iter().copied().fold(self.due, Instant::min).max(self.free)
    }

    /// Waits for the time of the next look. The future can be dropped, and called for again after each change.
    pub(super) async fn due(&self) {
        tokio::time::sleep_until(self.next().into()).await;
    }

    /// Records a look, and plans the next one. `cost` is the processor time that it took.
    pub(super) fn looked(&mut self, begun: Instant, ended: Instant, cost: Duration, outcome: RoundOutcome) {
        let debt = self.pay(ended, cost);
        let pause = match outcome {
            RoundOutcome::Repaired => Duration::ZERO,
            _ => (cost * SHARE).min(LONGEST),
        };
        self.free = ended + pause.max(debt * PARTS);
        let regular = ended + REGULAR.max(cost * REGULAR_SHARE);
        self.due = match outcome {
            RoundOutcome::Failed => regular.min(ended + self.retry),
            RoundOutcome::Waiting => ended + RETRY,
            RoundOutcome::Paused(end) => regular.min(end),
            RoundOutcome::Quiet | RoundOutcome::Repaired => regular,
        };
        self.later.retain(|later| *later > begun);
        self.retry = match outcome {
            RoundOutcome::Failed => (self.retry * 2).min(LONGEST_RETRY),
            _ => RETRY,
        };
    }

    /// Takes the cost from the credit, and returns the part that the credit does not cover.
    fn pay(&mut self, now: Instant, cost: Duration) -> Duration {
        let (credit, since) = self.credit;
        let credit = (credit + now.saturating_duration_since(since) / PARTS).min(CREDIT);
        let debt = cost.saturating_sub(credit);
        // The pause after this look pays the debt. Its time must not count as credit too, or looks take twice their
        // part.
        self.credit = (credit.saturating_sub(cost), now + debt * PARTS);
        debt
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
        assert_eq!(pace.next(), start);
        pace.looked(start, at(10), 10 * MS, RoundOutcome::Quiet);
        assert_eq!(pace.next(), at(30_010));
        pace.disturbed(at(20));
        assert_eq!(pace.next(), at(200));
        pace.disturbed(at(190));
        assert_eq!(pace.next(), at(200), "a later change does not delay the look");
        pace.looked(at(200), at(1100), 900 * MS, RoundOutcome::Quiet);
        assert_eq!(pace.next(), at(2190));
        pace.disturbed(at(1101));
        assert_eq!(pace.next(), at(1600), "not more than half a second");
        pace.looked(at(1600), at(2000), 400 * MS, RoundOutcome::Repaired);
        pace.disturbed(at(2001));
        assert_eq!(pace.next(), at(2001), "after a repair at once");
        pace.looked(at(2001), at(2100), 99 * MS, RoundOutcome::Repaired);
        assert_eq!(pace.next(), at(4001));
        pace.looked(at(4001), at(4100), 99 * MS, RoundOutcome::Quiet);
        assert_eq!(pace.next(), at(22_001));
        pace.looked(at(22_001), at(22_100), 99 * MS, RoundOutcome::Quiet);
        assert_eq!(pace.next(), at(52_100), "and then at regular times");
        assert!(pace.follows_change(at(52_100)) && !pace.follows_change(at(90_000)));
    }

    #[test]
    fn failures_are_repeated_less_and_less_often() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut waited = |outcome| {
            pace.looked(start, start, Duration::ZERO, outcome);
            (pace.due - start).as_secs()
        };
        let failures: Vec<_> = (0..7).map(|_| waited(RoundOutcome::Failed)).collect();
        assert_eq!(failures, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waited(RoundOutcome::Quiet), 30);
        assert_eq!(waited(RoundOutcome::Failed), 1);
        assert_eq!([waited(RoundOutcome::Waiting), waited(RoundOutcome::Waiting)], [1, 1]);
        assert_eq!(waited(RoundOutcome::Paused(start + Duration::from_secs(600))), 30);
    }

    #[test]
    fn changes_without_end_cost_one_part_of_a_processor() {
        let start = Instant::now();
        let (mut pace, mut now, mut spent) = (Pace::new(start), start, Duration::ZERO);
        while now < start + Duration::from_secs(3600) {
            pace.disturbed(now);
            let begun = pace.next();
            now = begun + 200 * MS;
            spent += 200 * MS;
            let outcome = if spent.as_millis().is_multiple_of(600) {
                RoundOutcome::Quiet
            } else {
                RoundOutcome::Repaired
            };
            pace.looked(begun, now, 200 * MS, outcome);
        }
        // The last look begins within the hour and may end after it.
        assert!(spent <= Duration::from_secs(3600) / PARTS + CREDIT + 200 * MS, "{spent:?}");
        assert!(spent >= Duration::from_secs(3600) / PARTS / 2, "{spent:?}");
    }
}
