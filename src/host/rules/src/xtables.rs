//! The tables of iptables in both variants, as the Go plugins use them. The nf_tables variant has its rules in the
//! tables `ip nat`, `ip6 nat` and so on, which are reached by netlink. A command runs only for the legacy variant, if
//! this namespace has such a table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::nft::{Batch, Destination, Family, Nft, Table};
use cnimble_netlink::{self as netlink, IfPresent as _};

use super::command;
use super::protocol::Protocol;
use super::retry::{retry, retry_command};

pub(super) use super::command::FAMILIES;

/// The tables of iptables. The nf_tables variant keeps its rules in tables of the same names.
pub(super) const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// A variant of iptables. Each has tables of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// The variant of the command `iptables`, whichever that is.
    Usual,
    /// The variant with tables in nf_tables.
    Nft,
    /// The variant with the kernel's old tables.
    Legacy,
}

impl Variant {
    /// Returns the name of a command: `iptables-restore`, `ip6tables-legacy-save` and so on. The nf_tables variant has
    /// the plain name, and `iptables-nft-…` if the plain command is the legacy one.
    pub(super) fn command(self, family: Family, action: &str) -> String {
        let usual = command::tool(family, action);
        match self {
            Variant::Legacy => legacy_command(family, action),
            Variant::Nft if is_legacy(&usual) => usual.replace(action, &format!("nft-{action}")),
            Variant::Nft | Variant::Usual => usual,
        }
    }

    /// Returns the variant that isn't that of the command `iptables`.
    pub(super) fn other_than_usual() -> Self {
        if is_legacy(&command::tool(Family::Ipv4, "restore")) { Variant::Nft } else { Variant::Legacy }
    }

    /// Returns whether the commands `restore` of this variant are installed.
    pub(super) fn is_installed(self) -> bool {
        FAMILIES.into_iter().all(|family| command::find_program(&self.command(family, "restore")).is_some())
    }
}

pub(super) fn nat(family: Family) -> Table<'static> {
    Table::new(family, "nat")
}

/// Removes chains and all rules of `parent` that jump to them, from a table of nf_tables. The matches of the jumps are
/// not compared, because they differ between releases of the Go plugins. Missing chains are no error.
pub(super) fn remove_chains(
    nft: &mut Nft,
    table: Table<'_>,
    parent: &str,
    chains: &[&str],
) -> netlink::Result<()> {
    // A concurrent DEL may remove them (ENOENT), and an ADD may add jumps to them (EBUSY).
    retry(&[Errno::ENOENT, Errno::EBUSY], || {
        let mut present = Vec::new();
        for chain in chains {
            if nft.has_chain(table.chain(chain))? {
                present.push(table.chain(chain));
            }
        }
        if present.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for rule in nft.rules(table, Some(parent))? {
            if rule.target().is_some_and(|target| chains.contains(&target.as_str())) {
                batch.delete_rule(table.chain(parent), rule.handle);
            }
        }
        for chain in present {
            batch.flush_chain(chain);
            batch.delete_chain(chain);
        }
        nft.commit(&batch)
    })
}

/// Removes a chain of the table `nat` that has no jump to it. If there is one by now, the kernel refuses and everything
/// stays.
pub(super) fn remove_unused_chain(nft: &mut Nft, family: Family, chain: &str) -> netlink::Result<()> {
    let table = nat(family);
    let mut batch = Batch::new();
    batch.flush_chain(table.chain(chain));
    batch.delete_chain(table.chain(chain));
    nft.commit(&batch).default_for(&[Errno::ENOENT, Errno::EBUSY])
}

/// Deletes a table whose chains are empty. If it is in use by now, it stays without an error.
pub(super) fn drop_table(nft: &mut Nft, table: Table<'_>) -> Result<(), Error> {
    let mut batch = Batch::new();
    for chain in nft.chains(table)? {
        batch.delete_chain(table.chain(&chain));
    }
    batch.delete_table(table);
    Ok(nft.commit(&batch).default_for(&[Errno::ENOENT, Errno::EBUSY])?)
}

/// Returns the name of a command of the legacy variant: `iptables-legacy-save`, or `iptables-save` if there is no such
/// command. Distributions without the nf_tables variant have no special name for the other.
pub(super) fn legacy_command(family: Family, action: &str) -> String {
    let iptables = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let legacy = format!("{iptables}-legacy-{action}");
    if command::find_program(&legacy).is_some() { legacy } else { format!("{iptables}-{action}") }
}

/// Returns whether a command is of the legacy variant, by the name of the binary behind its link. A name without `nft`
/// is from before there was a choice. False without the command.
pub(super) fn is_legacy(name: &str) -> bool {
    names_nft(name) == Some(false)
}

/// Returns whether a command is surely of the nf_tables variant. False for a script in its place, and without the
/// command.
pub(super) fn is_nf_tables(name: &str) -> bool {
    names_nft(name) == Some(true)
}

/// Returns whether the name of the binary behind a command's link contains `nft`. `None` without the command.
fn names_nft(name: &str) -> Option<bool> {
    let file = command::find_program(name).and_then(|file| std::fs::canonicalize(file).ok())?;
    Some(file.file_name()?.to_string_lossy().contains("nft"))
}

/// Returns the rules of the legacy table `nat`. `None` if there is none, as [`legacy_table`] says.
pub(super) fn legacy_rules(family: Family) -> Result<Option<Vec<String>>, Error> {
    legacy_rules_of(family, "nat")
}

/// Returns the rules of a legacy table, each as a line `-A CHAIN …`. `None` as for [`legacy_table`].
pub(super) fn legacy_rules_of(family: Family, table: &str) -> Result<Option<Vec<String>>, Error> {
    Ok(legacy_table(family, table)?.map(|text| rules_in(&text)))
}

/// Returns the rules of a table as `iptables-save` prints it, each as a line `-A CHAIN …`.
pub(super) fn rules_in(saved: &str) -> Vec<String> {
    saved.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect()
}

/// Returns whether the policy of a base chain in a saved table is DROP.
pub(super) fn drops(saved: &str, chain: &str) -> bool {
    let policy = format!(":{chain} DROP ");
    saved.lines().any(|line| line.starts_with(&policy))
}

/// Returns the kernel's list of legacy tables. It is not that of /proc/net, which shows the namespace of the process's
/// first thread.
fn legacy_names(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "/proc/thread-self/net/ip_tables_names",
        _ => "/proc/thread-self/net/ip6_tables_names",
    }
}

/// Returns whether this namespace has a legacy table.
pub(super) fn has_legacy(family: Family, table: &str) -> bool {
    // Without the legacy modules the file does not exist. Without tables it is empty.
    let listed = std::fs::read_to_string(legacy_names(family)).unwrap_or_default();
    listed.lines().any(|name| name.trim() == table)
}

/// Returns a legacy table as `iptables-save` prints it. `None` if this namespace has no such table. Also `None`, with a
/// warning in the log, if the command that could print it is not installed.
pub(super) fn legacy_table(family: Family, table: &str) -> Result<Option<String>, Error> {
    if !has_legacy(family, table) {
        return Ok(None);
    }
    if let Some(why) = unreadable_legacy_table(family, table) {
        log::warn!("{why}");
        return Ok(None);
    }
    command::run(&legacy_command(family, "save"), &["-t", table], "").map(Some)
}

/// Returns why a legacy table can't be read, although this namespace has it: the command that prints it is not
/// installed. `None` if it can be read, and without such a table.
pub(super) fn unreadable_legacy_table(family: Family, table: &str) -> Option<String> {
    let save = legacy_command(family, "save");
    // The command of the nf_tables variant prints other tables.
    let is_readable = command::find_program(&save).is_some() && !is_nf_tables(&save);
    if is_readable || !has_legacy(family, table) {
        return None;
    }
    let names = legacy_names(family);
    Some(format!(
        "{names} lists a table {table}, but no command of the legacy variant of iptables is installed: it can't be \
         looked into"
    ))
}

/// Returns the line that deletes a rule, of a saved line `-A CHAIN …`.
pub(super) fn deletion(rule: &str) -> String {
    rule.replacen("-A ", "-D ", 1)
}

/// Makes all changes to a legacy table, or none. Without changes it runs no command.
pub(super) fn restore_legacy(family: Family, table: &str, lines: &[String]) -> Result<(), Error> {
    if lines.is_empty() {
        Ok(())
    } else {
        command::restore_by(&legacy_command(family, "restore"), table, lines)
    }
}

/// Removes the chains that `choose` finds among the rules of the legacy table `nat`, and the jumps of `parent` to them,
/// in both families. `choose` may run several times, because a failed removal is repeated.
pub(super) fn remove_legacy_chains(
    parent: &str,
    choose: impl Fn(&[String]) -> BTreeSet<String>,
) -> Result<(), Error> {
    for family in FAMILIES {
        retry_command(|| {
            let rules = legacy_rules(family)?.unwrap_or_default();
            restore_legacy(family, "nat", &removal(&rules, parent, &choose(&rules)))
        })?;
    }
    Ok(())
}

/// Removes a chain and the jumps of `parent` to it from the legacy table `nat` of both families.
pub(super) fn remove_legacy_chain(parent: &str, chain: &str) -> Result<(), Error> {
    remove_legacy_chains(parent, |rules| {
        let exists = rules.iter().any(|rule| in_chain(rule, chain) || jumps_to(rule, parent, chain));
        exists.then(|| chain.to_owned()).into_iter().collect()
    })
}

/// Returns the lines that remove chains and the jumps of `parent` to them.
pub(super) fn removal(rules: &[String], parent: &str, chains: &BTreeSet<String>) -> Vec<String> {
    let mut lines = Vec::new();
    for chain in chains {
        let jumps = rules.iter().filter(|rule| jumps_to(rule, parent, chain));
        lines.extend(jumps.map(|rule| deletion(rule)));
        lines.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    lines
}

/// Returns whether a saved line `-A CHAIN …` is in this chain.
pub(super) fn in_chain(rule: &str, chain: &str) -> bool {
    rule.split(' ').nth(1) == Some(chain)
}

/// Returns the packets that a saved rule names: protocol, ports and a single address of destination. What is negated,
/// or a network, is left out, as if the rule did not name it.
pub(super) fn destination(rule: &str) -> Destination {
    let words: Vec<&str> = rule.split(' ').collect();
    let ports = value_of("--dport", &words).or_else(|| value_of("--dports", &words)).unwrap_or_default();
    let ports = ports.split(',').filter_map(|ports| {
        let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    let protocol = value_of("-p", &words).and_then(|name| match Protocol::parse(name) {
        Some(protocol) => Some(protocol.number()),
        None => name.parse().ok(),
    });
    Destination { protocol, ports: ports.collect(), address: value_of("-d", &words).and_then(parse_address) }
}

/// Returns the word behind an option of a saved rule. Returns `None` without the option, or if it is negated.
fn value_of<'a>(option: &str, words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == option)?;
    // A `!` in front of the option negates it.
    let negated = at.checked_sub(1).and_then(|before| words.get(before)) == Some(&"!");
    words.get(at + 1).filter(|_| !negated).copied()
}

/// Reads an address with or without its prefix length. Returns `None` for a network.
fn parse_address(text: &str) -> Option<IpAddr> {
    let net: IpNetwork = text.parse().ok()?;
    (net.prefix() == if net.is_ipv4() { 32 } else { 128 }).then_some(net.ip())
}

/// Returns whether a saved rule of `parent` jumps to `chain`. The jump must be at the end, without options.
pub(super) fn jumps_to(rule: &str, parent: &str, chain: &str) -> bool {
    in_chain(rule, parent) && rule.ends_with(&format!(" -j {chain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_what_iptables_prints() {
        let rule =
            "-A CNI-DN-x -d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.0.0.2:53";
        let to = destination(rule);
        assert_eq!((to.protocol, to.ports.as_slice()), (Some(17), &[53..=53][..]));
        assert_eq!(to.address, Some(IpAddr::from([192, 0, 2, 1])));
        let to = destination("-A X ! -d 192.0.2.1/32 -p tcp -m multiport --dports 80,90:99 -j Y");
        assert_eq!((to.protocol, to.address), (Some(6), None));
        assert_eq!(to.ports, [80..=80, 90..=99]);
    }
}
