//! An attachment's elements in the sets of a table of ours: put there, found again by their
//! owner, taken out.
//!
//! The kernel is asked first what is there, which costs a few µs, and what is missing goes
//! into one batch: from the second attachment of a network on that is the elements alone. A
//! batch that is refused would be no shorter way, as taking it back costs the kernel some
//! 10 ms; that happens only when somebody else was faster, and then we look again.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::{Owner, hash16};
use crate::net::nft::{Batch, Element, Key, Nft, Rule, Set, Table};
use crate::net::{Error, Result};
use crate::spec::Attachment;

/// How often to look again at what another process may just have changed.
const ATTEMPTS: usize = 20;
/// Deletions in one batch: with their errors they stay far below the socket's buffers.
const CHUNK: usize = 200;

/// One kind of rules, a *part* of a table of ours, which it may share with others.
pub(super) trait Layout {
    /// The table. It is made when the first part needs it, and goes with the last.
    const TABLE: Table<'static>;

    /// The chains of the part; one that others jump to comes before them.
    const CHAINS: &'static [&'static str];

    /// The sets that come with the part.
    const FIXED: &'static [&'static str];

    /// Chains with the operator's own rules: never flushed, and in use while there are any.
    const FOREIGN: &'static [&'static str] = &[];

    /// Whether the part is left when no attachment uses it any more, for [`drop_part`].
    const STAYS: bool = false;

    /// Whether a set of the table belongs to the part.
    fn is_ours(set: &str) -> bool;

    /// Creates a chain.
    fn create_chain(batch: &mut Batch, chain: &str);

    /// Adds the rules that stand first in a chain.
    fn add_first_rules(batch: &mut Batch, chain: &str);

    /// Creates a set.
    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rule over a set, if it is this set that it is made for.
    fn add_rule(batch: &mut Batch, set: &str);
}

/// An element and the set it belongs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) set: String,
    pub(super) element: Element,
}

/// What [`insert`] changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    made_table: bool,
    made_part: bool,
    made_sets: Vec<String>,
    /// What somebody had deleted from under the sets; it stays when the rest is taken back.
    repairs: Repairs,
    /// Each with the element of another owner that it replaced.
    inserted: Vec<(Placed, Option<Element>)>,
    /// Elements that went with those that were replaced.
    removed: Vec<Placed>,
}

#[derive(Debug, Default)]
struct Repairs {
    chains: Vec<&'static str>,
    /// Chains that are empty.
    first_rules: Vec<&'static str>,
    /// Sets without their rule.
    rules: Vec<String>,
}

impl Changes {
    /// The elements of other owners that were replaced, with the set that each was in.
    pub(super) fn replaced(&self) -> impl Iterator<Item = (&str, &Element)> {
        self.inserted.iter().filter_map(|(placed, old)| Some((placed.set.as_str(), old.as_ref()?)))
    }

    /// Whether this element is one of those that were put there.
    pub(super) fn has_inserted(&self, set: &str, element: &Element) -> bool {
        self.inserted.iter().any(|(placed, _)| placed.set == set && placed.element == *element)
    }

    /// Whether nothing was changed.
    pub(super) fn is_empty(&self) -> bool {
        self.inserted.is_empty() && self.made_sets.is_empty() && !self.made_part
    }
}

fn is_fixed<L: Layout>(set: &str) -> bool {
    L::FIXED.contains(&set)
}

/// Creates all that is always there.
fn create_part<L: Layout>(batch: &mut Batch) {
    for chain in L::CHAINS {
        L::create_chain(batch, chain);
    }
    for chain in L::CHAINS {
        L::add_first_rules(batch, chain);
    }
    for set in L::FIXED {
        L::create_set(batch, set);
    }
    for set in L::FIXED {
        L::add_rule(batch, set);
    }
}

fn set<L: Layout>(name: &str) -> Set<'_> {
    L::TABLE.set(name)
}

/// Whether the kernel could make the part, and a set of those that come and go.
///
/// # Errors
/// As it refused.
pub(super) fn try_out<L: Layout>(nft: &mut Nft, set: Option<&str>) -> Result<()> {
    let has_table = nft.has_table(L::TABLE)?;
    if has_table && lists_part::<L>(nft)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    if !has_table {
        batch.create_table(L::TABLE);
    }
    create_part::<L>(&mut batch);
    if let Some(set) = set {
        L::create_set(&mut batch, set);
        L::add_rule(&mut batch, set);
    }
    match nft.try_out(&batch) {
        // Somebody has made it in this moment, so it can be made.
        Err(err) if err.is(Errno::EEXIST) => Ok(()),
        outcome => outcome,
    }
}

fn lists_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    Ok(nft.chains(L::TABLE)?.iter().any(|chain| L::CHAINS.contains(&chain.as_str())))
}

/// Puts the owner's elements in place. An element that is the owner's already stays; one
/// that is somebody else's is replaced, as the address has been given to us.
pub(super) fn insert<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
    insert_if::<L>(nft, wanted, |_| true).map_err(|refusal| match refusal {
        Refusal::Kernel(err) => err,
        Refusal::Taken(old) => Error::new(format!("create element {}", old.key), Errno::EEXIST),
    })
}

/// Why elements were not put in place.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The kernel refused.
    Kernel(Error),
    /// In the place of one is another that may not be replaced.
    Taken(Box<Element>),
}

impl From<Error> for Refusal {
    fn from(err: Error) -> Self {
        Refusal::Kernel(err)
    }
}

/// [`insert`], which replaces only what `may` be.
pub(super) fn insert_if<L: Layout>(
    nft: &mut Nft,
    wanted: &[Placed],
    may: impl Fn(&Element) -> bool,
) -> std::result::Result<Changes, Refusal> {
    for attempt in 1.. {
        let plan = look::<L>(nft, wanted)?;
        if let Some(old) = plan.inserted.iter().filter_map(|(_, old)| old.as_ref()).find(|old| !may(old)) {
            return Err(Refusal::Taken(Box::new(old.clone())));
        }
        match nft.commit(&batch::<L>(&plan)) {
            Ok(()) => return Ok(plan),
            // Somebody was faster: made the table, took or left the address.
            Err(err)
                if attempt < ATTEMPTS
                    && matches!(err.errno, Errno::ENOENT | Errno::EEXIST | Errno::EBUSY) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Err(Error::new(format!("fill table {}", L::TABLE), Errno::EBUSY).into())
}

/// [`insert_if`] for many elements that are most likely not there yet: they are created
/// without a look at each, and only if the kernel has one of them already, all are looked at.
pub(super) fn insert_many<L: Layout>(
    nft: &mut Nft,
    wanted: &[Placed],
    may: impl Fn(&Element) -> bool,
) -> std::result::Result<Changes, Refusal> {
    let mut plan =
        Changes { inserted: wanted.iter().map(|p| (p.clone(), None)).collect(), ..Changes::default() };
    let mut missing = Vec::new();
    for name in sets_of(wanted) {
        if !nft.has_set(set::<L>(name))? {
            missing.push(name);
        }
    }
    plan.complete::<L>(nft, wanted, &missing)?;
    match nft.commit(&batch::<L>(&plan)) {
        Ok(()) => Ok(plan),
        Err(err) if matches!(err.errno, Errno::ENOENT | Errno::EEXIST | Errno::EBUSY) => {
            insert_if::<L>(nft, wanted, may)
        }
        Err(err) => Err(err.into()),
    }
}

/// The sets that elements belong in, each once.
fn sets_of(wanted: &[Placed]) -> BTreeSet<&str> {
    wanted.iter().map(|placed| placed.set.as_str()).collect()
}

/// What has to be done, by what the kernel has.
fn look<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
    let mut plan = Changes::default();
    let mut missing: Vec<&str> = Vec::new();
    for placed in wanted {
        let set = set::<L>(&placed.set);
        if missing.contains(&set.name) {
            plan.inserted.push((placed.clone(), None));
        } else if !nft.has_set(set)? {
            missing.push(set.name);
            plan.inserted.push((placed.clone(), None));
        } else {
            match nft.element(set, &placed.element.key)? {
                Some(there) if there == placed.element => {}
                old => plan.inserted.push((placed.clone(), old)),
            }
        }
    }
    plan.complete::<L>(nft, wanted, &missing)?;
    Ok(plan)
}

impl Changes {
    /// Notes what has to be made besides the elements; `missing` are the sets that aren't there.
    fn complete<L: Layout>(&mut self, nft: &mut Nft, wanted: &[Placed], missing: &[&str]) -> Result<()> {
        self.made_table = !missing.is_empty() && !nft.has_table(L::TABLE)?;
        self.made_part = self.made_table
            // A chain that somebody deleted is made again; here the part has never been.
            || !missing.is_empty()
                && !lists_part::<L>(nft)?
                && nft.sets(L::TABLE)?.iter().all(|set| !L::is_ours(set));
        self.made_sets = missing
            .iter()
            .filter(|set| !self.made_part || !is_fixed::<L>(set))
            .map(|set| (*set).to_owned())
            .collect();
        if !self.made_part {
            self.repairs = look_at_rules::<L>(nft, wanted, &self.made_sets)?;
        }
        Ok(())
    }
}

/// Elements are worth nothing without a rule, so a flushed chain must not go unnoticed.
fn look_at_rules<L: Layout>(nft: &mut Nft, wanted: &[Placed], made: &[String]) -> Result<Repairs> {
    let mut repairs = Repairs::default();
    let rules = our_rules::<L>(nft)?;
    for chain in L::CHAINS {
        if !rules.iter().any(|rule| rule.chain == *chain) {
            if !nft.has_chain(L::TABLE.chain(chain))? {
                repairs.chains.push(chain);
            }
            repairs.first_rules.push(chain);
        }
    }
    // Of a chain that was flushed, the other sets' rules are gone as well, in their order.
    let flushed = repairs.first_rules.iter().any(|chain| !L::FOREIGN.contains(chain));
    let mut sets: Vec<String> = L::FIXED.iter().filter(|_| flushed).map(|set| (*set).to_owned()).collect();
    if flushed {
        let present = nft.sets(L::TABLE)?;
        sets.retain(|set| present.contains(set));
        sets.extend(present.into_iter().filter(|set| L::is_ours(set)));
    }
    sets.extend(sets_of(wanted).into_iter().map(str::to_owned));
    for set in sets {
        let there = rules.iter().any(|rule| rule.uses_set(&set));
        if !there && !made.contains(&set) && !repairs.rules.contains(&set) {
            repairs.rules.push(set);
        }
    }
    Ok(repairs)
}

/// The rules of the part's chains.
fn our_rules<L: Layout>(nft: &mut Nft) -> Result<Vec<Rule>> {
    let only = match L::CHAINS {
        [only] => Some(*only),
        _ => None,
    };
    let mut rules = nft.rules(L::TABLE, only)?;
    rules.retain(|rule| L::CHAINS.contains(&rule.chain.as_str()));
    Ok(rules)
}

fn batch<L: Layout>(plan: &Changes) -> Batch {
    let mut batch = Batch::new();
    if plan.made_table {
        batch.create_table(L::TABLE);
    }
    if plan.made_part {
        create_part::<L>(&mut batch);
    }
    for chain in &plan.repairs.chains {
        L::create_chain(&mut batch, chain);
    }
    for chain in &plan.repairs.first_rules {
        L::add_first_rules(&mut batch, chain);
    }
    for set in &plan.made_sets {
        L::create_set(&mut batch, set);
        L::add_rule(&mut batch, set);
    }
    for set in &plan.repairs.rules {
        L::add_rule(&mut batch, set);
    }
    for (placed, _) in plan.inserted.iter().filter(|(_, old)| old.is_some()) {
        batch.delete_element(set::<L>(&placed.set), &placed.element.key);
    }
    let mut by_set: BTreeMap<&str, Vec<&Element>> = BTreeMap::new();
    for (placed, _) in &plan.inserted {
        by_set.entry(&placed.set).or_default().push(&placed.element);
    }
    for (name, elements) in by_set {
        batch.create_elements(set::<L>(name), elements);
    }
    batch
}

/// Deletes an element that belonged to one that [`insert`] replaced, and notes it there.
pub(super) fn also_delete<L: Layout>(
    nft: &mut Nft,
    changes: &mut Changes,
    name: &str,
    key: &Key,
) -> Result<()> {
    if let Some(element) = nft.element(set::<L>(name), key)? {
        let placed = Placed { set: name.to_owned(), element };
        delete::<L>(nft, std::slice::from_ref(&placed))?;
        changes.removed.push(placed);
    }
    Ok(())
}

/// Takes back what [`insert`] changed: the elements, if they are still ours; then what it
/// created, unless somebody else uses it by now.
pub(super) fn revert<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<()> {
    for attempt in 1.. {
        let batch = reverting::<L>(nft, changes)?;
        match nft.commit(&batch) {
            Ok(()) => break,
            // Somebody was there in between.
            Err(err) if attempt < ATTEMPTS && matches!(err.errno, Errno::ENOENT | Errno::EEXIST) => {}
            Err(err) => return Err(err),
        }
    }
    drop_unused::<L>(nft, &changes.made_sets, changes.made_part)
}

fn reverting<L: Layout>(nft: &mut Nft, changes: &Changes) -> Result<Batch> {
    let mut batch = Batch::new();
    for (placed, old) in &changes.inserted {
        let set = set::<L>(&placed.set);
        if nft.element(set, &placed.element.key)?.as_ref() != Some(&placed.element) {
            continue;
        }
        batch.delete_element(set, &placed.element.key);
        if let Some(old) = old {
            batch.create_element(set, old);
        }
    }
    for placed in &changes.removed {
        let set = set::<L>(&placed.set);
        if nft.has_set(set)? && nft.element(set, &placed.element.key)?.is_none() {
            batch.create_element(set, &placed.element);
        }
    }
    Ok(batch)
}

/// Deletes sets (with their rules) and the part (with the table, if that was all), unless
/// somebody uses them: the kernel refuses to delete what isn't empty, so nobody is overtaken.
///
/// Looking first spares most refusals, which are slow.
pub(super) fn drop_unused<L: Layout>(nft: &mut Nft, sets: &[String], part: bool) -> Result<()> {
    if sets.is_empty() && !part {
        return Ok(());
    }
    let (mut empty, mut all) = (Vec::new(), true);
    for set in our_sets::<L>(nft)? {
        let considered = is_fixed::<L>(&set) || sets.contains(&set);
        if !considered || !nft.is_empty(self::set::<L>(&set))? {
            all = false;
        } else if !is_fixed::<L>(&set) {
            empty.push(set);
        }
    }
    if part && all && drop_together::<L>(nft, &empty, true)? {
        return Ok(());
    }
    for set in &empty {
        drop_together::<L>(nft, std::slice::from_ref(set), false)?;
    }
    Ok(())
}

/// Deletes the part, if it has no elements and no sets but those that come with it; whether
/// it is gone.
pub(super) fn drop_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    drop_together::<L>(nft, &[], true)
}

/// Deletes these sets, and the part if wanted, all or nothing; whether they are gone.
fn drop_together<L: Layout>(nft: &mut Nft, sets: &[String], part: bool) -> Result<bool> {
    for attempt in 1.. {
        if !nft.has_table(L::TABLE)? {
            return Ok(true);
        }
        let present = nft.sets(L::TABLE)?;
        let rules = if sets.is_empty() { Vec::new() } else { our_rules::<L>(nft)? };
        let mut batch = Batch::new();
        for name in sets.iter().filter(|name| present.contains(name)) {
            for rule in rules.iter().filter(|rule| rule.uses_set(name)) {
                batch.delete_rule(L::TABLE.chain(&rule.chain), rule.handle);
            }
            batch.delete_set(set::<L>(name));
        }
        if part {
            delete_part::<L>(nft, &mut batch, &present)?;
        }
        match nft.commit(&batch) {
            Ok(()) => return Ok(true),
            Err(err) if err.is(Errno::EBUSY) => return Ok(false),
            // Somebody else drops it at the same time, or an operator did before.
            Err(err) if err.is(Errno::ENOENT) && attempt < ATTEMPTS => {}
            Err(err) if err.is(Errno::ENOENT) => return Ok(false),
            Err(err) => return Err(err),
        }
    }
    Ok(false)
}

/// Deletes chains and fixed sets, and the table if nobody else has something in it. `present`
/// are all sets of the table.
fn delete_part<L: Layout>(nft: &mut Nft, batch: &mut Batch, present: &[String]) -> Result<()> {
    let chains = nft.chains(L::TABLE)?;
    // Those that jump come before what they jump to, and all rules before all chains.
    let ours = || L::CHAINS.iter().rev().filter(|chain| chains.iter().any(|there| there == *chain));
    for chain in ours().filter(|chain| !L::FOREIGN.contains(chain)) {
        batch.flush_chain(L::TABLE.chain(chain));
    }
    for chain in ours() {
        batch.delete_chain(L::TABLE.chain(chain));
    }
    for set in L::FIXED.iter().filter(|set| present.iter().any(|there| there == *set)) {
        batch.delete_set(self::set::<L>(set));
    }
    let alone = chains.iter().all(|chain| L::CHAINS.contains(&chain.as_str()))
        && present.iter().all(|set| L::is_ours(set));
    if alone {
        batch.delete_table(L::TABLE);
    }
    Ok(())
}

fn our_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut sets = nft.sets(L::TABLE)?;
    sets.retain(|set| L::is_ours(set));
    Ok(sets)
}

/// All elements of the part whose comment `matches`.
pub(super) fn find<L: Layout>(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> Result<Vec<Placed>> {
    let mut found = Vec::new();
    for set in our_sets::<L>(nft)? {
        for element in nft.elements(L::TABLE.set(&set))? {
            if matches(&element.comment) {
                found.push(Placed { set: set.clone(), element });
            }
        }
    }
    Ok(found)
}

/// Deletes elements, as long as they are what they were when they were found.
pub(super) fn delete<L: Layout>(nft: &mut Nft, elements: &[Placed]) -> Result<()> {
    for chunk in elements.chunks(CHUNK) {
        let mut left: Vec<&Placed> = chunk.iter().collect();
        let mut attempts = 0;
        while !left.is_empty() {
            attempts += 1;
            let mut batch = Batch::new();
            for placed in &left {
                batch.delete_element(set::<L>(&placed.set), &placed.element.key);
            }
            match nft.commit(&batch) {
                Ok(()) => break,
                // Another DEL or GC was there in between.
                Err(err) if err.is(Errno::ENOENT) && attempts < ATTEMPTS => {}
                Err(err) => return Err(err),
            }
            let mut still = Vec::new();
            for placed in left {
                if nft.element(set::<L>(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element)
                {
                    still.push(placed);
                }
            }
            left = still;
        }
    }
    Ok(())
}

/// Removes the owner's elements, and what nobody uses any more without them; returns the
/// elements. `hints` are where they should be: if all are there and the owner's, nothing is
/// listed.
pub(super) fn remove<L: Layout>(
    nft: &mut Nft,
    owner: &Owner,
    hints: &[(String, Key)],
) -> Result<Vec<Placed>> {
    let mut found = Vec::new();
    for (name, key) in hints {
        match nft.element(set::<L>(name), key)? {
            Some(element) if owner.owns(&element.comment) => {
                found.push(Placed { set: name.clone(), element });
            }
            _ => break,
        }
    }
    if hints.is_empty() || found.len() < hints.len() {
        // Hashed once: this may look at thousands.
        let tag = owner.tag();
        found = find::<L>(nft, |comment| tag_of(comment) == tag)?;
    }
    delete::<L>(nft, &found)?;
    // The last one out: nobody should find rules on a host without pods. Nearly always one
    // look at the owner's own sets says that others are still there.
    for placed in &found {
        if !nft.is_empty(set::<L>(&placed.set))? {
            return Ok(found);
        }
    }
    if !found.is_empty() {
        drop_all_unused::<L>(nft)?;
    }
    Ok(found)
}

/// Removes the elements of all attachments of `network` that aren't in `valid`, and then
/// the sets, and in the end the part, that nobody uses any more.
///
/// Returns the elements.
pub(super) fn gc<L: Layout>(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
    if !nft.has_table(L::TABLE)? {
        return Ok(Vec::new());
    }
    let is_stale = stale(network, valid);
    let stale = find::<L>(nft, is_stale)?;
    delete::<L>(nft, &stale)?;
    if !stale.is_empty() {
        drop_all_unused::<L>(nft)?;
    }
    Ok(stale)
}

/// [`drop_unused`] for all sets and the part.
pub(super) fn drop_all_unused<L: Layout>(nft: &mut Nft) -> Result<()> {
    let sets: Vec<String> = our_sets::<L>(nft)?.into_iter().filter(|set| !is_fixed::<L>(set)).collect();
    drop_unused::<L>(nft, &sets, !L::STAYS)
}

/// Those of these elements that are still what they were when they were found.
pub(super) fn still_there<L: Layout>(nft: &mut Nft, found: &[Placed]) -> Result<Vec<Placed>> {
    let mut there = Vec::new();
    for placed in found {
        if nft.element(set::<L>(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element) {
            there.push(placed.clone());
        }
    }
    Ok(there)
}

/// Whether something of the part is there, and nothing in it is anybody's. `notes` are sets
/// whose elements don't count.
pub(super) fn is_idle<L: Layout>(nft: &mut Nft, notes: &[&str]) -> Result<bool> {
    let sets = our_sets::<L>(nft)?;
    if sets.is_empty() && !lists_part::<L>(nft)? {
        return Ok(false);
    }
    for name in sets.iter().filter(|name| !notes.contains(&name.as_str())) {
        if !nft.is_empty(set::<L>(name))? {
            return Ok(false);
        }
    }
    for chain in L::FOREIGN {
        if !nft.rules(L::TABLE, Some(chain))?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a comment of [`Owner::comment`] begins with.
pub(super) fn tag_of(comment: &str) -> &str {
    comment.split(',').next().unwrap_or_default()
}

/// Tells comments of attachments of `network` that aren't in `valid` from all others.
pub(super) fn stale(network: &str, valid: &[Attachment]) -> impl Fn(&str) -> bool {
    let prefix = format!("{}-", hash16(network));
    let keep: BTreeSet<String> = valid
        .iter()
        .map(|attachment| Owner { network: network.to_owned(), attachment: attachment.clone() }.tag())
        .collect();
    move |comment| comment.starts_with(&prefix) && !keep.contains(tag_of(comment))
}
