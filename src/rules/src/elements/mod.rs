//! An attachment's elements in the sets of a table of ours: put there, found again by their
//! owner, taken out.
//!
//! The kernel is asked first what is there, which costs a few µs, and what is missing goes
//! into one batch: from the second attachment of a network on that is the elements alone. A
//! batch that is refused would be no shorter way, as taking it back costs the kernel some
//! 10 ms; that happens only when somebody else was faster, and then we look again.
//!
//! [`plan`] finds out what is missing, [`insert`] does it and takes it back, [`owned`] finds
//! and removes elements by their owner, [`unused`] deletes what nobody needs any more, and
//! [`beside`] is for addresses that two networks give out.

mod beside;
mod insert;
mod owned;
mod plan;
mod unused;

pub(super) use beside::{There, first, look_up};
pub(super) use insert::{Refusal, also_delete, insert, insert_many, revert, try_out};
pub(super) use owned::{delete, find, forget, gc, remove, still_there};
pub(super) use plan::Changes;
pub(super) use unused::{drop_all_unused, drop_part, drop_unused, is_idle};

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Element, Nft, Rule, Set, Table};

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

    /// Whether a set of the table belongs to the part. Asked with its [`first`] name.
    fn is_ours(set: &str) -> bool;

    /// Who keeps a place in the set that two attachments want. Asked with its [`first`] name.
    fn claim(set: &str) -> Claim;

    /// Creates a chain.
    fn create_chain(batch: &mut Batch, chain: &str);

    /// Adds the rules that stand first in a chain.
    fn add_first_rules(batch: &mut Batch, chain: &str);

    /// Creates a set.
    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rule over a set, if it is this set that it is made for.
    fn add_rule(batch: &mut Batch, set: &str);

    /// Whether this is the rule over a set.
    fn is_rule_over(rule: &Rule, set: &str) -> bool {
        rule.uses_set(set)
    }
}

/// Who keeps a place that is wanted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Who comes last.
    Last,
    /// Who comes last; and what is the same for many stays until the last of them goes. One
    /// that finds it there sees to it that no concurrent DEL takes it away.
    Shared,
    /// Who came first, until it goes.
    First,
    /// An address is its network's to give: what the same network has there is stale and
    /// replaced. What another network has there may live, and both keep a place ([`beside`]).
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
