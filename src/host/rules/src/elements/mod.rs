//! An attachment's elements in the sets of a table of ours: put there, found again by their owner, taken out.
//!
//! A query of the present objects costs a few µs. The missing ones go into one batch, which from the second attachment
//! of a network on has the elements alone. A refused batch costs the kernel some 10 ms. That happens only if a
//! concurrent ADD was faster, and the query is repeated.
//!
//! [`plan`] finds the missing objects, and [`mod@insert`] creates and removes them, for several parts at once by a
//! [`transaction`]. [`owned`] finds and removes elements by
//! their owner, and [`unused`] deletes unused sets and chains. [`overlap`] is for addresses that two networks share.

mod insert;
mod overlap;
mod owned;
mod plan;
mod transaction;
mod unused;

use insert::try_out;
pub(super) use insert::{also_delete, insert_many, prepare, revert};
pub(super) use overlap::{LookUp, first, look_up};
pub(super) use owned::{delete, expel, find, gc, remove, unchanged};
pub(super) use plan::{Changes, Refusal};
pub(super) use transaction::{insert, transact};
pub(super) use unused::{Scope, drop_all_unused, drop_part, drop_unused};

use cnimble_cni::Attachment;
use cnimble_cni::owner::tag;
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Element, Nft, Rule, Set, Table};

use super::listed::{Effect, Listed, RuleOwner};

/// Deletions in one batch: with their errors they stay far below the socket's buffers.
const CHUNK: usize = 200;

/// One kind of rules, a *part* of a table of ours, which it may share with others.
pub(super) trait Layout: Sized {
    /// The table. It is made when the first part needs it, and goes with the last.
    const TABLE: Table<'static>;

    /// The chains of the part; one that others jump to comes before them.
    const CHAINS: &'static [&'static str];

    /// The sets that come with the part.
    const FIXED: &'static [&'static str];

    /// Chains with the operator's own rules: never flushed, and in use while there are any.
    const FOREIGN: &'static [&'static str] = &[];

    /// Sets with elements that belong to no attachment and keep nothing alive.
    const NOTES: &'static [&'static str] = &[];

    /// A set of those that the part makes on demand, for [`usable`](Self::usable).
    const SAMPLE: Option<&'static str> = None;

    /// Whether the part is left when no attachment uses it any more, for [`drop_part`].
    const STAYS: bool = false;

    /// Whether a set of the table belongs to the part. Asked with its [`first`] name.
    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set)
    }

    /// Which of two attachments gets a place in the set that both want. Asked with its [`first`] name.
    fn claim(set: &str) -> Claim;

    /// The suffix of a set beside this one, by the comment on an element: the network. Asked with its [`first`] name.
    fn suffix(_set: &str, comment: &str) -> Option<String> {
        Some(tag(comment)?.split_once('-')?.0.to_owned())
    }

    /// Whether [`create_set`](Self::create_set) and [`add_rule`](Self::add_rule) make this set and its rule.
    /// Other sets have to be there before elements are put into them.
    fn makes(_set: &str) -> bool {
        true
    }

    /// Adds the creation of a chain.
    fn create_chain(batch: &mut Batch, chain: &str);

    /// Adds the rules that stand first in a chain.
    fn add_first_rules(_batch: &mut Batch, _chain: &str) {}

    /// Adds the creation of a set.
    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rules over a set, if it is this set that they are made for.
    fn add_rule(batch: &mut Batch, set: &str);

    /// Whether this is a rule over a set.
    fn is_rule_over(rule: &Rule, set: &str) -> bool {
        rule.uses_set(set)
    }

    /// Whether all rules over a set are among these. An earlier version may have made fewer. All are replaced then.
    fn has_rules(rules: &[Rule], set: &str) -> bool {
        rules.iter().any(|rule| Self::is_rule_over(rule, set))
    }

    /// The effect of an element for people, or `None` for an element that isn't listed.
    fn effect(_placed: &Placed) -> Option<Effect> {
        None
    }

    /// All elements of attachments.
    fn all(nft: &mut Nft) -> Result<Vec<Placed>> {
        let mut all = find::<Self>(nft, |_| true)?;
        all.retain(|placed| !Self::NOTES.contains(&placed.set.as_str()));
        Ok(all)
    }

    /// The elements with an effect, read.
    fn list(nft: &mut Nft) -> Result<Vec<Listed>> {
        let read = Self::all(nft)?.into_iter().filter_map(|placed| {
            let effect = Self::effect(&placed)?;
            Some(Listed { owner: RuleOwner::Comment(placed.element.comment), effect })
        });
        Ok(read.collect())
    }

    /// Whether there are sets or chains, and no element of an attachment.
    fn is_idle(nft: &mut Nft) -> Result<bool> {
        unused::is_idle::<Self>(nft)
    }

    /// Deletes elements that are still as they were found, and the sets and chains that are unused without them.
    fn forget(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        let present = unchanged::<Self>(nft, found)?;
        delete::<Self>(nft, &present)?;
        drop_all_unused::<Self>(nft)
    }

    /// [`forget`](Self::forget) for elements of living pods that other rules have taken the place of.
    fn let_go(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        Self::forget(nft, found)
    }

    /// Removes the elements of all attachments of `network` that aren't in `valid`, and the sets and chains that are
    /// unused without them. Returns the removed elements.
    fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
        gc::<Self>(nft, network, valid)
    }

    /// Checks that the kernel would make the part.
    fn usable(nft: &mut Nft) -> Result<()> {
        try_out::<Self>(nft)
    }
}

/// Which attachment gets a place that two want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The later element.
    Last,
    /// The later element. An element that is the same for many stays until the last of them goes; an
    /// ADD that finds it there makes sure that no concurrent DEL takes it away.
    Shared,
    /// The earlier one, until it goes. Another attachment of the same container gets a place [`overlap`]; an
    /// element of another container stays.
    Container,
    /// The network owns its addresses. An element of the same network is stale and is replaced. An element of another
    /// network may belong to a living pod, and both stay ([`overlap`]).
    Network,
}

/// An element and the set it belongs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) set: String,
    pub(super) element: Element,
}

fn is_fixed<L: Layout>(set: &str) -> bool {
    L::FIXED.contains(&set)
}

fn set<L: Layout>(name: &str) -> Set<'_> {
    L::TABLE.set(name)
}

/// Whether this very element is in its set.
fn is_in_place(nft: &mut Nft, table: Table<'_>, placed: &Placed) -> Result<bool> {
    Ok(nft.element(table.set(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element))
}

/// The sets of the part that are there.
pub(super) fn our_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut sets = nft.sets(L::TABLE)?;
    sets.retain(|set| L::is_ours(first(set)));
    Ok(sets)
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

fn lists_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    Ok(nft.chains(L::TABLE)?.iter().any(|chain| L::CHAINS.contains(&chain.as_str())))
}
