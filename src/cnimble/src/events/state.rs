//! Derives events from signs: links, leases, packet rules and cache entries that appear and disappear. An attachment
//! begins with its first link or lease. It is complete when the cache has its result. If its signs disappear without a
//! result, its ADD has failed. If they reappear while there is a result, it was repaired.
//!
//! Signs come from several queues, so the signs of one round are applied in any order. [`State::settle`] draws the
//! conclusions when all queues are empty.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnimble_cni::capability::PortMapping;
use cnimble_cni::{Attachment, Owner};

/// An attachment without a cache entry counts as attached after this time, because its runtime may keep no results.
pub(super) const ATTEMPT: Duration = Duration::from_secs(300);

/// Repairs within this time are reported as one.
const REPAIR: Duration = Duration::from_secs(1);

/// Limits the remembered attachments. A node has a few hundred.
const MOST: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Add,
    Del,
    Failed,
    Repaired,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    pub(super) what: What,
    pub(super) owner: Owner,
    /// From the first sign to the last. `None` if the first sign wasn't seen, or if both were read at once: signs come
    /// without a time, so the time of reading counts.
    pub(super) took: Option<Duration>,
    pub(super) about: About,
}

/// The details of an attachment from the result of its ADD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) pod: Option<String>,
    pub(super) netns: Option<String>,
    pub(super) addresses: Vec<String>,
    pub(super) ports: Vec<PortMapping>,
}

/// A new file under the same name is a new result.
pub(super) type Identity = (u64, u64, i64, i64);

pub(super) struct Added {
    pub(super) owner: Owner,
    pub(super) identity: Identity,
    pub(super) about: About,
}

/// The time at which a sign was read.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// The number of rounds before it.
    round: u64,
}

impl Moment {
    /// The time until `now`, if the follower has emptied all queues in between. Otherwise both signs may have waited in
    /// a queue for any time.
    fn until(self, now: Moment) -> Option<Duration> {
        (self.round != now.round).then(|| now.at.duration_since(self.at))
    }
}

#[derive(Debug)]
struct Known {
    owner: Owner,
    links: HashSet<u32>,
    leases: HashSet<PathBuf>,
    entry: Option<Identity>,
    /// The first sign of an attachment without a result.
    since: Option<Moment>,
    /// The time at which the first sign of an attachment with a result disappeared.
    leaving: Option<Moment>,
    /// DEL is complete. Remaining signs disappear without an event.
    over: bool,
    repaired: Option<Instant>,
    about: About,
    round: Round,
}

/// The changes that the signs of one round showed.
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

    fn came(&mut self, now: Moment) {
        self.round.came = true;
        if self.entry.is_none() && (self.since.is_none() || self.over) {
            self.since = Some(now);
            self.over = false;
        }
    }

    fn went(&mut self, now: Moment) {
        self.round.went = true;
        self.leaving.get_or_insert(now);
    }
}

/// All known attachments and their signs.
#[derive(Debug, Default)]
pub(super) struct State {
    known: HashMap<String, Known>,
    links: HashMap<u32, String>,
    /// Links that don't name an owner yet, and the time of their first notification.
    unnamed: HashMap<u32, Option<Moment>>,
    leases: HashMap<PathBuf, String>,
    entries: HashMap<PathBuf, String>,
    /// Results that were announced in this round and are already removed.
    passed: HashSet<PathBuf>,
    events: Vec<Event>,
    /// How often all queues were empty.
    rounds: u64,
}

impl State {
    fn moment(&self, at: Instant) -> Moment {
        Moment { at, round: self.rounds }
    }

    pub(super) fn attached(&self) -> usize {
        self.known.values().filter(|known| known.entry.is_some()).count()
    }

    /// A link can get its alias after its creation.
    pub(super) fn link(&mut self, now: Instant, index: u32, alias: &str) {
        let Some((tag, owner)) = cnimble_cni::owner::tag(alias).zip(Owner::named(alias)) else {
            if self.unnamed.len() < MOST {
                let now = self.moment(now);
                self.unnamed.entry(index).or_insert(Some(now));
            }
            return;
        };
        if self.links.get(&index).is_some_and(|known| known == tag) {
            return;
        }
        let now = self.moment(now);
        let came = self.unnamed.remove(&index).flatten().unwrap_or(now);
        let Some(known) = self.known(tag, owner) else { return };
        known.links.insert(index);
        known.came(came);
        self.links.insert(index, tag.to_owned());
    }

    pub(super) fn no_link(&mut self, now: Instant, index: u32, alias: &str) {
        // The kernel sends no notification for an alias that is set while the link is down. A link without any
        // notification existed before the last look.
        if self.unnamed.contains_key(&index) && !alias.is_empty() {
            self.link(now, index, alias);
        }
        self.unnamed.remove(&index);
        let Some(tag) = self.links.remove(&index) else { return };
        let now = self.moment(now);
        if let Some(known) = self.known.get_mut(&tag) {
            known.links.remove(&index);
            known.went(now);
        }
    }

    /// Records a rule or set element that names its owner.
    pub(super) fn rule(&mut self, now: Instant, comment: &str) {
        let now = self.moment(now);
        // A rule is no first sign: plugins create links and leases before rules.
        let known = cnimble_cni::owner::tag(comment).and_then(|tag| self.known.get_mut(tag));
        if let Some(known) = known {
            known.came(now);
        }
    }

    pub(super) fn lease(&mut self, now: Instant, path: &Path, owner: Owner) {
        let tag = owner.tag();
        if self.leases.get(path) == Some(&tag) {
            return;
        }
        let now = self.moment(now);
        let Some(known) = self.known(&tag, owner) else { return };
        known.leases.insert(path.to_owned());
        known.came(now);
        self.leases.insert(path.to_owned(), tag);
    }

    pub(super) fn no_lease(&mut self, now: Instant, path: &Path) {
        let Some(tag) = self.leases.remove(path) else { return };
        let now = self.moment(now);
        if let Some(known) = self.known.get_mut(&tag) {
            known.leases.remove(path);
            known.went(now);
        }
    }

    pub(super) fn entry(&mut self, now: Instant, path: &Path, added: Added) {
        let Added { owner, identity, about } = added;
        let (tag, now) = (owner.tag(), self.moment(now));
        let Some(known) = self.known(&tag, owner.clone()) else { return };
        // A repeated notification of the same file.
        if known.entry == Some(identity) {
            return;
        }
        let took = known.since.take().and_then(|since| since.until(now));
        // The name in an alias can be truncated.
        known.owner = owner.clone();
        known.entry = Some(identity);
        known.round.entry = true;
        (known.leaving, known.over) = (None, false);
        known.about = about.clone();
        self.entries.insert(path.to_owned(), tag);
        self.events.push(Event { what: What::Add, owner, took, about });
    }

    pub(super) fn no_entry(&mut self, now: Instant, path: &Path) {
        let Some(tag) = self.entries.remove(path) else {
            if self.passed.len() < MOST {
                self.passed.insert(path.to_owned());
            }
            return;
        };
        let now = self.moment(now);
        let Some(known) = self.known.get_mut(&tag) else { return };
        known.entry = None;
        known.round.entry = true;
        known.over = true;
        let took = known.leaving.take().and_then(|since| since.until(now));
        self.events.push(known.event(What::Del, took));
    }

    /// Called at the start and after lost notifications. Gives no events.
    pub(super) fn take_as_it_is(&mut self) {
        self.events.clear();
        self.unnamed.values_mut().for_each(|since| *since = None);
        for known in self.known.values_mut() {
            (known.since, known.leaving, known.round) = (None, None, Round::default());
        }
    }

    /// Returns the known entries, leases and links.
    pub(super) fn objects(&self) -> (Vec<PathBuf>, Vec<PathBuf>, Vec<u32>) {
        let paths = |of: &HashMap<PathBuf, String>| of.keys().cloned().collect();
        (paths(&self.entries), paths(&self.leases), self.links.keys().copied().collect())
    }

    /// The ADDs and DELs of this round, while more signs may follow.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Requires that all queues are empty.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Event> {
        let mut events = self.take_events();
        let passed = std::mem::take(&mut self.passed);
        let moment = self.moment(now);
        self.rounds += 1;
        for known in self.known.values_mut() {
            let round = std::mem::take(&mut known.round);
            if known.entry.is_some() {
                let told = known.repaired.is_some_and(|last| now.duration_since(last) < REPAIR);
                if round.came && !round.entry && !told {
                    let took = known.leaving.take().and_then(|since| since.until(moment));
                    known.repaired = Some(now);
                    events.push(known.event(What::Repaired, took));
                }
            } else if round.went && !round.entry && !known.has_signs() && !known.over {
                let since = known.since.take();
                let is_recent = since.is_some_and(|since| now.duration_since(since.at) < ATTEMPT);
                let took = since.and_then(|since| since.until(moment));
                if passed.iter().any(|path| is_named_after(path, &known.owner)) {
                    // The result was created and removed before it was read.
                    events.extend([What::Add, What::Del].map(|what| known.event(what, None)));
                } else if is_recent {
                    events.push(known.event(What::Failed, took));
                } else {
                    // It existed at the start or for a long time: attached, without a result.
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

fn is_named_after(path: &Path, owner: &Owner) -> bool {
    let Owner { network, attachment: Attachment { container_id, ifname } } = owner;
    path.file_name().is_some_and(|name| *name == *format!("{network}-{container_id}-{ifname}"))
}

#[cfg(test)]
mod tests;
