//! The plan of the operations. It depends only on the seed, so the same seed gives each actor the same sequence of
//! operations.

use crate::Chance;
use crate::chain::Set;

/// The number of attachments of a worker at a time.
pub(super) const SLOTS: usize = 3;

/// The networks (see [`Site`](super::site::Site)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    /// Only our plugins, with both address families.
    Own,
    /// Our plugins and the Go plugins.
    Mixed,
    /// Only cnimble, which provides the list of valid attachments.
    Listed,
    /// The node's default network, for `pod`, `run` and containerd.
    Pods,
}

/// The caller of the plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The command `cnimble`, with this cache.
    Command { cache: &'static str },
    /// A runtime that works like libcni: without a lock, and with a cache that is written last.
    Runtime,
}

/// The process that is killed, with SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The command `cnimble`. Its plugins continue.
    Command,
    Plugin,
}

/// A kill, `after` milliseconds after the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) target: Target,
    pub(crate) after: u64,
}

/// The end of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Del,
    /// The namespace is removed first.
    Die,
    /// The namespace is removed, and no DEL is called. gc and doctor find it.
    Abandoned,
    /// A GC with a list that lacks the attachment.
    Unlisted,
}

/// An attachment from ADD to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) id: String,
    pub(crate) net: Net,
    pub(crate) caller: Caller,
    pub(crate) set: Set,
    pub(crate) port: u16,
    pub(crate) ending: Ending,
    pub(crate) kill_add: Option<Kill>,
    pub(crate) kill_end: Option<Kill>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Add,
    Check,
    End,
}

/// The endless steps of one worker.
pub(crate) struct Lives {
    chance: Chance,
    worker: usize,
    go: bool,
    count: usize,
    slots: [Option<(Life, usize)>; SLOTS],
}

impl Lives {
    pub(crate) fn new(seed: u64, worker: usize, go: bool) -> Self {
        let chance = stream(seed, worker);
        Lives { chance, worker, go, count: 0, slots: Default::default() }
    }

    fn life(&mut self) -> Life {
        self.count += 1;
        let chance = &mut self.chance;
        // Every number is always drawn, so that the plan without Go plugins is otherwise the same.
        let (net, set, caller) = (chance.below(3), chance.below(2), chance.below(4));
        let net = [Net::Own, Net::Mixed, Net::Listed][net];
        let set = if self.go && net == Net::Mixed && set == 0 { Set::Go } else { Set::Ours };
        let caller = match caller {
            _ if net == Net::Listed => Caller::Command { cache: "/var/lib/cni" },
            0 => Caller::Command { cache: "/var/lib/elsewhere" },
            1 => Caller::Command { cache: "/var/lib/cni" },
            _ => Caller::Runtime,
        };
        let (ending, unlisted) = (chance.below(6), chance.below(2) == 0);
        let ending = match ending {
            _ if net == Net::Listed && unlisted => Ending::Unlisted,
            0..=2 => Ending::Del,
            3 => Ending::Die,
            _ => Ending::Abandoned,
        };
        Life {
            id: format!("w{}n{}", self.worker, self.count),
            net,
            caller,
            set,
            port: u16::try_from(20_000 + self.worker * 10_000 + self.count % 10_000).unwrap(),
            ending,
            kill_add: kill(chance, 5),
            kill_end: kill(chance, 5),
        }
    }
}

impl Iterator for Lives {
    type Item = (usize, Life, Step);

    fn next(&mut self) -> Option<Self::Item> {
        let slot = self.chance.below(SLOTS);
        Some(match self.slots[slot].take() {
            None => {
                let life = self.life();
                let checks = self.chance.below(3);
                self.slots[slot] = Some((life.clone(), checks));
                (slot, life, Step::Add)
            }
            Some((life, 0)) => (slot, life, Step::End),
            Some((life, checks)) => {
                self.slots[slot] = Some((life.clone(), checks - 1));
                (slot, life, Step::Check)
            }
        })
    }
}

/// One run of a clean-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clean {
    Gone(Net),
    Doctor,
}

pub(crate) fn cleaning(seed: u64, cleaner: usize) -> impl Iterator<Item = (Clean, Option<Kill>)> {
    let mut chance = stream(seed, 100 + cleaner);
    std::iter::repeat_with(move || {
        let what = match chance.below(6) {
            0 | 1 => Clean::Gone(Net::Own),
            2 => Clean::Gone(Net::Mixed),
            3 => Clean::Gone(Net::Pods),
            _ => Clean::Doctor,
        };
        (what, kill(&mut chance, 8))
    })
}

/// Returns the steps of `cnimble pod`, each of which adds or removes the pod with this number.
pub(crate) fn pods(seed: u64) -> impl Iterator<Item = (usize, Option<Kill>)> {
    let mut chance = stream(seed, 200);
    std::iter::repeat_with(move || (chance.below(4), kill(&mut chance, 4)))
}

/// An event for `cnimble run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    /// The manifest with this number is added or removed.
    Turn(usize),
    /// SIGKILL or SIGTERM, and a new start.
    Again { signal: &'static str, after: u64 },
}

pub(crate) fn running(seed: u64) -> impl Iterator<Item = Running> {
    let mut chance = stream(seed, 300);
    std::iter::repeat_with(move || match (chance.below(6), chance.below(6), chance.next() % 400) {
        (0, pod, after) => Running::Again { signal: if pod == 0 { "TERM" } else { "KILL" }, after },
        (_, pod, _) => Running::Turn(pod),
    })
}

/// Returns how long each container of containerd's lives, in milliseconds.
pub(crate) fn containers(seed: u64, number: usize) -> impl Iterator<Item = u64> {
    let mut chance = stream(seed, 400 + number);
    std::iter::repeat_with(move || chance.next() % 4000)
}

fn stream(seed: u64, number: usize) -> Chance {
    let mut chance = Chance(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    chance.next();
    chance
}

/// Returns a kill, one time out of `of`. ADD and DEL take some ten to some hundred milliseconds, so early kills are
/// more frequent.
fn kill(chance: &mut Chance, of: usize) -> Option<Kill> {
    let (happens, target, limit) = (chance.below(of) == 0, chance.below(2), chance.below(400) as u64 + 1);
    let after = chance.next() % limit;
    let target = if target == 0 { Target::Command } else { Target::Plugin };
    happens.then_some(Kill { target, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_is_the_same_plan_and_another_is_another() {
        let plan = |seed| -> Vec<_> { Lives::new(seed, 1, true).take(200).collect() };
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let clean = |seed| -> Vec<_> { cleaning(seed, 0).take(50).collect() };
        assert_eq!(clean(7), clean(7));
        let run = |seed| -> Vec<_> { running(seed).take(50).collect() };
        assert_eq!(run(7), run(7));
    }

    #[test]
    fn every_life_begins_with_its_add_and_ends_once() {
        let mut alive = std::collections::BTreeSet::new();
        for (slot, life, step) in Lives::new(3, 0, true).take(2000) {
            assert!(slot < SLOTS);
            match step {
                Step::Add => assert!(alive.insert(life.id)),
                Step::Check => assert!(alive.contains(&life.id)),
                Step::End => assert!(alive.remove(&life.id)),
            }
        }
        assert!(alive.len() <= SLOTS);
    }
}
