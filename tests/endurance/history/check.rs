//! The checker, which reads a log and reports violations.

use std::collections::{BTreeMap, BTreeSet};

use super::log::{Event, Facts, Meaning, Moment, Outcome};

/// The time in which an attachment must keep its result.
#[derive(Debug)]
struct Life<'e> {
    who: &'e str,
    told: &'e Facts,
    from: Moment,
    /// The start of its DEL.
    to: Moment,
}

/// An operation that has not ended.
struct Open<'e> {
    meaning: Meaning,
    who: &'e str,
    what: &'e str,
}

/// Returns the violations in a log.
pub(crate) fn findings(events: &[Event]) -> Vec<String> {
    let (lives, mut wrong) = lives(events);
    wrong.extend(lost(events, &lives));
    wrong.extend(shared(&lives));
    wrong
}

/// Returns the lives of all ADDs that succeeded, and the failures of operations without a kill.
fn lives(events: &[Event]) -> (Vec<Life<'_>>, Vec<String>) {
    let mut open = BTreeMap::new();
    let mut ended: BTreeMap<&str, Moment> = BTreeMap::new();
    let mut lives: Vec<Life<'_>> = Vec::new();
    let mut wrong = Vec::new();
    for event in events {
        match event {
            Event::Begin { op, at, meaning, who, what, .. } => {
                open.insert(*op, Open { meaning: *meaning, who, what });
                if *meaning == Meaning::Ends && ended.insert(who, *at).is_none() {
                    lives.iter_mut().filter(|life| life.who == who).for_each(|life| life.to = *at);
                }
            }
            Event::End { op, at, outcome, told } => {
                let Some(Open { meaning, who, what }) = open.remove(op) else {
                    wrong.push(format!("{at}: operation {op} ends and has not begun"));
                    continue;
                };
                match outcome {
                    // An attachment with an earlier DEL has nothing to lose.
                    Outcome::Done if meaning == Meaning::Adds && !ended.contains_key(who) => {
                        lives.push(Life { who, told, from: *at, to: Moment::MAX });
                    }
                    Outcome::Failed(why) => wrong.push(format!("{at}: {what} of {who} failed: {why}")),
                    Outcome::Done | Outcome::Killed(_) | Outcome::Theirs(_) => {}
                }
            }
            Event::Look { .. } => {}
        }
    }
    (lives, wrong)
}

/// Returns the living attachments that lacked something at a look, with the first such look.
fn lost(events: &[Event], lives: &[Life<'_>]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&Life<'_>>> = BTreeMap::new();
    for life in lives {
        by_name.entry(life.who).or_default().push(life);
    }
    let mut told_of = BTreeSet::new();
    let mut wrong = Vec::new();
    for event in events {
        let Event::Look { from, to, who, seen } = event else { continue };
        for life in by_name.get(who.as_str()).into_iter().flatten() {
            if *from < life.from || *to > life.to {
                continue;
            }
            let missing: Vec<&String> = life.told.difference(seen).collect();
            if !missing.is_empty() && told_of.insert(who) {
                wrong.push(format!("{who} was added at {} and had lost {missing:?} at {to}", life.from));
            }
        }
    }
    wrong
}

/// Returns the addresses that two attachments had at the same time.
fn shared(lives: &[Life<'_>]) -> Vec<String> {
    let mut owners: BTreeMap<&str, Vec<&Life<'_>>> = BTreeMap::new();
    for life in lives {
        for address in life.told.iter().filter_map(|fact| fact.strip_prefix("lease ")) {
            owners.entry(address).or_default().push(life);
        }
    }
    let mut wrong = Vec::new();
    for (address, mut lives) in owners {
        lives.sort_by_key(|life| life.from);
        // Only neighbours are compared. If three attachments share an address, two pairs are reported.
        for pair in lives.windows(2) {
            if let [one, two] = pair
                && two.from < one.to
            {
                let at = two.from;
                wrong.push(format!("{address} has two living owners at {at}: {} and {}", one.who, two.who));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log written by a test, with a clock that advances at each event.
    #[derive(Default)]
    struct Hand(Vec<Event>, Moment, usize);

    impl Hand {
        fn at(&mut self) -> Moment {
            self.1 += 10;
            self.1
        }

        fn begin(&mut self, meaning: Meaning, who: &str) -> usize {
            let (op, at) = (self.2, self.at());
            self.2 += 1;
            let what = format!("{meaning:?}");
            self.0.push(Event::Begin { op, at, meaning, who: who.into(), actor: "w".into(), what });
            op
        }

        fn end(&mut self, op: usize, outcome: Outcome, told: &[&str]) {
            let at = self.at();
            self.0.push(Event::End { op, at, outcome, told: facts(told) });
        }

        fn add(&mut self, who: &str, told: &[&str]) {
            let op = self.begin(Meaning::Adds, who);
            self.end(op, Outcome::Done, told);
        }

        fn del(&mut self, who: &str) {
            let op = self.begin(Meaning::Ends, who);
            self.end(op, Outcome::Done, &[]);
        }

        fn look(&mut self, who: &str, seen: &[&str]) {
            let (from, to) = (self.at(), self.at());
            self.0.push(Event::Look { from, to, who: who.into(), seen: facts(seen) });
        }

        #[track_caller]
        fn finds(&self, wanted: &[&str]) {
            let found = findings(&self.0);
            assert_eq!(found.len(), wanted.len(), "{found:#?}");
            for (found, wanted) in found.iter().zip(wanted) {
                assert!(found.contains(wanted), "{found}: {wanted} expected");
            }
        }
    }

    fn facts(lines: &[&str]) -> Facts {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    const WHOLE: &[&str] = &["address 10.0.0.2/24", "lease 10.0.0.2", "masquerade 10.0.0.2"];

    #[test]
    fn a_life_without_a_loss_is_no_finding() {
        let mut log = Hand::default();
        log.add("a", WHOLE);
        log.look("a", WHOLE);
        log.del("a");
        log.look("a", &[]);
        log.add("b", WHOLE);
        log.look("b", WHOLE);
        log.finds(&[]);
    }

    #[test]
    fn a_lost_lease_is_found_once_for_each_attachment() {
        let mut log = Hand::default();
        log.add("a", WHOLE);
        log.add("b", &["address 10.0.0.3/24", "lease 10.0.0.3"]);
        log.look("a", WHOLE);
        log.look("a", &[WHOLE[0], WHOLE[2]]);
        log.look("a", &[WHOLE[0], WHOLE[2]]);
        log.look("b", &["lease 10.0.0.3"]);
        log.finds(&[
            "a was added at 20 and had lost [\"lease 10.0.0.2\"]",
            "b was added at 40 and had lost [\"address 10.0.0.3/24\"]",
        ]);
    }

    #[test]
    fn what_comes_back_was_lost_all_the_same() {
        let mut log = Hand::default();
        log.add("a", WHOLE);
        log.look("a", &WHOLE[..2]);
        log.look("a", WHOLE);
        log.finds(&["had lost [\"masquerade 10.0.0.2\"]"]);
    }

    #[test]
    fn a_look_counts_only_if_the_attachment_lived_all_the_while() {
        let mut log = Hand::default();
        let add = log.begin(Meaning::Adds, "a");
        let early = log.at();
        log.end(add, Outcome::Done, WHOLE);
        let to = log.at();
        log.0.push(Event::Look { from: early, to, who: "a".into(), seen: Facts::new() });
        let late = log.at();
        let del = log.begin(Meaning::Ends, "a");
        let to = log.at();
        log.0.push(Event::Look { from: late, to, who: "a".into(), seen: Facts::new() });
        log.end(del, Outcome::Done, &[]);
        log.finds(&[]);
    }

    #[test]
    fn an_add_whose_del_began_before_its_end_has_nothing_to_lose() {
        let mut log = Hand::default();
        let add = log.begin(Meaning::Adds, "a");
        log.del("a");
        log.end(add, Outcome::Done, WHOLE);
        log.look("a", &[]);
        log.add("b", WHOLE);
        log.finds(&[]);
    }

    #[test]
    fn an_add_that_was_killed_owns_nothing_and_is_no_failure() {
        let mut log = Hand::default();
        let add = log.begin(Meaning::Adds, "a");
        log.end(add, Outcome::Killed("plugin".into()), &[]);
        log.look("a", &[]);
        log.add("b", WHOLE);
        log.finds(&[]);
    }

    #[test]
    fn two_living_owners_of_an_address_are_found() {
        let mut log = Hand::default();
        log.add("a", WHOLE);
        log.add("b", &["lease 10.0.0.2"]);
        log.del("a");
        log.finds(&["10.0.0.2 has two living owners at 40: a and b"]);
    }

    #[test]
    fn an_address_may_be_given_again_when_a_del_has_begun() {
        let mut log = Hand::default();
        log.add("a", WHOLE);
        let del = log.begin(Meaning::Ends, "a");
        log.add("b", WHOLE);
        log.end(del, Outcome::Killed("plugin".into()), &[]);
        log.finds(&[]);
    }

    #[test]
    fn what_fails_though_it_was_not_killed_is_a_finding() {
        let mut log = Hand::default();
        let gc = log.begin(Meaning::Other, "");
        log.end(gc, Outcome::Failed("status 7".into()), &[]);
        log.finds(&["Other of  failed: status 7"]);
    }
}
