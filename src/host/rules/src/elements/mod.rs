//! An attachment's elements in the sets of a table of ours: put there, found again by their
//! owner, taken out.
//!
//! A query of the present objects costs a few µs. The missing ones go into one batch, which from the second attachment
//! of a network on has the elements alone. A refused batch costs the kernel some 10 ms. That happens only if a
//! concurrent ADD was faster, and the query is repeated.
//!
//! [`plan`] finds the missing objects, and [`insert()`] creates and removes them. [`owned`] finds and removes elements by
//! their owner, and [`unused`] deletes unused sets and chains. [`overlap`] is for addresses that two networks share.

mod insert;
mod overlap;
mod owned;
mod plan;
mod unused;

pub(super) use insert::{also_delete, insert, insert_many, prepare, revert, try_out};
pub(super) use overlap::{There, first, look_up};
pub(super) use owned::{delete, expel, find, forget, gc, remove, still_there};
pub(super) use plan::{Changes, Refusal};
pub(super) use unused::{drop_all_unused, drop_part, drop_unused, is_idle};

use cnimble_cni::owner::tag;
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

    /// Which of two attachments gets a place in the set that both want. Asked with its [`first`] name.
    fn claim(set: &str) -> Claim;

    /// The suffix of a set beside this one, by the comment on an element: the network.
    /// Asked with its [`first`] name.
    fn apart(_set: &str, comment: &str) -> Option<String> {
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
    fn add_first_rules(batch: &mut Batch, chain: &str);

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
