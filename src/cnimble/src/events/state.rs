//! Derives events from signs: links, leases, packet rules and cache entries that appear and disappear. An attachment
//! begins with its first link or lease. It is complete when the cache has its result. If its signs disappear without a
//! result, its ADD has failed. If they reappear while there is a result, it was repaired.
//!
//! Signs come from several queues, so the signs of one round are applied in any order. [`KnownAttachments::end_round`]
//! draws the conclusions when all queues are empty.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnimble_cni::capability::PortMapping;
use cnimble_cni::{Attachment, Owner};

/// The longest time of an ADD. If the signs of an attachment without a cache entry disappear later, this is a DEL and
/// not a failure, because its runtime may keep no results.
pub(super) const ATTEMPT: Duration = Duration::from_secs(300);

/// The time after a repair in which others of the same attachment are not reported.
const REPAIR: Duration = Duration::from_secs(1);

/// The greatest number of remembered attachments, against a flood of notifications. A node has a few hundred.
const MOST: usize = 1 << 16;

/// What happened to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Add,
    Del,
    Failed,
    Repaired,
}

/// An event of an attachment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    pub(super) what: What,
    pub(super) owner: Owner,
    /// The time from the first sign to the last. It is `None` if the first sign wasn't seen, or if both were read at
    /// once. Signs come without a time, so the time of reading counts.
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

/// The device, inode and modification time of a result's file. A new file under the same name is a new result.
pub(super) type Identity = (u64, u64, i64, i64);

/// The result of an ADD, as the cache has it.
pub(super) struct AddResult {
    pub(super) owner: Owner,
    pub(super) identity: Identity,
    pub(super) about: About,
}

/// The time at which a sign was read.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// The number of earlier calls of [`KnownAttachments::end_round`].
    round: u64,
}

impl Moment {
    /// Returns the time until `now`, if the follower has emptied all queues in between. Otherwise both signs may have
    /// waited in a queue for any time, and it returns `None`.
    fn until(self, now: Moment) -> Option<Duration> {
        (self.round != now.round).then(|| now.at.duration_since(self.at))
    }
}

/// An attachment with its signs.
#[derive(Debug)]
struct AttachmentSigns {
    owner: Owner,
    links: HashSet<u32>,
    leases: HashSet<PathBuf>,
    /// The result in the cache.
    entry: Option<Identity>,
    /// The time of the first sign, while the attachment has no result.
    since: Option<Moment>,
    /// The time at which the first sign of an attachment with a result disappeared.
    leaving: Option<Moment>,
    /// The result is gone, so DEL is complete. Remaining signs disappear without an event.
    over: bool,
    /// The time of the last reported repair.
    repaired: Option<Instant>,
    about: About,
    round: Round,
}

/// The changes in the current round.
#[derive(Debug, Default)]
struct Round {
    /// A result appeared or disappeared.
    entry: bool,
    /// A link, a lease or a rule appeared.
    came: bool,
    /// A link or a lease disappeared.
    went: bool,
}

impl AttachmentSigns {
    fn new(owner: Owner) -> Self {
        AttachmentSigns {
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

    /// Returns whether a link or a lease of the attachment exists.
    fn has_signs(&self) -> bool {
        !self.links.is_empty() || !self.leases.is_empty()
    }

    fn event(&self, what: What, took: Option<Duration>) -> Event {
        Event { what, owner: self.owner.clone(), took, about: self.about.clone() }
    }

    /// Records that a sign appeared, which begins an ADD unless there is a result.
    fn came(&mut self, now: Moment) {
        self.round.came = true;
        if self.entry.is_none() && (self.since.is_none() || self.over) {
            self.since = Some(now);
            self.over = false;
        }
    }

    /// Records that a sign disappeared.
    fn went(&mut self, now: Moment) {
        self.round.went = true;
        self.leaving.get_or_insert(now);
    }
}

/// All known attachments and their signs.
#[derive(Debug, Default)]
pub(super) struct KnownAttachments {
    /// The attachments by the tag of their owner.
    known: HashMap<String, AttachmentSigns>,
    /// The tags of links by index.
    links: HashMap<u32, String>,
    /// Links that don't name an owner yet, with the time of their first notification. The time is `None` for those that
    /// existed at the start.
    unnamed: HashMap<u32, Option<Moment>>,
    /// The tags of leases by path.
    leases: HashMap<PathBuf, String>,
    /// The tags of results by path.
    entries: HashMap<PathBuf, String>,
    /// Paths of results that disappeared in this round before they were read.
    passed: HashSet<PathBuf>,
    /// The ADDs and DELs that were not returned yet.
    events: Vec<Event>,
    /// The number of calls of [`KnownAttachments::end_round`].
    rounds: u64,
}

impl KnownAttachments {
    fn moment(&self, at: Instant) -> Moment {
        Moment { at, round: self.rounds }
    }

    /// Returns the number of attachments with a result.
    pub(super) fn attached(&self) -> usize {
        self.known.values().filter(|known| known.entry.is_some()).count()
    }

    /// Records a link. It counts as a sign once its alias names an owner. A link can get its alias after its creation,
    /// and then the time of its creation counts.
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

    /// Records that a link is gone. `alias` is its last one, or empty if that is unknown.
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

    /// Records a rule or set element whose comment names its owner. One of an unknown owner is ignored.
    pub(super) fn rule(&mut self, now: Instant, comment: &str) {
        let now = self.moment(now);
        // A rule is no first sign: plugins create links and leases before rules.
        let known = cnimble_cni::owner::tag(comment).and_then(|tag| self.known.get_mut(tag));
        if let Some(known) = known {
            known.came(now);
        }
    }

    /// Records a lease.
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

    /// Records that a lease is gone.
    pub(super) fn no_lease(&mut self, now: Instant, path: &Path) {
        let Some(tag) = self.leases.remove(path) else { return };
        let now = self.moment(now);
        if let Some(known) = self.known.get_mut(&tag) {
            known.leases.remove(path);
            known.went(now);
        }
    }

    /// Records a result, which completes an ADD. A second notification of the same file is ignored.
    pub(super) fn entry(&mut self, now: Instant, path: &Path, added: AddResult) {
        let AddResult { owner, identity, about } = added;
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

    /// Records that a result is gone, which completes a DEL.
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

    /// Takes the current state as the first one. Events of earlier signs are dropped, and later ones have no duration.
    pub(super) fn take_as_it_is(&mut self) {
        self.events.clear();
        self.unnamed.values_mut().for_each(|since| *since = None);
        for known in self.known.values_mut() {
            (known.since, known.leaving, known.round) = (None, None, Round::default());
        }
    }

    /// Returns the known results, leases and links.
    pub(super) fn objects(&self) -> (Vec<PathBuf>, Vec<PathBuf>, Vec<u32>) {
        let entries = self.entries.keys().cloned().collect();
        let leases = self.leases.keys().cloned().collect();
        (entries, leases, self.links.keys().copied().collect())
    }

    /// Returns the ADDs and DELs that are complete, while more signs may follow.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Ends a round, and returns its events with the conclusions: repairs, failed ADDs, and DELs of attachments without
    /// a result. Call it only when all queues are empty, because a missing sign counts.
    pub(super) fn end_round(&mut self, now: Instant) -> Vec<Event> {
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

    /// Returns the attachment of this tag, which it creates. It returns `None` if that would be one too many.
    fn known(&mut self, tag: &str, owner: Owner) -> Option<&mut AttachmentSigns> {
        if self.known.len() >= MOST && !self.known.contains_key(tag) {
            return None;
        }
        Some(self.known.entry(tag.to_owned()).or_insert_with(|| AttachmentSigns::new(owner)))
    }
}

/// Returns whether the path is that of the result of this attachment, as libcni names it.
fn is_named_after(path: &Path, owner: &Owner) -> bool {
    let Owner { network, attachment: Attachment { container_id, ifname } } = owner;
    path.file_name().is_some_and(|name| *name == *format!("{network}-{container_id}-{ifname}"))
}

#[cfg(test)]
mod tests;
