//! Pauses between repeated messages (RFC 8415, section 15).

/// The pauses of one kind of message (RFC 8415, section 7.6), in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// IRT, the first pause.
    pub(super) first: u64,
    /// MRT, the longest pause. 0 means no limit.
    pub(super) longest: u64,
    /// MRC, the number of transmissions. 0 means no limit.
    pub(super) most: u32,
}

pub(super) const SOLICIT: Pace = Pace { first: 1000, longest: 3_600_000, most: 0 };
pub(super) const REQUEST: Pace = Pace { first: 1000, longest: 30_000, most: 10 };
/// This pace is also that of Rebind.
pub(super) const RENEW: Pace = Pace { first: 10_000, longest: 600_000, most: 0 };
/// This pace is also that of Release.
pub(super) const DECLINE: Pace = Pace { first: 1000, longest: 0, most: 4 };

/// The pauses of an exchange so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pauses {
    /// RT, the last pause in milliseconds.
    last: u64,
    /// How often the message was sent.
    pub(super) sent: u32,
}

impl Pauses {
    /// Returns the pause after the next transmission, in milliseconds, and counts that transmission. `random` is any
    /// number.
    pub(super) fn next(&mut self, pace: Pace, random: u32) -> u64 {
        let pause = match self.sent {
            // The first pause is never shorter than IRT, so that all servers have that time (section 18.2.1).
            0 => pace.first + u64::from(random) % (pace.first / 10).max(1),
            _ => self.last.saturating_add(vary(self.last, random)),
        };
        self.sent = self.sent.saturating_add(1);
        self.last = if pace.longest > 0 && pause > pace.longest { vary(pace.longest, random) } else { pause };
        self.last
    }

    /// Returns true if the message was sent as often as MRC allows.
    pub(super) fn is_over(&self, pace: Pace) -> bool {
        pace.most > 0 && self.sent >= pace.most
    }
}

/// Returns a pause that is up to a tenth longer or shorter.
fn vary(pause: u64, random: u32) -> u64 {
    pause - pause / 10 + u64::from(random) % (pause / 5).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for random in [0, 1, 99, 12_345, u32::MAX] {
            let pace = Pace { longest: 8000, ..SOLICIT };
            let mut pauses = Pauses::default();
            let all: Vec<u64> = (0..6).map(|_| pauses.next(pace, random)).collect();
            assert!((1000..=1100).contains(&all[0]), "{all:?}");
            for two in all.windows(2) {
                let (least, most) = ((two[0] * 19 / 10).min(7200), (two[0] * 21 / 10).min(8800));
                assert!((least..=most).contains(&two[1]), "{all:?}");
            }
            assert!(!pauses.is_over(pace));
        }
        let mut pauses = Pauses::default();
        for n in 0..4 {
            assert!(!pauses.is_over(DECLINE), "{n}");
            pauses.next(DECLINE, 0);
        }
        assert!(pauses.is_over(DECLINE));
    }
}
