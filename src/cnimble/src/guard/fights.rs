//! Objects that another program, or a pod, changes again and again after the guard has restored them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of repairs of an object in a row that count as a fight, each within [`GAP`] of the one before.
const REPAIRS: u32 = 20;
/// The longest time between two repairs of a row.
const GAP: Duration = Duration::from_secs(10);

/// The time for which an object in a fight is left alone.
pub(super) const PAUSE: Duration = Duration::from_secs(600);

/// Counts the repairs of objects `O`. An object belongs to one attachment, so that no pod costs another its repairs.
#[derive(Debug)]
pub(super) struct Fights<O> {
    /// The time of the last repair of each object, and the number of repairs in its row.
    repairs: BTreeMap<O, (Instant, u32)>,
    /// The ends of the pauses.
    paused: BTreeMap<O, Instant>,
}

impl<O> Default for Fights<O> {
    fn default() -> Self {
        Fights { repairs: BTreeMap::new(), paused: BTreeMap::new() }
    }
}

impl<O: Ord + Clone> Fights<O> {
    /// Counts a repair. Returns true if the row is now a fight. Then the object's pause begins, and its row starts
    /// anew.
    pub(super) fn repaired(&mut self, object: O, now: Instant) -> bool {
        let (last, row) = self.repairs.entry(object.clone()).or_insert((now, 0));
        *row = if now.saturating_duration_since(*last) < GAP { *row + 1 } else { 1 };
        *last = now;
        let is_fight = *row >= REPAIRS;
        if is_fight {
            self.repairs.remove(&object);
            self.paused.insert(object, now + PAUSE);
        }
        is_fight
    }

    /// Returns whether the object is to be left alone.
    pub(super) fn is_paused(&self, object: &O, now: Instant) -> bool {
        self.paused.get(object).is_some_and(|end| *end > now)
    }

    /// Returns the end of the first pause, or `None` if there is none. It forgets rows and pauses that are over.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        self.repairs.retain(|_, (last, _)| now.saturating_duration_since(*last) < GAP);
        self.paused.retain(|_, end| *end > now);
        self.paused.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_pauses_one_object_for_a_time() {
        let (start, mut fights) = (Instant::now(), Fights::default());
        let at = |second| start + Duration::from_secs(second);
        for second in (0..19).chain(30..49) {
            assert!(!fights.repaired("one", at(second)));
        }
        assert!(!fights.repaired("two", at(49)) && fights.repaired("one", at(49)));
        let end = at(49) + PAUSE;
        assert!(fights.is_paused(&"one", at(50)) && !fights.is_paused(&"two", at(50)));
        assert_eq!(fights.next(at(50)), Some(end));
        assert!(!fights.is_paused(&"one", end));
        assert_eq!(fights.next(end), None);
    }

    #[test]
    fn objects_without_a_fight_are_forgotten() {
        let (start, mut fights) = (Instant::now(), Fights::default());
        for object in 0..1000 {
            fights.repaired(object, start);
        }
        assert_eq!((fights.next(start), fights.repairs.len()), (None, 1000));
        assert_eq!((fights.next(start + GAP), fights.repairs.len()), (None, 0));
    }
}
