use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How long to wait after failures in a row.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    first: Duration,
    /// The longest wait. Every failure doubles the wait up to this.
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff that waits `first` after the first failure, and at most `most`.
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Backoff { first, most, failures: 0 }
    }

    /// Counts a failure, and returns how long to wait after it.
    pub(super) fn fail(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(factor).min(self.most)
    }

    /// Forgets the failures, as after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

/// Adds a random part of up to a fifth, so that pods that fail together are not tried together again.
pub(super) fn jittered(wait: Duration) -> Duration {
    let share = RandomState::new().hash_one(0) % 1024;
    wait + wait.mul_f64(0.2 * share as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        let (first, most) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut backoff = Backoff::new(first, most);
        let waits: Vec<u128> = (0..8).map(|_| backoff.fail().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for _ in 0..100 {
            backoff.fail();
        }
        assert_eq!(backoff.fail(), most);
        backoff.reset();
        assert_eq!(backoff.fail(), first);
    }

    #[test]
    fn jitter_is_a_fifth_at_most() {
        let wait = Duration::from_secs(10);
        for _ in 0..100 {
            let jittered = jittered(wait);
            assert!(jittered >= wait && jittered <= Duration::from_secs(12), "{jittered:?}");
        }
    }
}
