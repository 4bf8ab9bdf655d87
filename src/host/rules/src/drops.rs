//! Tells which chains could drop a packet. Conditions of rules are not evaluated.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use cnimble_cni::Error;
use cnimble_netlink::nft::{Family, Nft, Rule, Table, Verdict};

use super::filter_rule::FilterRule;
use super::masquerade::nftables::GUARD;
use super::xtables;

/// The table of cnimble's plugins.
const OWN: Table<'static> = Table::new(Family::Inet, "cnimble");

/// The tables of nf_tables whose rules have been read. Each is read once, because the kernel needs most of the time for
/// its list where there are thousands of rules.
#[derive(Debug, Default)]
pub struct ReadTables {
    tables: HashMap<String, TableRules>,
}

impl ReadTables {
    /// Returns the rules of a table. The first call reads them, and so does each call after a failure.
    pub fn rules(&mut self, nft: &mut Nft, table: Table<'_>) -> Result<&TableRules, Error> {
        match self.tables.entry(table.to_string()) {
            Entry::Occupied(read) => Ok(read.into_mut()),
            Entry::Vacant(unread) => Ok(unread.insert(TableRules::read(nft, table)?)),
        }
    }
}

/// The chains of one table, as far as they decide whether a packet can be dropped. The policies of base chains are not
/// among these.
#[derive(Debug, Default)]
pub struct TableRules {
    is_own: bool,
    chains: HashMap<String, ChainRules>,
}

#[derive(Debug, Default)]
struct ChainRules {
    /// Whether a rule of the chain itself could drop a packet.
    could_drop: bool,
    rules: Vec<FilterRule>,
}

impl TableRules {
    fn read(nft: &mut Nft, table: Table<'_>) -> Result<Self, Error> {
        let mut found = TableRules { is_own: table == OWN, chains: HashMap::new() };
        for rule in nft.rules(table, None)? {
            let filter_rule = FilterRule::from(&rule);
            let could_drop = rule_could_drop(&rule);
            let chain = found.chains.entry(rule.chain).or_default();
            chain.could_drop |= could_drop;
            chain.rules.push(filter_rule);
        }
        Ok(found)
    }

    /// Returns the rules of a chain in their order. A chain that does not exist has none.
    pub(crate) fn of_chain(&self, name: &str) -> &[FilterRule] {
        self.chains.get(name).map_or(&[], |chain| chain.rules.as_slice())
    }

    /// Returns whether a rule of a base chain, or of a chain that it leads to, could drop a packet.
    pub fn could_drop(&self, base: &str) -> bool {
        // This chain drops only invalid packets. One that begins a connection is valid, and so is its answer.
        if self.is_own && base == GUARD {
            return false;
        }
        let (mut open, mut seen) = (vec![base], HashSet::new());
        while let Some(name) = open.pop() {
            let Some(chain) = self.chains.get(name).filter(|_| seen.insert(name)) else { continue };
            if chain.could_drop {
                return true;
            }
            for rule in &chain.rules {
                if let Some(Verdict::Jump(target) | Verdict::Goto(target)) = &rule.verdict {
                    open.push(target);
                }
            }
        }
        false
    }
}

/// Returns whether a rule could drop a packet. A map can lead to any verdict, and a queue to a program that drops.
fn rule_could_drop(rule: &Rule) -> bool {
    let verdict = rule.verdict();
    let by_map = verdict.is_none() && rule.has("lookup") && !is_translation(rule);
    verdict == Some(Verdict::Drop) || by_map || rule.has("queue")
}

/// Returns whether a rule translates addresses. What it looks up is an address and no verdict.
fn is_translation(rule: &Rule) -> bool {
    ["masq", "nat", "redir"].iter().any(|expression| rule.has(expression))
}

/// Returns the rules and policies of legacy iptables that can drop packets, as commands `iptables -t TABLE -A …` or `-P
/// …`. The kernel's trace of nf_tables does not show them.
pub fn legacy_drops(family: Family) -> Result<Vec<String>, Error> {
    let command = xtables::legacy_command(family, "save").replace("-save", "");
    let mut found = Vec::new();
    for table in xtables::TABLES {
        let Some(saved) = xtables::legacy_table(family, table)? else { continue };
        let lines = saved.lines().filter_map(legacy_drop);
        found.extend(lines.map(|line| format!("{command} -t {table} {line}")));
    }
    Ok(found)
}

/// Returns what follows the table in the command for a line of iptables-save(8), or `None` if the line can't drop
/// packets. Policies look like `:FORWARD DROP [0:0]`.
fn legacy_drop(line: &str) -> Option<String> {
    if let Some(chain) = line.strip_prefix(':') {
        let (chain, rest) = chain.split_once(' ')?;
        return rest.starts_with("DROP ").then(|| format!("-P {chain} DROP"));
    }
    let drops = [" -j DROP", " -j REJECT", " -j NFQUEUE"].iter().any(|target| line.contains(target));
    drops.then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_lines_of_legacy_tables_are_found() {
        assert_eq!(legacy_drop(":FORWARD DROP [0:0]").as_deref(), Some("-P FORWARD DROP"));
        assert_eq!(legacy_drop(":FORWARD ACCEPT [0:0]"), None);
        let rule = "-A FORWARD -i br0 -j REJECT --reject-with icmp-port-unreachable";
        assert_eq!(legacy_drop(rule).as_deref(), Some(rule));
        assert_eq!(legacy_drop("-A FORWARD -j DOCKER"), None);
    }
}
