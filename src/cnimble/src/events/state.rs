//! What has happened, told from signs: links, leases, packet rules and entries of the result cache that come
//! and go.
//!
//! An attachment begins with its first link or lease, and is there when the cache has its result. If these go
//! without a result, its ADD has failed. If they come again while there is a result, it was repaired.
//!
//! Signs come from several queues, so those that were read together are applied in any order, and
//! [`State::settle`] draws the conclusions when all queues are empty.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnimble_cni::{Attachment, Owner};

/// An attachment that no cache knows counts as attached after this time: its runtime may keep no results.
pub(super) const ATTEMPT: Duration = Duration::from_secs(300);

/// A repair in several steps is told once.
const REPAIR: Duration = Duration::from_secs(1);

/// How many attachments are remembered. A node has some hundred.
const MOST: usize = 1 << 16;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Add,
    Del,
    Failed,
    Repaired,
}

/// Something that happened to an attachment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    pub(super) what: What,
    pub(super) owner: Owner,
    /// From its first sign to its last; `None` if the first wasn't seen.
    pub(super) took: Option<Duration>,
    pub(super) about: About,
}

/// What the result of an ADD tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct About {
    /// `NAMESPACE/NAME` of the pod.
    pub(super) pod: Option<String>,
    /// The path of the network namespace.
    pub(super) netns: Option<String>,
    /// With their prefixes.
    pub(super) addresses: Vec<String>,
}

/// Which file an entry of the cache is: another with its name is another result.
pub(super) type Identity = (u64, u64, i64, i64);

#[derive(Debug)]
struct Known {
    owner: Owner,
    links: HashSet<u32>,
    leases: HashSet<PathBuf>,
    entry: Option<Identity>,
    /// When the first sign came of what isn't finished.
    since: Option<Instant>,
    /// When the first sign went of what has a result.
    leaving: Option<Instant>,
    /// Its DEL is done, and what is left of it goes without a word.
    over: bool,
    repaired: Option<Instant>,
    about: About,
    round: Round,
}

/// What the signs of one round said.
#[derive(Debug, Default)]
struct Round {
    entry: bool,
    came: bool,
    went: bool,
}

impl Known {
    fn new(owner: Owner) -> Self {
        Known {
            owner,
            links: HashSet::new(),
            leases: HashSet::new(),
            entry: None,
            since: None,
            leaving: None,
            over: false,
            repaired: None,
            about: About::default(),
            round: Round::default(),
        }
    }

    fn has_signs(&self) -> bool {
        !self.links.is_empty() || !self.leases.is_empty()
    }

    fn event(&self, what: What, took: Option<Duration>) -> Event {
        Event { what, owner: self.owner.clone(), took, about: self.about.clone() }
    }

    fn came(&mut self, now: Instant) {
        self.round.came = true;
        if self.entry.is_none() && (self.since.is_none() || self.over) {
            self.since = Some(now);
            self.over = false;
        }
    }

    fn went(&mut self, now: Instant) {
        self.round.went = true;
        self.leaving.get_or_insert(now);
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct State {
    known: HashMap<String, Known>,
    links: HashMap<u32, String>,
    /// Links that don't name an owner, or not yet, and when they came.
    unnamed: HashMap<u32, Option<Instant>>,
    leases: HashMap<PathBuf, String>,
    entries: HashMap<PathBuf, String>,
    /// Files of results that were told of in this round, and are gone again.
    passed: HashSet<PathBuf>,
    events: Vec<Event>,
}

impl State {
    /// How many attachments have a result.
    pub(super) fn attached(&self) -> usize {
        self.known.values().filter(|known| known.entry.is_some()).count()
    }

    /// A link that has been told of. It may get its name later than it comes.
    pub(super) fn link(&mut self, now: Instant, index: u32, alias: &str) {
        let Some((tag, owner)) = cnimble_cni::owner::tag(alias).zip(Owner::named(alias)) else {
            if self.unnamed.len() < MOST {
                self.unnamed.entry(index).or_insert(Some(now));
            }
            return;
        };
        if self.links.get(&index).is_some_and(|known| known == tag) {
            return;
        }
        let came = self.unnamed.remove(&index).flatten().unwrap_or(now);
        let Some(known) = self.known(tag, owner) else { return };
        known.links.insert(index);
        known.came(came);
        self.links.insert(index, tag.to_owned());
    }

    /// A link that is gone, and what its alias was in the end.
    pub(super) fn no_link(&mut self, now: Instant, index: u32, alias: &str) {
        // The kernel doesn't tell of an alias that a link gets while it is down. What was never told of is from
        // before the last look.
        if self.unnamed.contains_key(&index) && !alias.is_empty() {
            self.link(now, index, alias);
        }
        self.unnamed.remove(&index);
        let Some(tag) = self.links.remove(&index) else { return };
        if let Some(known) = self.known.get_mut(&tag) {
            known.links.remove(&index);
            known.went(now);
        }
    }

    /// A rule, or an element of a set, that names its owner.
    pub(super) fn rule(&mut self, now: Instant, comment: &str) {
        // Before its first link or lease it says nothing: rules are made behind them.
        let known = cnimble_cni::owner::tag(comment).and_then(|tag| self.known.get_mut(tag));
        if let Some(known) = known {
            known.came(now);
        }
    }

    /// A lease of this owner.
    pub(super) fn lease(&mut self, now: Instant, path: &Path, owner: Owner) {
        let tag = owner.tag();
        if self.leases.get(path) == Some(&tag) {
            return;
        }
        let Some(known) = self.known(&tag, owner) else { return };
        known.leases.insert(path.to_owned());
        known.came(now);
        self.leases.insert(path.to_owned(), tag);
    }

    /// A lease that is gone.
    pub(super) fn no_lease(&mut self, now: Instant, path: &Path) {
        let Some(tag) = self.leases.remove(path) else { return };
        if let Some(known) = self.known.get_mut(&tag) {
            known.leases.remove(path);
            known.went(now);
        }
    }

    /// A result in the cache.
    pub(super) fn entry(
        &mut self,
        now: Instant,
        path: &Path,
        owner: Owner,
        identity: Identity,
        about: About,
    ) {
        let tag = owner.tag();
        let Some(known) = self.known(&tag, owner.clone()) else { return };
        // Told twice, or read again.
        if known.entry == Some(identity) {
            return;
        }
        let took = known.since.take().map(|since| now.duration_since(since));
        // An alias may have a name that was cut.
        known.owner = owner.clone();
        known.entry = Some(identity);
        known.round.entry = true;
        (known.leaving, known.over) = (None, false);
        known.about = about.clone();
        self.entries.insert(path.to_owned(), tag);
        self.events.push(Event { what: What::Add, owner, took, about });
    }

    /// A result that is gone.
    pub(super) fn no_entry(&mut self, now: Instant, path: &Path) {
        let Some(tag) = self.entries.remove(path) else {
            if self.passed.len() < MOST {
                self.passed.insert(path.to_owned());
            }
            return;
        };
        let Some(known) = self.known.get_mut(&tag) else { return };
        known.entry = None;
        known.round.entry = true;
        known.over = true;
        let took = known.leaving.take().map(|since| now.duration_since(since));
        self.events.push(known.event(What::Del, took));
    }

    /// What is there at the beginning, or after a loss, is no event.
    pub(super) fn take_as_it_is(&mut self) {
        self.events.clear();
        self.unnamed.values_mut().for_each(|since| *since = None);
        for known in self.known.values_mut() {
            (known.since, known.leaving, known.round) = (None, None, Round::default());
        }
    }

    /// The paths of the entries and leases, and the links, that are taken to be there.
    pub(super) fn there(&self) -> (Vec<PathBuf>, Vec<PathBuf>, Vec<u32>) {
        let paths = |of: &HashMap<PathBuf, String>| of.keys().cloned().collect();
        (paths(&self.entries), paths(&self.leases), self.links.keys().copied().collect())
    }

    /// The ADDs and DELs of this round, while there may be more signs.
    pub(super) fn so_far(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What the signs of this round mean, when no queue has more of them.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Event> {
        let mut events = self.so_far();
        let passed = std::mem::take(&mut self.passed);
        for known in self.known.values_mut() {
            let round = std::mem::take(&mut known.round);
            if known.entry.is_some() {
                let told = known.repaired.is_some_and(|last| now.duration_since(last) < REPAIR);
                if round.came && !round.entry && !told {
                    let took = known.leaving.take().map(|since| now.duration_since(since));
                    known.repaired = Some(now);
                    events.push(known.event(What::Repaired, took));
                }
            } else if round.went && !round.entry && !known.has_signs() && !known.over {
                let took = known.since.take().map(|since| now.duration_since(since));
                if passed.iter().any(|path| is_named_after(path, &known.owner)) {
                    // It came and went faster than it was looked at.
                    events.extend([What::Add, What::Del].map(|what| known.event(what, None)));
                } else if took.is_some_and(|took| took < ATTEMPT) {
                    events.push(known.event(What::Failed, took));
                } else {
                    // It was there at the beginning, or for long: attached, without a result.
                    events.push(known.event(What::Del, None));
                }
            }
        }
        self.known.retain(|_, known| known.entry.is_some() || known.has_signs());
        events
    }

    fn known(&mut self, tag: &str, owner: Owner) -> Option<&mut Known> {
        if self.known.len() >= MOST && !self.known.contains_key(tag) {
            return None;
        }
        Some(self.known.entry(tag.to_owned()).or_insert_with(|| Known::new(owner)))
    }
}

/// Whether a result of this owner has this name in the cache.
fn is_named_after(path: &Path, owner: &Owner) -> bool {
    let Owner { network, attachment: Attachment { container_id, ifname } } = owner;
    path.file_name().is_some_and(|name| *name == *format!("{network}-{container_id}-{ifname}"))
}

/// The owner that these names make.
pub(super) fn owner(network: &str, container_id: &str, ifname: &str) -> Owner {
    let attachment = Attachment { container_id: container_id.to_owned(), ifname: ifname.to_owned() };
    Owner { network: network.to_owned(), attachment }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
