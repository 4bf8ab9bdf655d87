//! Queries for tables, chains, sets, rules and elements: `nft list` and `nft get element`.

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;

use super::{BaseChain, Chain, Element, Family, HookPoint, Key, Nft, Query, Rule, Set, Table, batch};
use crate::uapi::nf_tables::{
    NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSET, NFT_MSG_GETSETELEM, NFT_MSG_GETTABLE,
    NFT_SET_ANONYMOUS, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE,
    NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_COUNT, NFTA_SET_FLAGS,
    NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME,
};
use crate::uapi::nfnetlink::{NF_DROP, NFPROTO_UNSPEC};
use crate::{IfPresent as _, Result};

/// The most listings until the kernel resizes the set during none of them.
const LISTINGS: usize = 20;

impl Nft {
    /// Whether the table is there.
    pub fn has_table(&mut self, table: Table<'_>) -> Result<bool> {
        let what = format!("read table {table}");
        let query = Query::new(NFT_MSG_GETTABLE, table.family, &what);
        Ok(self.find(&query, |w| w.text(NFTA_TABLE_NAME, table.name), |_| Some(()))?.is_some())
    }

    /// Returns the tables of the families that are known here.
    pub fn tables(&mut self) -> Result<Vec<(Family, String)>> {
        self.list(
            &Query { kind: NFT_MSG_GETTABLE, family: NFPROTO_UNSPEC, what: "list tables" },
            |_| {},
            |family, attrs| {
                let named = Family::from_number(family).zip(attrs.text(NFTA_TABLE_NAME));
                named.into_iter().collect()
            },
        )
    }

    /// Whether the chain is there.
    pub fn has_chain(&mut self, chain: Chain<'_>) -> Result<bool> {
        let what = format!("read chain {chain}");
        let query = Query::new(NFT_MSG_GETCHAIN, chain.table.family, &what);
        Ok(self.find(&query, |w| chain.write(w), |_| Some(()))?.is_some())
    }

    /// Whether the set or map is there.
    pub fn has_set(&mut self, set: Set<'_>) -> Result<bool> {
        let what = format!("read set {set}");
        let query = Query::new(NFT_MSG_GETSET, set.table.family, &what);
        Ok(self.find(&query, |w| set.write(w), |_| Some(()))?.is_some())
    }

    /// Whether the chain is there and drops what none of its rules decides about (`policy drop`).
    pub fn drops_by_policy(&mut self, chain: Chain<'_>) -> Result<bool> {
        let what = format!("read chain {chain}");
        let query = Query::new(NFT_MSG_GETCHAIN, chain.table.family, &what);
        let policy = self.find(&query, |w| chain.write(w), |attrs| attrs.u32_be(NFTA_CHAIN_POLICY))?;
        Ok(policy == Some(NF_DROP.cast_unsigned()))
    }

    /// Returns the priority of a base chain. `None` if there is no such chain, or if it isn't a base chain.
    pub fn priority(&mut self, chain: Chain<'_>) -> Result<Option<i32>> {
        let what = format!("read chain {chain}");
        let query = Query::new(NFT_MSG_GETCHAIN, chain.table.family, &what);
        let priority = self.find(
            &query,
            |w| chain.write(w),
            |attrs| attrs.nested(NFTA_CHAIN_HOOK)?.u32_be(NFTA_HOOK_PRIORITY),
        )?;
        Ok(priority.map(u32::cast_signed))
    }

    /// Returns the names of the chains of a table. Without the table there are none.
    pub fn chains(&mut self, table: Table<'_>) -> Result<Vec<String>> {
        let what = format!("list the chains of table {table}");
        // The kernel filters by family alone.
        self.list(
            &Query::new(NFT_MSG_GETCHAIN, table.family, &what),
            |_| {},
            |_, attrs| {
                let ours = attrs.text(NFTA_CHAIN_TABLE).as_deref() == Some(table.name);
                ours.then(|| attrs.text(NFTA_CHAIN_NAME)).flatten().into_iter().collect()
            },
        )
    }

    /// Returns the base chains of all tables for IP packets at this hook.
    pub fn chains_at(&mut self, hook: HookPoint) -> Result<Vec<BaseChain>> {
        self.list(
            &Query { kind: NFT_MSG_GETCHAIN, family: NFPROTO_UNSPEC, what: "list base chains" },
            |_| {},
            |family, attrs| {
                let there = attrs.nested(NFTA_CHAIN_HOOK).and_then(|at| at.u32_be(NFTA_HOOK_HOOKNUM));
                // The hooks of bridges have the same numbers.
                let family = Family::from_number(family).filter(|family| *family != Family::Bridge);
                let drops = attrs.u32_be(NFTA_CHAIN_POLICY) == Some(NF_DROP.cast_unsigned());
                let named = attrs.text(NFTA_CHAIN_TABLE).zip(attrs.text(NFTA_CHAIN_NAME));
                let found = family.zip(named).filter(|_| there == Some(hook as u32));
                found
                    .map(|(family, (table, name))| BaseChain { family, table, name, drops })
                    .into_iter()
                    .collect()
            },
        )
    }

    /// Returns the names of the sets and maps of a table, without the anonymous ones of rules. Without the table there
    /// are none.
    pub fn sets(&mut self, table: Table<'_>) -> Result<Vec<String>> {
        let what = format!("list the sets of table {table}");
        let listed = self.list(
            &Query::new(NFT_MSG_GETSET, table.family, &what),
            |w| w.text(NFTA_SET_TABLE, table.name),
            |_, attrs| {
                let ours = attrs.text(NFTA_SET_TABLE).as_deref() == Some(table.name);
                let named = attrs.u32_be(NFTA_SET_FLAGS).is_none_or(|flags| flags & NFT_SET_ANONYMOUS == 0);
                (ours && named).then(|| attrs.text(NFTA_SET_NAME)).flatten().into_iter().collect()
            },
        );
        listed.default_for(&[Errno::ENOENT])
    }

    /// Returns the rules of a chain, or of all chains of a table. Without the chain or the table there are none.
    pub fn rules(&mut self, table: Table<'_>, chain: Option<&str>) -> Result<Vec<Rule>> {
        self.list_rules(table, chain, |_| false)
    }

    /// Returns the rules of a chain up to the first that is `last`, with it. Without the chain there are none.
    ///
    /// An [`Nft`] of [`Nft::new`] reads no rules behind that one. It drops its socket instead, and with it the tables
    /// that belong to the socket ([`Batch::create_owned_table`](super::Batch::create_owned_table)). One of
    /// [`Nft::open_in`] or [`Nft::open_here`] keeps its socket and reads to the end.
    pub fn rules_until(&mut self, chain: Chain<'_>, last: impl Fn(&Rule) -> bool) -> Result<Vec<Rule>> {
        self.list_rules(chain.table, Some(chain.name), last)
    }

    fn list_rules(
        &mut self,
        table: Table<'_>,
        chain: Option<&str>,
        last: impl Fn(&Rule) -> bool,
    ) -> Result<Vec<Rule>> {
        let what = match chain {
            Some(chain) => format!("list the rules of chain {}", table.chain(chain)),
            None => format!("list the rules of table {table}"),
        };
        let query = Query::new(NFT_MSG_GETRULE, table.family, &what);
        let rules = self.list_until(
            &query,
            |w| {
                w.text(NFTA_RULE_TABLE, table.name);
                if let Some(chain) = chain {
                    w.text(NFTA_RULE_CHAIN, chain);
                }
            },
            |_, attrs| {
                let ours = attrs.text(NFTA_RULE_TABLE).as_deref() == Some(table.name);
                let rule = if ours { Rule::parse(attrs) } else { None };
                rule.into_iter().filter(|rule| chain.is_none_or(|chain| rule.chain == chain)).collect()
            },
            last,
        );
        rules.default_for(&[Errno::ENOENT])
    }

    /// Returns the element with this key. `None` if the element, the set or the table is missing (ENOENT).
    ///
    /// # Errors
    /// Fails if the kernel refuses the query otherwise.
    pub fn element(&mut self, set: Set<'_>, key: &Key) -> Result<Option<Element>> {
        let what = format!("read element {key} of set {set}");
        let query = Query::new(NFT_MSG_GETSETELEM, set.table.family, &what);
        self.find(
            &query,
            |w| batch::write_key(w, set, key),
            |attrs| Element::parse_list(attrs).into_iter().next(),
        )
    }

    /// Returns all elements of a set, or none if there is no set or no table. If the kernel resizes the set during each
    /// of many listings, the result is what they have together.
    pub fn elements(&mut self, set: Set<'_>) -> Result<Vec<Element>> {
        let what = format!("list the elements of set {set}");
        let query = Query::new(NFT_MSG_GETSETELEM, set.table.family, &what);
        // While the kernel's hash table is resized, the order changes under the listing: each repeated entry means that
        // another was left out.
        let mut all = HashMap::new();
        for _ in 0..LISTINGS {
            let listed =
                self.list(&query, |w| set.write_of_elements(w), |_, attrs| Element::parse_list(attrs));
            let listed = listed.default_for(&[Errno::ENOENT])?;
            let mut seen = HashSet::with_capacity(listed.len());
            let whole = listed.iter().all(|element| seen.insert(element.key.bytes().to_vec()));
            if whole {
                return Ok(listed);
            }
            all.extend(listed.into_iter().map(|element| (element.key.bytes().to_vec(), element)));
        }
        Ok(all.into_values().collect())
    }

    /// Whether a set has no elements. It is true, too, if the set isn't there.
    pub fn is_empty(&mut self, set: Set<'_>) -> Result<bool> {
        // NFTA_SET_COUNT is since Linux 6.18; without it, the elements have to be listed.
        let what = format!("count the elements of set {set}");
        let query = Query::new(NFT_MSG_GETSET, set.table.family, &what);
        match self.find(&query, |w| set.write(w), |attrs| Some(attrs.u32_be(NFTA_SET_COUNT)))? {
            None => Ok(true),
            Some(Some(count)) => Ok(count == 0),
            Some(None) => Ok(self.elements(set)?.is_empty()),
        }
    }
}
