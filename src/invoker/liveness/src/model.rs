//! Every interleaving of ADDs and a clean-up, for one attachment: docs/RELIABILITY.md's claims, and which of its rules
//! each of them needs. A thing is absent, stale (its pod is gone) or new. The clean-up judges by the link: a stale
//! attachment has none. Nothing here is young, and no namespace has the address.

use std::collections::HashSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Thing {
    Link,
    Lease,
    Rule,
    Entry,
}

use Thing::{Entry, Lease, Link, Rule};

const ALL: [Thing; 4] = [Link, Lease, Rule, Entry];
const ABSENT: u8 = 0;
const STALE: u8 = 1;
const NEW: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Lock,
    Unlock,
    Make(Thing),
    Unmake(Thing),
    Added,
    List,
    /// Looks for a link as evidence.
    Observe,
    /// Finds a listed object without an observed link.
    Find,
    /// Checks the same object a second time.
    FindAgain,
    Remove(Thing),
    /// GC removes objects without evidence at the time of the list.
    Collect,
}

use Step::{Added, Collect, Find, FindAgain, List, Lock, Make, Observe, Remove, Unlock, Unmake};

type Things = [u8; 4];

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    things: Things,
    /// The progress of the process that adds, and of the one that cleans up.
    at: [usize; 2],
    /// The process with the network's lock.
    lock: Option<usize>,
    added: bool,
    listed: Things,
    observed: bool,
    found: Things,
}

impl State {
    /// The state after the next step of a process, if it can be done.
    fn next(&self, programs: [&[Step]; 2], process: usize) -> Option<State> {
        let step = *programs[process].get(self.at[process])?;
        let mut next = self.clone();
        next.at[process] += 1;
        match step {
            Lock if self.lock.is_some() => return None,
            Lock => next.lock = Some(process),
            Unlock => next.lock = None,
            Make(thing) => next.things[thing as usize] = NEW,
            Unmake(thing) => next.things[thing as usize] = ABSENT,
            Added => next.added = true,
            List => next.listed = self.things,
            Observe => next.observed = self.things[Link as usize] != ABSENT,
            Find if self.observed => next.found = Things::default(),
            Find => next.found = self.listed,
            FindAgain => {
                for thing in ALL.map(|thing| thing as usize) {
                    let gone = self.observed || self.found[thing] == ABSENT;
                    next.found[thing] = if gone { ABSENT } else { self.listed[thing] };
                }
            }
            // DEL, by the name alone, with the present content of the cache.
            Remove(Entry) if self.found[Entry as usize] != ABSENT => {
                if self.things[Entry as usize] != ABSENT {
                    next.things = Things::default();
                }
            }
            // The file must be the one that was found.
            Remove(Lease) if self.found[Lease as usize] != self.things[Lease as usize] => {}
            Remove(thing) if self.found[thing as usize] != ABSENT => next.things[thing as usize] = ABSENT,
            Remove(_) => {}
            Collect if !self.observed => next.things = Things::default(),
            Collect => {}
        }
        Some(next)
    }
}

/// The steps to a state in which an ADD that has succeeded lacks something.
fn loss(things: Things, adding: &[Step], cleaning: &[Step]) -> Option<Vec<Step>> {
    let programs = [adding, cleaning];
    let mut seen = HashSet::new();
    let mut open = vec![(State { things, ..State::default() }, Vec::new())];
    while let Some((state, path)) = open.pop() {
        if state.added && state.things != [NEW; 4] {
            return Some(path);
        }
        for process in [0, 1] {
            let Some(next) = state.next(programs, process) else { continue };
            if seen.insert(next.clone()) {
                let mut path = path.clone();
                path.push(programs[process][state.at[process]]);
                open.push((next, path));
            }
        }
    }
    None
}

const ADD: [Step; 5] = [Make(Link), Make(Lease), Make(Rule), Make(Entry), Added];
const REMOVE: [Step; 3] = [Remove(Entry), Remove(Lease), Remove(Rule)];

fn join_steps(parts: &[&[Step]]) -> Vec<Step> {
    parts.concat()
}

/// The steps of an ADD by a runtime that takes no lock.
fn foreign() -> Vec<Step> {
    ADD.into()
}

fn ours() -> Vec<Step> {
    join_steps(&[&[Lock], &ADD, &[Unlock]])
}

/// A stale attachment is taken down and added again under the same name, by cnimble.
fn again() -> Vec<Step> {
    let del = [Unmake(Rule), Unmake(Lease), Unmake(Entry)];
    join_steps(&[&[Lock], &del, &[Unlock, Lock], &ADD, &[Unlock]])
}

const FRESH: Things = [ABSENT; 4];
const DEAD: Things = [ABSENT, STALE, STALE, STALE];

/// A look, and repairs by another look under the lock.
fn doctor() -> Vec<Step> {
    join_steps(&[&[List, Observe, Find, Lock, List, Observe, FindAgain], &REMOVE, &[Unlock]])
}

#[test]
fn no_add_that_succeeds_loses_anything() {
    for (things, adding) in [(FRESH, foreign()), (FRESH, ours()), (DEAD, again())] {
        assert_eq!(loss(things, &adding, &doctor()), None);
    }
    // The purpose: stale things are removed.
    let mut state = State { things: DEAD, ..State::default() };
    while let Some(next) = state.next([&[], &doctor()], 1) {
        state = next;
    }
    assert_eq!(state.things, [ABSENT; 4]);
}

#[test]
fn each_rule_is_needed() {
    // Without the lock, or without judging again, what is added again under its name is lost.
    let without_lock: Vec<Step> =
        doctor().into_iter().filter(|step| ![Lock, Unlock].contains(step)).collect();
    assert!(loss(DEAD, &again(), &without_lock).is_some());
    let without_judging = join_steps(&[&[List, Observe, Find, Lock], &REMOVE, &[Unlock]]);
    assert!(loss(DEAD, &again(), &without_judging).is_some());
    // With evidence looked at first, what comes up meanwhile is found; only the second look saves it.
    let observe_first = join_steps(&[&[Observe, List, Find, Lock], &REMOVE, &[Unlock]]);
    assert!(loss(FRESH, &foreign(), &observe_first).is_some());
    assert!(loss(FRESH, &ours(), &observe_first).is_some());
    // A list of valid attachments lacks an ADD that begins a moment later, so there is no GC in networks with other
    // runtimes.
    let by_list = [Lock, Observe, Collect, Unlock];
    assert!(loss(FRESH, &foreign(), &by_list).is_some());
    assert_eq!(loss(FRESH, &ours(), &by_list), None);
    assert!(loss(FRESH, &ours(), &[Observe, Collect]).is_some());
}

/// The limit, which docs/RELIABILITY.md tells: no lock, and the same name again within a moment.
#[test]
fn another_runtime_that_adds_a_dead_name_again_within_the_moment_of_a_repair_is_not_protected() {
    let again: Vec<Step> = again().into_iter().filter(|step| ![Lock, Unlock].contains(step)).collect();
    assert!(loss(DEAD, &again, &doctor()).is_some());
}
