//! Adds and removes the elements of an attachment in the sets of cnimble's own nf_tables tables.
//!
//! An ADD first asks the kernel which of its elements are missing. One batch then adds them; after the first pod it
//! usually holds elements alone. If a concurrent process changed the same objects, the kernel refuses the batch and the
//! ADD looks again. The look comes first because a refused batch costs the kernel some 10 ms.
//!
//! Port mappings are the exception: [`insert_many`] looks at their keys only after the kernel has refused the first
//! batch. They may be many and are probably new, so a look at each key would cost more than a rare refusal.
//!
//! A table holds one or several *parts*, one for each [`Layout`]. The table `inet cnimble` holds masquerading, port
//! mappings and forwarding:
//! ```text
//! table inet cnimble {
//!     set forward4 { type ipv4_addr; elements = { 10.1.0.2 comment "TAG, net: N, if: I, id: C" } }
//!     chain forward { … ip saddr @forward4 accept }
//! }
//! ```

mod insert;
mod overlap;
mod owned;
mod plan;
mod transaction;
mod unused;

use insert::try_out;
pub(super) use insert::{also_delete, insert_many, prepare, revert};
pub(super) use overlap::{LookUp, first_name, look_up};
pub(super) use owned::{delete, delete_seen, expel, find_elements, gc, remove, unchanged};
pub(super) use plan::{Changes, Refusal};
pub(super) use transaction::{insert, transact};
pub(super) use unused::{Scope, drop_all_unused, drop_part, drop_unused};

use cnimble_cni::Attachment;
use cnimble_cni::owner::tag;
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Batch, Element, Hook, Key, Nft, Rule, Set, Table};

use super::listed::{Effect, OwnedRule, RuleOwner};

/// The maximum number of deletions in one batch. The batch, and the kernel's errors for it, must stay far below the
/// sizes of the socket's buffers.
const CHUNK: usize = 200;

/// One kind of rules: a *part* of one of cnimble's tables. Several parts may share a table.
///
/// The functions of [`elements`](self) are generic over it. An implementation says which chains, sets and rules there
/// are, and who may hold an element.
pub(super) trait Layout: Sized {
    /// The table of the part. The first part that needs the table makes it, and the removal of the last part deletes
    /// it.
    const TABLE: Table<'static>;

    /// The chains of the part. A chain that another one jumps to comes before that one, because they are made in this
    /// order and deleted in the reverse order.
    const CHAINS: &'static [&'static str];

    /// The sets that exist as long as the part does, in the order in which they and their rules are made. All other
    /// sets are made with their first element and deleted with their last.
    const FIXED: &'static [&'static str];

    /// The chains that hold the operator's own rules. They are never flushed, and the part stays in use while one of
    /// them has a rule.
    const FOREIGN: &'static [&'static str] = &[];

    /// The sets that only note something about the host. No rule looks at them, and their elements belong to no
    /// attachment. [`all`](Self::all) leaves them out, and [`is_idle`](Self::is_idle) does not count them.
    const NOTES: &'static [&'static str] = &[];

    /// The name of one set that is not in [`FIXED`](Self::FIXED). [`usable`](Self::usable) tries to make it with its
    /// rule.
    const SAMPLE: Option<&'static str> = None;

    /// Whether the chains and fixed sets stay when the last attachment has gone. If so, only [`drop_part`] removes
    /// them.
    const STAYS: bool = false;

    /// Returns whether a set belongs to this part. Pass the [`first_name`] of the set, as for [`claim`](Self::claim)
    /// and [`suffix`](Self::suffix).
    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set)
    }

    /// Returns who gets an element's key in the set if two attachments want it.
    fn claim(set: &str) -> Claim;

    /// Returns the 16 hexadecimal digits that name the second set, for the attachment of `comment` (see `overlap`). The
    /// default is the hash of the network. Returns `None` if the comment names no attachment; then there is no second
    /// set.
    fn suffix(_set: &str, comment: &str) -> Option<String> {
        Some(tag(comment)?.split_once('-')?.0.to_owned())
    }

    /// Returns whether [`create_set`](Self::create_set) and [`add_rule`](Self::add_rule) can make this set and its
    /// rule. If not, the caller must make both before it inserts elements ([`Refusal::Lacks`]).
    fn makes(_set: &str) -> bool {
        true
    }

    /// Adds to the batch the creation of one of [`CHAINS`](Self::CHAINS), without rules.
    fn create_chain(batch: &mut Batch, chain: &str);

    /// Returns the hook of a base chain that an earlier version made with a priority lower by one. The next ADD
    /// replaces a chain that still has the old priority. `None` for all other chains.
    fn hook(_chain: &str) -> Option<Hook> {
        None
    }

    /// Adds the rules of a new or flushed chain that belong to no set. They come before the rules over sets.
    fn add_first_rules(_batch: &mut Batch, _chain: &str) {}

    /// Adds to the batch the creation of one set of the part, without elements and rules.
    fn create_set(batch: &mut Batch, set: &str);

    /// Adds the rules that look at a set. A rule over several sets belongs to one of them; for the others this adds
    /// nothing.
    fn add_rule(batch: &mut Batch, set: &str);

    /// Returns whether a rule is one that [`add_rule`](Self::add_rule) makes for the set.
    fn is_rule_over(rule: &Rule, set: &str) -> bool {
        rule.uses_set(set)
    }

    /// Returns whether `rules` has all rules that [`add_rule`](Self::add_rule) makes for the set. If it returns false,
    /// the next ADD deletes those that are there and makes all of them anew.
    fn has_rules(rules: &[Rule], set: &str) -> bool {
        rules.iter().any(|rule| Self::is_rule_over(rule, set))
    }

    /// Returns what an element does, for people, or `None` for an element that is not listed.
    fn effect(_placed: &Placed) -> Option<Effect> {
        None
    }

    /// Returns all elements of the part, except those of [`NOTES`](Self::NOTES).
    fn all(nft: &mut Nft) -> Result<Vec<Placed>> {
        let mut all = find_elements::<Self>(nft, |_| true)?;
        all.retain(|placed| !Self::NOTES.contains(&placed.set.as_str()));
        Ok(all)
    }

    /// Returns the owner and the effect of each element that has an [`effect`](Self::effect).
    fn list(nft: &mut Nft) -> Result<Vec<OwnedRule>> {
        let read = Self::all(nft)?.into_iter().filter_map(|placed| {
            let effect = Self::effect(&placed)?;
            Some(OwnedRule { owner: RuleOwner::Comment(placed.element.comment), effect })
        });
        Ok(read.collect())
    }

    /// Returns whether the part exists and nothing uses it: no attachment has an element, and the operator has no rule.
    fn is_idle(nft: &mut Nft) -> Result<bool> {
        unused::is_idle::<Self>(nft)
    }

    /// Returns the sets without elements that are not fixed. A DEL that was killed has left them with their rules.
    fn empty_sets(nft: &mut Nft) -> Result<Vec<String>> {
        unused::empty_sets::<Self>(nft)
    }

    /// Deletes those of the elements that have not changed since they were found, and then all unused sets and chains.
    fn forget(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        delete::<Self>(nft, found)?;
        drop_all_unused::<Self>(nft)
    }

    /// Does what [`forget`](Self::forget) does, for elements of living pods whose rules now exist in another form. The
    /// pods' connections must go on.
    fn let_go(nft: &mut Nft, found: &[Placed]) -> Result<()> {
        Self::forget(nft, found)
    }

    /// Removes and returns the elements of attachments of `network` that are not in `valid`. Then removes unused sets
    /// and chains.
    fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<Vec<Placed>> {
        gc::<Self>(nft, network, valid)
    }

    /// Returns an error if the kernel could not make the part. Changes nothing.
    fn usable(nft: &mut Nft) -> Result<()> {
        try_out::<Self>(nft)
    }
}

/// The attachment that gets an element if two of them want the same key in the same set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The later one. It replaces the earlier one's element.
    Last,
    /// All of them share one element. If the later one's comment or data differ, its element replaces the earlier one.
    /// An ADD that finds its element adds it again in its batch, in case a concurrent DEL takes it away meanwhile.
    Shared,
    /// The earlier one keeps it, and the later one gets [`Refusal::Taken`]. If both belong to the same container, the
    /// later one gets an element in a second set (see `overlap`).
    Container,
    /// The later one if both belong to the same network: the network owns its addresses, so the present element is
    /// stale and is replaced. An element of another network may belong to a living pod. Then the later one gets an
    /// element in a second set (see `overlap`).
    Network,
}

/// An element with the name of its set, which is in the table of its [`Layout`].
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

/// Returns whether the set has exactly this element, with the same comment and data.
fn is_in_place(nft: &mut Nft, table: Table<'_>, placed: &Placed) -> Result<bool> {
    Ok(nft.element(table.set(&placed.set), &placed.element.key)?.as_ref() == Some(&placed.element))
}

/// Returns the names of all present sets of the part, second sets included. Without the table there are none.
pub(super) fn our_sets<L: Layout>(nft: &mut Nft) -> Result<Vec<String>> {
    let mut sets = nft.sets(L::TABLE)?;
    sets.retain(|set| L::is_ours(first_name(set)));
    Ok(sets)
}

/// Returns the rules in the chains of the part. The kernel can list one chain alone, so other parts cost nothing if
/// there is only one.
fn our_rules<L: Layout>(nft: &mut Nft) -> Result<Vec<Rule>> {
    let only = match L::CHAINS {
        [only] => Some(*only),
        _ => None,
    };
    let mut rules = nft.rules(L::TABLE, only)?;
    rules.retain(|rule| L::CHAINS.contains(&rule.chain.as_str()));
    Ok(rules)
}

/// Returns whether the table has at least one chain of the part.
fn lists_part<L: Layout>(nft: &mut Nft) -> Result<bool> {
    Ok(nft.chains(L::TABLE)?.iter().any(|chain| L::CHAINS.contains(&chain.as_str())))
}
