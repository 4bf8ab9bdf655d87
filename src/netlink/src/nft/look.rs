//! What is there: tables, chains, sets, rules and elements, asked for one by one or listed.

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;

use super::attr::{self, Writer};
use super::batch::{
    self, GETCHAIN, GETRULE, GETSET, GETSETELEM, GETTABLE, NEWCHAIN, NEWRULE, NEWSET, NEWSETELEM,
};
use super::{Chain, Element, Key, Nft, Rule, Set, Table};
use crate::Result;

/// How often elements are listed until no resizing comes in between.
const LISTINGS: usize = 20;

impl Nft {
    /// Whether the table is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn has_table(&mut self, table: Table<'_>) -> Result<bool> {
        let what = format!("look for table {table}");
        self.exists(GETTABLE, table.family, &what, |w| w.text(1, table.name))
    }

    /// Whether the chain is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn has_chain(&mut self, chain: Chain<'_>) -> Result<bool> {
        let what = format!("look for chain {chain}");
        self.exists(GETCHAIN, chain.table.family, &what, |w| {
            w.text(1, chain.table.name);
            w.text(3, chain.name);
        })
    }

    /// Whether the set or map is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn has_set(&mut self, set: Set<'_>) -> Result<bool> {
        let what = format!("look for set {set}");
        self.exists(GETSET, set.table.family, &what, |w| {
            w.text(1, set.table.name);
            w.text(2, set.name);
        })
    }

    /// Whether the chain is there and drops what none of its rules decides about
    /// (`policy drop`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn drops_by_policy(&mut self, chain: Chain<'_>) -> Result<bool> {
        const NFTA_CHAIN_POLICY: u16 = 5;
        const NF_DROP: u32 = 0;
        let what = format!("look for chain {chain}");
        let fill = |w: &mut Writer| {
            w.text(1, chain.table.name);
            w.text(3, chain.name);
        };
        let mut drops = false;
        let there = self.ask(GETCHAIN, chain.table.family, &what, fill, |kind, attrs| {
            drops |= kind == NEWCHAIN && attr::find_u32(attrs, NFTA_CHAIN_POLICY) == Some(NF_DROP);
        })?;
        Ok(there && drops)
    }

    /// The names of the chains of a table; none if there is no table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn chains(&mut self, table: Table<'_>) -> Result<Vec<String>> {
        let what = format!("list the chains of table {table}");
        // The kernel filters by family alone.
        self.list(
            GETCHAIN,
            NEWCHAIN,
            table.family,
            &what,
            |_| {},
            |attrs| {
                let ours = attr::find_text(attrs, 1).as_deref() == Some(table.name);
                ours.then(|| attr::find_text(attrs, 3)).flatten().into_iter().collect()
            },
        )
    }

    /// The names of the sets and maps of a table, without the anonymous ones of rules; none
    /// if there is no table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sets(&mut self, table: Table<'_>) -> Result<Vec<String>> {
        const NFT_SET_ANONYMOUS: u32 = 0x1;
        let what = format!("list the sets of table {table}");
        let listed = self.list(
            GETSET,
            NEWSET,
            table.family,
            &what,
            |w| w.text(1, table.name),
            |attrs| {
                let ours = attr::find_text(attrs, 1).as_deref() == Some(table.name);
                let named = attr::find_u32(attrs, 3).is_none_or(|flags| flags & NFT_SET_ANONYMOUS == 0);
                (ours && named).then(|| attr::find_text(attrs, 2)).flatten().into_iter().collect()
            },
        );
        none_if_missing(listed)
    }

    /// The rules of a chain, or of all chains of a table; none if they aren't there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rules(&mut self, table: Table<'_>, chain: Option<&str>) -> Result<Vec<Rule>> {
        let what = match chain {
            Some(chain) => format!("list the rules of chain {}", table.chain(chain)),
            None => format!("list the rules of table {table}"),
        };
        let fill = |w: &mut Writer| {
            w.text(1, table.name);
            if let Some(chain) = chain {
                w.text(2, chain);
            }
        };
        let listed = self.list(GETRULE, NEWRULE, table.family, &what, fill, |attrs| {
            let ours = attr::find_text(attrs, 1).as_deref() == Some(table.name);
            let rule = if ours { Rule::parse(attrs) } else { None };
            rule.into_iter().filter(|rule| chain.is_none_or(|chain| rule.chain == chain)).collect()
        });
        none_if_missing(listed)
    }

    /// The element with this key.
    ///
    /// # Errors
    /// The kernel's, but not ENOENT, be it for the element, the set or the table.
    pub fn element(&mut self, set: Set<'_>, key: &Key) -> Result<Option<Element>> {
        let what = format!("look for element {key} in set {set}");
        let mut found = None;
        let fill = |w: &mut Writer| batch::write_key(w, set, key);
        let there = self.ask(GETSETELEM, set.table.family, &what, fill, |kind, attrs| {
            if kind == NEWSETELEM {
                found = elements(attrs).into_iter().next();
            }
        })?;
        Ok(found.filter(|_| there))
    }

    /// All elements of a set; none if there is no set or no table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn elements(&mut self, set: Set<'_>) -> Result<Vec<Element>> {
        let what = format!("list the elements of set {set}");
        let fill = |w: &mut Writer| {
            w.text(1, set.table.name);
            w.text(2, set.name);
        };
        // While the kernel's hash table grows or shrinks, the order changes under the listing:
        // what is listed twice is a sign that as many others were left out.
        let mut all = HashMap::new();
        for _ in 0..LISTINGS {
            let listed =
                none_if_missing(self.list(GETSETELEM, NEWSETELEM, set.table.family, &what, fill, elements))?;
            let mut seen = HashSet::with_capacity(listed.len());
            let whole = listed.iter().all(|element| seen.insert(element.key.bytes().to_vec()));
            if whole {
                return Ok(listed);
            }
            all.extend(listed.into_iter().map(|element| (element.key.bytes().to_vec(), element)));
        }
        Ok(all.into_values().collect())
    }

    /// Whether a set has no elements, or isn't there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_empty(&mut self, set: Set<'_>) -> Result<bool> {
        // Linux 6.18 tells it; where it is missing, the elements have to be listed.
        const NFTA_SET_COUNT: u16 = 20;
        let what = format!("count the elements of set {set}");
        let mut count = None;
        let fill = |w: &mut Writer| {
            w.text(1, set.table.name);
            w.text(2, set.name);
        };
        let there = self.ask(GETSET, set.table.family, &what, fill, |kind, attrs| {
            if kind == NEWSET {
                count = attr::find_u32(attrs, NFTA_SET_COUNT);
            }
        })?;
        match count {
            _ if !there => Ok(true),
            Some(count) => Ok(count == 0),
            None => Ok(self.elements(set)?.is_empty()),
        }
    }
}

/// The elements in a reply (`NFTA_SET_ELEM_LIST_ELEMENTS`).
pub(super) fn elements(attrs: &[u8]) -> Vec<Element> {
    attr::find(attrs, 3)
        .map(|list| attr::attrs(list).filter_map(|(_, element)| Element::parse(element)).collect())
        .unwrap_or_default()
}

fn none_if_missing<T>(listed: Result<Vec<T>>) -> Result<Vec<T>> {
    match listed {
        Err(err) if err.is(Errno::ENOENT) => Ok(Vec::new()),
        other => other,
    }
}
