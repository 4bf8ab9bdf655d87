//! The changes that an ADD has to make, by the present state of the kernel.

use std::collections::{BTreeMap, BTreeSet};

use cnimble_cni::Owner;
use cnimble_cni::owner::tag_of;
use cnimble_netlink::nft::{Batch, Element, Nft, Rule, Table};
use cnimble_netlink::{Error, Result};

use super::overlap::{beside, elsewhere};
use super::{Claim, Layout, Placed, first, is_fixed, lists_part, our_rules, set};

#[derive(Debug)]
pub(crate) enum Refusal {
    Kernel(Error),
    Taken(Box<Placed>),
    /// These sets have to be made before, with their rules: [`Layout::makes`].
    Lacks(Vec<String>),
}

impl From<Error> for Refusal {
    fn from(err: Error) -> Self {
        Refusal::Kernel(err)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    without_elements: bool,
    made_table: bool,
    pub(crate) made_part: bool,
    pub(crate) made_sets: Vec<String>,
    /// Chains and rules that had been deleted from under the sets. An undo keeps them.
    repairs: Repairs,
    /// Each with the element that it replaced, of another owner.
    pub(super) inserted: Vec<(Placed, Option<Element>)>,
    /// Shared elements that were there, and have to be when the rest is.
    kept: Vec<Placed>,
    pub(super) removed: Vec<Placed>,
    sets: BTreeSet<String>,
    missing: Vec<String>,
    /// All sets that rules of the part look at.
    pub(super) looked_at: BTreeSet<String>,
    /// Sets that [`Layout`] doesn't make and that aren't there, or have no rule.
    pub(super) lacks: Vec<String>,
}

#[derive(Debug, Default)]
struct Repairs {
    /// Chains with the priority of an earlier version. They are deleted and made anew in the same transaction.
    moved: Vec<&'static str>,
    chains: Vec<&'static str>,
    first_rules: Vec<&'static str>,
    rules: Vec<String>,
    replaced: Vec<(String, u64)>,
}

impl Changes {
    /// The elements that replaced another owner's, each with that one.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (&Placed, &Element)> {
        self.inserted.iter().filter_map(|(placed, old)| Some((placed, old.as_ref()?)))
    }

    pub(crate) fn has_inserted(&self, set: &str, element: &Element) -> bool {
        self.inserted.iter().any(|(placed, _)| placed.set == set && placed.element == *element)
    }

    pub(crate) fn also_made(&mut self, other: Changes) {
        self.made_part |= other.made_part;
        self.made_sets.extend(other.made_sets);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inserted.is_empty() && self.removed.is_empty() && self.made_sets.is_empty() && !self.made_part
    }

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

    pub(super) fn without_elements<L: Layout>(nft: &mut Nft) -> Result<Self> {
        let mut plan = Changes { without_elements: true, ..Changes::default() };
        plan.complete::<L>(nft)?;
        Ok(plan)
    }

    /// Plans without a look at each place, which most likely is free.
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

    /// `container` is the owner's, where others of its attachments matter.
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
            if L::claim(first(&placed.set)) == Claim::Shared {
                self.kept.push(placed.clone());
            }
            return Ok(());
        }
        let same_owner = tag_of(&present.comment) == tag_of(&placed.element.comment);
        if L::claim(first(&placed.set)) == Claim::Container && !same_owner {
            let same_container = container.is_some_and(|id| Owner::is_of_container(&present.comment, id));
            return match beside::<L>(placed).filter(|_| same_container) {
                Some(beside) => self.place::<L>(nft, &beside, container),
                None => Err(Refusal::Taken(Box::new(Placed { set: placed.set.clone(), element: present }))),
            };
        }
        if let Some(elsewhere) = elsewhere::<L>(placed, &present) {
            return self.place::<L>(nft, &elsewhere, container);
        }
        self.inserted.push((placed.clone(), Some(present)));
        Ok(())
    }

    fn complete<L: Layout>(&mut self, nft: &mut Nft) -> Result<()> {
        let lacking = self.without_elements || !self.missing.is_empty();
        self.made_table = lacking && !nft.has_table(L::TABLE)?;
        self.made_part = self.made_table
            // A deleted chain is made again; here the part has never been.
            || lacking
                && !lists_part::<L>(nft)?
                && nft.sets(L::TABLE)?.iter().all(|set| !L::is_ours(first(set)));
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
        // How the sets of others are made isn't known here.
        let wanted = self.repairs.rules.iter().filter(|set| self.sets.contains(*set));
        self.lacks = self.made_sets.iter().chain(wanted).filter(|set| !L::makes(set)).cloned().collect();
        Ok(())
    }

    /// The rules of a chain with another priority are taken out of `rules`: as for a flushed chain, all are made anew.
    /// A rule that a concurrent ADD puts there meanwhile makes the kernel refuse to delete the chain (EBUSY).
    fn look_at_hooks<L: Layout>(&mut self, nft: &mut Nft, rules: &mut Vec<Rule>) -> Result<()> {
        for chain in L::CHAINS {
            let Some(hook) = L::hook(chain) else { continue };
            // The earlier version's. Another one was chosen by the administrator.
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

    /// An element beside stays where it is, since DEL expects one. The rules, which had to be listed anyway, tell what
    /// sets there are.
    fn leave_beside<L: Layout>(&mut self, nft: &mut Nft, rules: &[Rule]) -> Result<()> {
        let flushed = !self.made_part && is_flushed::<L>(rules);
        let mut remaining = Vec::with_capacity(self.inserted.len());
        for (placed, old) in self.inserted.drain(..) {
            let beside = beside::<L>(&placed)
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
        // Then a set that isn't there may not be needed.
        let used: BTreeSet<&str> = self.inserted.iter().map(|(placed, _)| placed.set.as_str()).collect();
        self.sets.retain(|set| used.contains(set.as_str()) || !self.missing.contains(set));
        self.missing.retain(|set| used.contains(set.as_str()));
        Ok(())
    }

    /// Elements are worth nothing without a rule, so a flushed chain must not go unnoticed.
    fn look_at_rules<L: Layout>(&mut self, nft: &mut Nft, rules: &[Rule]) -> Result<()> {
        for chain in L::CHAINS {
            if !rules.iter().any(|rule| rule.chain == *chain) {
                if self.repairs.moved.contains(chain) || !nft.has_chain(L::TABLE.chain(chain))? {
                    self.repairs.chains.push(chain);
                }
                self.repairs.first_rules.push(chain);
            }
        }
        // Of a chain that was flushed, the other sets' rules are gone as well, in their order.
        let flushed = is_flushed::<L>(rules);
        let mut sets: Vec<String> =
            L::FIXED.iter().filter(|_| flushed).map(|set| (*set).to_owned()).collect();
        if flushed {
            let present = nft.sets(L::TABLE)?;
            sets.retain(|set| present.contains(set));
            sets.extend(present.into_iter().filter(|set| L::is_ours(first(set))));
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

    pub(super) fn batch<L: Layout>(&self) -> Batch {
        let mut batch = Batch::new();
        self.fill::<L>(&mut batch, &mut Vec::new());
        batch
    }

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

fn is_flushed<L: Layout>(rules: &[Rule]) -> bool {
    let mut chains = L::CHAINS.iter().filter(|chain| !L::FOREIGN.contains(chain));
    chains.any(|chain| !rules.iter().any(|rule| rule.chain == *chain))
}

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
