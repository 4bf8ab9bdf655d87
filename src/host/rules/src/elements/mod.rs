//! An attachment's elements in the sets of a table of ours.
//!
//! One batch, usually of elements alone, adds what a query finds missing. The query is repeated if a concurrent ADD was
//! faster: a refused batch costs the kernel some 10 ms.

mod insert;
mod overlap;
mod owned;
mod plan;
mod transaction;
mod unused;

use insert::try_out;
pub(super) use insert::{also_delete, insert_many, prepare, revert};
pub(super) use overlap::{LookUp, first, look_up};
pub(super) use owned::{delete, delete_seen, expel, find, gc, remove, unchanged};
pub(super) use plan::{Changes, Refusal};
pub(super) use transaction::{insert, transact};
pub(super) use unused::{Scope, drop_all_unused, drop_part, drop_unused};

use cnimble_cni::Attachment;
use cnimble_cni::owner::tag;
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Element, Hook, Key, Nft, Rule, Set, Table};

use super::listed::{Effect, Listed, RuleOwner};

/// Deletions in one batch: with their errors they stay far below the socket's buffers.
const CHUNK: usize = 200;

/// One kind of rules, a *part* of a table of ours, which it may share with others.
pub(super) trait Layout: Sized {
    /// It is made when the first part needs it, and goes with the last.
    const TABLE: Table<'static>;

    /// A chain that others jump to comes before them.
    const CHAINS: &'static [&'static str];

    const FIXED: &'static [&'static str];

    /// Chains with the operator's own rules: never flushed, and in use while there are any.
    const FOREIGN: &'static [&'static str] = &[];

    const NOTES: &'static [&'static str] = &[];

    /// A set of those that the part makes on demand, for [`usable`](Self::usable).
    const SAMPLE: Option<&'static str> = None;

    /// Whether the removal of the last attachment leaves the part's chains and fixed sets. Their removal is then an act
    /// of its own: [`drop_part`].
    const STAYS: bool = false;

    /// Asked with its [`first`] name, as [`claim`](Self::claim) and [`suffix`](Self::suffix) are.
    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set)
    }

    /// Which of two attachments gets a place in the set that both want.
    fn claim(set: &str) -> Claim;

    /// Returns what is appended to the name of a set to name the second one, for the attachment of `comment`. `None` if the
    /// comment names no attachment, so that there is no second set for it.
    fn suffix(_set: &str, comment: &str) -> Option<String> {
        Some(tag(comment)?.split_once('-')?.0.to_owned())
    }

    /// Whether [`create_set`](Self::create_set) and [`add_rule`](Self::add_rule) make this set and its rule. Others
    /// come first.
    fn makes(_set: &str) -> bool {
        true
    }

    fn create_chain(batch: &mut Batch, chain: &str);

    /// The hook of a chain that an earlier version made one step before it. The next ADD replaces such a chain.
    fn hook(_chain: &str) -> Option<Hook> {
        None
    }

    fn add_first_rules(_batch: &mut Batch, _chain: &str) {}

    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rules over a set, if it is the one that they are made for.
    fn add_rule(batch: &mut Batch, set: &str);

    fn is_rule_over(rule: &Rule, set: &str) -> bool {
        rule.uses_set(set)
    }

    /// Whether all rules over a set are among these. If an earlier version made fewer, all are replaced.
    fn has_rules(rules: &[Rule], set: &str) -> bool {
        rules.iter().any(|rule| Self::is_rule_over(rule, set))
    }

    /// The effect for people, or `None` for an element that isn't listed.
    fn effect(_placed: &Placed) -> Option<Effect> {
        None
    }

    fn all(nft: &mut Nft) -> Result<Vec<Placed>> {
        let mut all = find::<Self>(nft, |_| true)?;
        all.retain(|placed| !Self::NOTES.contains(&placed.set.as_str()));
        Ok(all)
    }

    fn list(nft: &mut Nft) -> Result<Vec<Listed>> {
        let read = Self::all(nft)?.into_iter().filter_map(|placed| {
            let effect = Self::effect(&placed)?;
            Some(Listed { owner: RuleOwner::Comment(placed.element.comment), effect })
        });
        Ok(read.collect())
    }

    fn is_idle(nft: &mut Nft) -> Result<bool> {
        unused::is_idle::<Self>(nft)
    }

    /// The sets that a killed DEL has emptied and left with their rules.
    fn empty_sets(nft: &mut Nft) -> Result<Vec<String>> {
        unused::empty_sets::<Self>(nft)
    }

    /// Deletes elements that are still as they were found, and then unused sets and chains.
    fn forget(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        delete::<Self>(nft, found)?;
        drop_all_unused::<Self>(nft)
    }

    /// [`forget`](Self::forget) for elements of living pods when other rules have taken their place.
    fn let_go(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        Self::forget(nft, found)
    }

    /// Removes and returns the elements of attachments of `network` outside `valid`, then unused sets and chains.
    fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
        gc::<Self>(nft, network, valid)
    }

    fn usable(nft: &mut Nft) -> Result<()> {
        try_out::<Self>(nft)
    }
}

/// Which attachment gets a place that two want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Last,
    /// The later element. An element of many owners stays until the last of them goes. An ADD that finds it makes sure
    /// that no concurrent DEL takes it away.
    Shared,
    /// The earlier one, until it goes. Another attachment of the same container gets a place [`overlap`].
    Container,
    /// The network owns its addresses, so an element of the same network is stale and is replaced. One of another
    /// network may belong to a living pod, and both stay ([`overlap`]).
    Network,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) set: String,
    pub(super) element: Element,
}

impl Placed {
    pub(super) fn new(set: impl Into<String>, key: Key, comment: &str) -> Self {
        Placed { set: set.into(), element: Element::new(key, comment) }
    }
}

fn is_fixed<L: Layout>(set: &str) -> bool {
    L::FIXED.contains(&set)
}

fn set<L: Layout>(name: &str) -> Set<'_> {
    L::TABLE.set(name)
}

fn is_in_place(nft: &mut Nft, table: Table<'_>, placed: &Placed) -> Result<bool> {
    Ok(nft.element(table.set(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element))
}

pub(super) fn our_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut sets = nft.sets(L::TABLE)?;
    sets.retain(|set| L::is_ours(first(set)));
    Ok(sets)
}

fn our_rules<L: Layout>(nft: &mut Nft) -> Result<Vec<Rule>> {
    let only = match L::CHAINS {
        [only] => Some(*only),
        _ => None,
    };
    let mut rules = nft.rules(L::TABLE, only)?;
    rules.retain(|rule| L::CHAINS.contains(&rule.chain.as_str()));
    Ok(rules)
}

fn lists_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    Ok(nft.chains(L::TABLE)?.iter().any(|chain| L::CHAINS.contains(&chain.as_str())))
}
