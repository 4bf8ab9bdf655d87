//! Plans the changes that an ADD has to make, from the present state of the kernel.

use std::collections::{BTreeMap, BTreeSet};

use cnimble_cni::Owner;
use cnimble_cni::owner::tag_of;
use cnimble_netlink::nft::{Batch, Element, Nft, Rule, Table};
use cnimble_netlink::{Error, Result};

use super::overlap::{move_beside, move_elsewhere};
use super::{Claim, Layout, Placed, first_name, is_fixed, lists_part, our_rules, set};

/// Why elements were not inserted. Nothing has been changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    Kernel(Error),
    /// Another owner has this element, with a wanted key, and keeps it ([`Claim::Container`]).
    Taken(Box<Placed>),
    /// The caller must first make these sets with their rules, because the layout can't ([`Layout::makes`]).
    Lacks(Vec<String>),
}

impl From<Error> for Refusal {
    fn from(err: Error) -> Self {
        Refusal::Kernel(err)
    }
}

/// The changes of one part: first a plan, and after the commit the record from which [`revert`](super::revert) takes
/// them back.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether the part is wanted without an element ([`prepare`](super::prepare)).
    without_elements: bool,
    /// Whether the table was missing.
    made_table: bool,
    /// Whether the part was missing: it had neither a chain nor a set.
    pub(crate) made_part: bool,
    /// The sets that were missing, apart from fixed sets of a new part.
    pub(crate) made_sets: Vec<String>,
    /// The chains and rules that somebody had deleted while their sets stayed. An undo leaves them in place.
    repairs: Repairs,
    /// The new elements. Each has the element that it replaced, if the key was taken.
    pub(super) inserted: Vec<(Placed, Option<Element>)>,
    /// Present elements with [`Claim::Shared`]. The batch adds them again, in case a concurrent DEL removes them.
    kept: Vec<Placed>,
    /// Elements of others that were deleted ([`also_delete`](super::also_delete)). An undo restores them.
    pub(super) removed: Vec<Placed>,
    /// The sets of all wanted elements.
    sets: BTreeSet<String>,
    /// The sets of [`sets`](Self::sets) that don't exist.
    missing: Vec<String>,
    /// All sets that present or repaired rules of the part look at.
    pub(super) looked_at: BTreeSet<String>,
    /// The sets that the layout can't make ([`Layout::makes`]), and that are missing or have no rule.
    pub(super) lacks: Vec<String>,
}

/// The missing chains and rules of a part that exists.
#[derive(Debug, Default)]
struct Repairs {
    /// The base chains with the priority of an earlier version ([`Layout::hook`]). One transaction deletes them and
    /// makes them anew.
    moved: Vec<&'static str>,
    /// The chains to make, including [`moved`](Self::moved) ones.
    chains: Vec<&'static str>,
    /// The chains without any rule, which get their first rules.
    first_rules: Vec<&'static str>,
    /// The sets whose rules are made.
    rules: Vec<String>,
    /// The rules to delete before, each by its chain and handle.
    replaced: Vec<(String, u64)>,
}

impl Changes {
    /// Returns the new elements that replaced one with the same key, each with the old one.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (&Placed, &Element)> {
        self.inserted.iter().filter_map(|(placed, old)| Some((placed, old.as_ref()?)))
    }

    /// Returns whether the plan inserted exactly this element. False for an element that was there before.
    pub(crate) fn has_inserted(&self, set: &str, element: &Element) -> bool {
        self.inserted.iter().any(|(placed, _)| placed.set == set && placed.element == *element)
    }

    /// Takes over the part and the sets that `other` made, so that an undo of `self` removes them, too. The elements of
    /// `other` are dropped.
    pub(crate) fn also_made(&mut self, other: Changes) {
        self.made_part |= other.made_part;
        self.made_sets.extend(other.made_sets);
    }

    /// Returns whether an undo has nothing to take back. Repairs don't count.
    pub(crate) fn is_empty(&self) -> bool {
        self.inserted.is_empty() && self.removed.is_empty() && self.made_sets.is_empty() && !self.made_part
    }

    /// Plans after a look at the key of each wanted element. `container` is the ID of the owner's container; with it,
    /// two attachments of one container can have the same key ([`Claim::Container`]).
    ///
    /// # Errors
    /// Fails with [`Refusal::Taken`] if an element belongs to another container, and with [`Refusal::Lacks`].
    pub(super) fn after_look<L: Layout>(
        nft: &mut Nft,
        wanted: &[Placed],
        container: Option<&str>,
    ) -> std::result::Result<Self, Refusal> {
        let mut plan = Changes::default();
        for (at, placed) in wanted.iter().enumerate() {
            // An address may be given twice.
            if !wanted.iter().take(at).any(|other| other == placed) {
                plan.place::<L>(nft, placed, container)?;
            }
        }
        plan.complete::<L>(nft)?;
        if plan.lacks.is_empty() { Ok(plan) } else { Err(Refusal::Lacks(plan.lacks)) }
    }

    /// Plans the part alone, with its repairs.
    pub(super) fn without_elements<L: Layout>(nft: &mut Nft) -> Result<Self> {
        let mut plan = Changes { without_elements: true, ..Changes::default() };
        plan.complete::<L>(nft)?;
        Ok(plan)
    }

    /// Plans without a look at each key. If a key is taken, the kernel refuses the batch with EEXIST. The caller must
    /// look at [`lacks`](Self::lacks) itself.
    pub(super) fn unseen<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Self> {
        let inserted = wanted.iter().map(|placed| (placed.clone(), None)).collect();
        let mut plan = Changes { inserted, ..Changes::default() };
        plan.sets = wanted.iter().map(|placed| placed.set.clone()).collect();
        for name in &plan.sets {
            if !nft.has_set(set::<L>(name))? {
                plan.missing.push(name.clone());
            }
        }
        plan.complete::<L>(nft)?;
        Ok(plan)
    }

    /// Decides about one element: leaves it if it is there, inserts it, replaces the present one, or tries the second
    /// set, as its [`Claim`] says. `container` is as in [`after_look`](Self::after_look).
    fn place<L: Layout>(
        &mut self,
        nft: &mut Nft,
        placed: &Placed,
        container: Option<&str>,
    ) -> std::result::Result<(), Refusal> {
        let present = if self.missing.contains(&placed.set) {
            None
        } else if nft.has_set(set::<L>(&placed.set))? {
            nft.element(set::<L>(&placed.set), &placed.element.key)?
        } else {
            self.missing.push(placed.set.clone());
            None
        };
        self.sets.insert(placed.set.clone());
        let Some(present) = present else {
            self.inserted.push((placed.clone(), None));
            return Ok(());
        };
        if present == placed.element {
            if L::claim(first_name(&placed.set)) == Claim::Shared {
                self.kept.push(placed.clone());
            }
            return Ok(());
        }
        let same_owner = tag_of(&present.comment) == tag_of(&placed.element.comment);
        if L::claim(first_name(&placed.set)) == Claim::Container && !same_owner {
            let same_container = container.is_some_and(|id| Owner::is_of_container(&present.comment, id));
            return match move_beside::<L>(placed).filter(|_| same_container) {
                Some(beside) => self.place::<L>(nft, &beside, container),
                None => Err(Refusal::Taken(Box::new(Placed { set: placed.set.clone(), element: present }))),
            };
        }
        if let Some(elsewhere) = move_elsewhere::<L>(placed, &present) {
            return self.place::<L>(nft, &elsewhere, container);
        }
        self.inserted.push((placed.clone(), Some(present)));
        Ok(())
    }

    /// Adds to the plan what the elements need: table, part, sets and missing rules. Call this once all elements are
    /// placed.
    fn complete<L: Layout>(&mut self, nft: &mut Nft) -> Result<()> {
        let lacking = self.without_elements || !self.missing.is_empty();
        self.made_table = lacking && !nft.has_table(L::TABLE)?;
        self.made_part = self.made_table
            // If only the chains were deleted, the sets still show that the part was there. Then it is repaired.
            || lacking
                && !lists_part::<L>(nft)?
                && nft.sets(L::TABLE)?.iter().all(|set| !L::is_ours(first_name(set)));
        let mut rules = if self.made_part { Vec::new() } else { our_rules::<L>(nft)? };
        if !self.made_part {
            self.look_at_hooks::<L>(nft, &mut rules)?;
        }
        self.leave_beside::<L>(nft, &rules)?;
        self.made_sets =
            self.missing.iter().filter(|set| !self.made_part || !is_fixed::<L>(set)).cloned().collect();
        if !self.made_part {
            self.look_at_rules::<L>(nft, &rules)?;
        }
        self.looked_at = rules.iter().flat_map(Rule::sets).collect();
        self.looked_at.extend(self.repairs.rules.iter().cloned());
        // The caller must make the sets that the layout can't make.
        let wanted = self.repairs.rules.iter().filter(|set| self.sets.contains(*set));
        self.lacks = self.made_sets.iter().chain(wanted).filter(|set| !L::makes(set)).cloned().collect();
        Ok(())
    }

    /// Plans to replace base chains with the priority of an earlier version. Takes their rules out of `rules`, so that
    /// all are made anew as for a flushed chain. If a concurrent ADD adds a rule there, the kernel refuses to delete
    /// the chain (EBUSY).
    fn look_at_hooks<L: Layout>(&mut self, nft: &mut Nft, rules: &mut Vec<Rule>) -> Result<()> {
        for chain in L::CHAINS {
            let Some(hook) = L::hook(chain) else { continue };
            // An earlier version's priority is lower by one. Any other priority was chosen by the administrator.
            if nft.priority(L::TABLE.chain(chain))? != Some(hook.priority - 1) {
                continue;
            }
            self.repairs.moved.push(chain);
            for rule in rules.extract_if(.., |rule| rule.chain == *chain) {
                self.repairs.replaced.push((rule.chain, rule.handle));
            }
        }
        Ok(())
    }

    /// Keeps an owner's element in the second set if it is there already. Otherwise the owner would get another one in
    /// the first set, which has become free meanwhile. The rules, which had to be listed anyway, tell which second sets
    /// exist.
    fn leave_beside<L: Layout>(&mut self, nft: &mut Nft, rules: &[Rule]) -> Result<()> {
        let flushed = !self.made_part && is_flushed::<L>(rules);
        let mut remaining = Vec::with_capacity(self.inserted.len());
        for (placed, old) in self.inserted.drain(..) {
            let beside = move_beside::<L>(&placed)
                .filter(|beside| flushed || rules.iter().any(|rule| rule.uses_set(&beside.set)));
            let present = match &beside {
                Some(Placed { set: name, element }) => nft.element(set::<L>(name), &element.key)?,
                None => None,
            };
            match (beside, present) {
                (Some(beside), Some(present)) if present == beside.element => {}
                (Some(beside), Some(present))
                    if tag_of(&present.comment) == tag_of(&beside.element.comment) =>
                {
                    remaining.push((beside, Some(present)));
                }
                _ => remaining.push((placed, old)),
            }
        }
        self.inserted = remaining;
        // An element that stays in the second set does not need a missing first set.
        let used: BTreeSet<&str> = self.inserted.iter().map(|(placed, _)| placed.set.as_str()).collect();
        self.sets.retain(|set| used.contains(set.as_str()) || !self.missing.contains(set));
        self.missing.retain(|set| used.contains(set.as_str()));
        Ok(())
    }

    /// Plans to restore missing chains and rules. Elements have no effect without a rule, so an ADD must notice a chain
    /// that somebody has flushed.
    fn look_at_rules<L: Layout>(&mut self, nft: &mut Nft, rules: &[Rule]) -> Result<()> {
        for chain in L::CHAINS {
            if !rules.iter().any(|rule| rule.chain == *chain) {
                if self.repairs.moved.contains(chain) || !nft.has_chain(L::TABLE.chain(chain))? {
                    self.repairs.chains.push(chain);
                }
                self.repairs.first_rules.push(chain);
            }
        }
        // If a chain was flushed, the rules of all other sets are gone, too. They are made in the order of the sets.
        let flushed = is_flushed::<L>(rules);
        let mut sets: Vec<String> =
            L::FIXED.iter().filter(|_| flushed).map(|set| (*set).to_owned()).collect();
        if flushed {
            let present = nft.sets(L::TABLE)?;
            sets.retain(|set| present.contains(set));
            sets.extend(present.into_iter().filter(|set| L::is_ours(first_name(set))));
        }
        sets.extend(self.sets.iter().cloned());
        for set in sets {
            let is_ruled = L::has_rules(rules, &set);
            if !is_ruled && !self.made_sets.contains(&set) && !self.repairs.rules.contains(&set) {
                let some = rules.iter().filter(|rule| L::is_rule_over(rule, &set));
                self.repairs.replaced.extend(some.map(|rule| (rule.chain.clone(), rule.handle)));
                self.repairs.rules.push(set);
            }
        }
        Ok(())
    }

    /// Returns the plan as a batch of its own.
    pub(super) fn batch<L: Layout>(&self) -> Batch {
        let mut batch = Batch::new();
        self.fill::<L>(&mut batch, &mut Vec::new());
        batch
    }

    /// Adds the plan to a batch that several parts share. `tables` are the tables that the batch makes already; this
    /// adds its own.
    pub(super) fn fill<L: Layout>(&self, batch: &mut Batch, tables: &mut Vec<Table<'static>>) {
        if self.made_table && !tables.contains(&L::TABLE) {
            batch.create_table(L::TABLE);
            tables.push(L::TABLE);
        }
        if self.made_part {
            create_part::<L>(batch);
        }
        for (chain, handle) in &self.repairs.replaced {
            batch.delete_rule(L::TABLE.chain(chain), *handle);
        }
        for chain in &self.repairs.moved {
            batch.delete_chain(L::TABLE.chain(chain));
        }
        for chain in &self.repairs.chains {
            L::create_chain(batch, chain);
        }
        for chain in &self.repairs.first_rules {
            L::add_first_rules(batch, chain);
        }
        for set in &self.made_sets {
            L::create_set(batch, set);
            L::add_rule(batch, set);
        }
        for set in &self.repairs.rules {
            L::add_rule(batch, set);
        }
        for (placed, _) in self.inserted.iter().filter(|(_, old)| old.is_some()) {
            batch.delete_element(set::<L>(&placed.set), &placed.element.key);
        }
        let mut by_set: BTreeMap<&str, Vec<&Element>> = BTreeMap::new();
        for (placed, _) in &self.inserted {
            by_set.entry(&placed.set).or_default().push(&placed.element);
        }
        for (name, elements) in by_set {
            batch.create_elements(set::<L>(name), elements);
        }
        for placed in &self.kept {
            batch.add_element(set::<L>(&placed.set), &placed.element);
        }
    }
}

/// Returns whether a chain of the part, other than the operator's, has no rule or is missing.
fn is_flushed<L: Layout>(rules: &[Rule]) -> bool {
    let mut chains = L::CHAINS.iter().filter(|chain| !L::FOREIGN.contains(chain));
    chains.any(|chain| !rules.iter().any(|rule| rule.chain == *chain))
}

/// Adds the creation of all chains, first rules, and fixed sets with their rules. The table must exist.
pub(super) fn create_part<L: Layout>(batch: &mut Batch) {
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
