//! Programs that remove again and again what the guard puts back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// As many repairs of a network in a row are a fight, each within [`GAP`] of the one before.
const REPAIRS: u32 = 20;
const GAP: Duration = Duration::from_secs(10);

/// A network in a fight is left alone for this time.
pub(super) const PAUSE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Fights {
    /// The last repair of each network, and the length of its row.
    repairs: BTreeMap<String, (Instant, u32)>,
    /// The ends of the pauses.
    paused: BTreeMap<String, Instant>,
}

impl Fights {
    /// Notes a repair. Returns whether it is one too many, and the network's pause begins.
    pub(super) fn repaired(&mut self, network: &str, now: Instant) -> bool {
        let (last, row) = self.repairs.entry(network.to_owned()).or_insert((now, 0));
        *row = if now.saturating_duration_since(*last) < GAP { *row + 1 } else { 1 };
        *last = now;
        let is_fight = *row >= REPAIRS;
        if is_fight {
            self.repairs.remove(network);
            self.paused.insert(network.to_owned(), now + PAUSE);
        }
        is_fight
    }

    pub(super) fn is_paused(&self, network: &str, now: Instant) -> bool {
        self.paused.get(network).is_some_and(|end| *end > now)
    }

    /// Returns the end of the first pause.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        self.paused.retain(|_, end| *end > now);
        self.paused.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_pauses_one_network_for_a_time() {
        let (start, mut fights) = (Instant::now(), Fights::default());
        let at = |second| start + Duration::from_secs(second);
        for second in (0..19).chain(30..49) {
            assert!(!fights.repaired("one", at(second)));
        }
        assert!(!fights.repaired("two", at(49)) && fights.repaired("one", at(49)));
        let end = at(49) + PAUSE;
        assert!(fights.is_paused("one", at(50)) && !fights.is_paused("two", at(50)));
        assert_eq!(fights.next(at(50)), Some(end));
        assert!(!fights.is_paused("one", end));
        assert_eq!(fights.next(end), None);
    }
}
