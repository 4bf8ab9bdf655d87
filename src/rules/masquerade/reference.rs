//! What the Go reference plugins left: found and removed.
//!
//! They masquerade in two ways. With **iptables** each container has a chain
//! `CNI-<hash>` in the table `nat`, which POSTROUTING jumps to, and each rule has the
//! comment `name: "<network>" id: "<container>"`. Where iptables is the nf_tables variant,
//! all this is nf_tables objects in the tables `ip nat` and `ip6 nat`, and removed by netlink.
//! Only for the legacy variant is a command run, and only if the kernel has a legacy table
//! `nat` in this namespace. With **nftables** there are rules in the chain `masq_checks` of the
//! table `inet cni_plugins_masquerade`, with comments like ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;
use sha2::{Digest, Sha512};

use super::command;
use crate::net;
use crate::net::nft::{Batch, Family, Nft, Rule, Table};
use crate::rules::{Owner, elements};
use crate::spec::{Attachment, Error};

/// Both families of iptables' tables.
pub(super) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
const POSTROUTING: &str = "POSTROUTING";
const GO_TABLE: Table<'static> = Table::new(Family::Inet, "cni_plugins_masquerade");
const GO_CHAIN: &str = "masq_checks";
const ATTEMPTS: usize = 20;

/// The container's chain: 28 characters.
pub(super) fn chain_name(network: &str, container_id: &str) -> String {
    let digest = Sha512::digest(format!("{network}{container_id}").as_bytes());
    let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("CNI-{hex}")
}

/// The comment on all rules of a container.
pub(super) fn comment(network: &str, container_id: &str) -> String {
    format!("name: \"{network}\" id: \"{container_id}\"")
}

fn nat(family: Family) -> Table<'static> {
    Table::new(family, "nat")
}

pub(super) fn owners_chain(owner: &Owner) -> String {
    chain_name(&owner.network, &owner.attachment.container_id)
}

/// Removes the owner's objects from nf_tables, whichever of the two ways made them.
pub(super) fn remove_nf_tables(nft: &mut Nft, owner: &Owner) -> net::Result<()> {
    let chain = owners_chain(owner);
    for family in FAMILIES {
        remove_chain(nft, nat(family), &chain)?;
    }
    let tag = owner.tag();
    remove_go_rules(nft, |comment| elements::tag_of(comment) == tag)
}

/// Removes a chain and all rules of POSTROUTING that jump to it, whatever they match: older
/// releases wrote another source address than newer ones.
fn remove_chain(nft: &mut Nft, table: Table<'_>, chain: &str) -> net::Result<()> {
    for attempt in 1.. {
        if !nft.has_chain(table.chain(chain))? {
            break;
        }
        let mut batch = Batch::new();
        for rule in nft.rules(table, Some(POSTROUTING))? {
            if rule.target().as_deref() == Some(chain) {
                batch.delete_rule(table.chain(POSTROUTING), rule.handle);
            }
        }
        batch.flush_chain(table.chain(chain));
        batch.delete_chain(table.chain(chain));
        match nft.commit(&batch) {
            Ok(()) => break,
            // Somebody else removes it too, or is about to add to it.
            Err(err) if attempt < ATTEMPTS && (err.is(Errno::ENOENT) || err.is(Errno::EBUSY)) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

fn remove_go_rules(nft: &mut Nft, matches: impl Fn(&str) -> bool) -> net::Result<()> {
    for attempt in 1.. {
        let mut batch = Batch::new();
        for rule in nft.rules(GO_TABLE, Some(GO_CHAIN))? {
            if matches(&rule.comment) {
                batch.delete_rule(GO_TABLE.chain(GO_CHAIN), rule.handle);
            }
        }
        match nft.commit(&batch) {
            Ok(()) => break,
            Err(err) if attempt < ATTEMPTS && err.is(Errno::ENOENT) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Whether the Go plugins (or our iptables backend) masquerade this address for the owner.
pub(super) fn is_masqueraded(nft: &mut Nft, owner: &Owner, ip: IpAddr) -> Result<bool, Error> {
    let chain = owners_chain(owner);
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    if nft.probe().is_ok() {
        let jumps = nft.rules(nat(family), Some(POSTROUTING))?;
        if jumps.iter().any(|rule| rule.target().as_ref() == Some(&chain) && mentions(rule, ip)) {
            return Ok(true);
        }
        let rules = nft.rules(GO_TABLE, Some(GO_CHAIN))?;
        if rules.iter().any(|rule| owner.owns(&rule.comment) && rule.has("masq") && mentions(rule, ip)) {
            return Ok(true);
        }
    }
    let jump = format!("-j {chain}");
    Ok(legacy_rules(family)?
        .is_some_and(|rules| rules.iter().any(|r| r.starts_with("-A POSTROUTING ") && r.ends_with(&jump))))
}

/// Whether the rule compares with this address or with the network that it is in.
fn mentions(rule: &Rule, ip: IpAddr) -> bool {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    // A prefix that isn't whole bytes is compared masked.
    rule.has("bitwise") || rule.constants().any(|constant| octets.starts_with(constant))
}

/// Removes what attachments of `network` that aren't in `valid` left in nf_tables.
pub(super) fn gc_nf_tables(nft: &mut Nft, network: &str, valid: &[Attachment]) -> net::Result<()> {
    let keep = kept_chains(network, valid);
    for family in FAMILIES {
        let table = nat(family);
        let chains = nft.chains(table)?;
        if !chains.iter().any(|chain| is_container_chain(chain) && !keep.contains(chain)) {
            continue;
        }
        let mut stale = BTreeSet::new();
        for rule in nft.rules(table, None)? {
            if is_container_chain(&rule.chain)
                && !keep.contains(&rule.chain)
                && rule.comment.starts_with(&comment_prefix(network))
            {
                stale.insert(rule.chain);
            }
        }
        for chain in &stale {
            remove_chain(nft, table, chain)?;
        }
    }
    remove_go_rules(nft, elements::stale(network, valid))
}

fn kept_chains(network: &str, valid: &[Attachment]) -> BTreeSet<String> {
    valid.iter().map(|attachment| chain_name(network, &attachment.container_id)).collect()
}

/// `CNI-` and 24 hex digits; the plugin portmap has `CNI-DN-…` and others beside it.
fn is_container_chain(name: &str) -> bool {
    name.strip_prefix("CNI-")
        .is_some_and(|hash| hash.len() == 24 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn comment_prefix(network: &str) -> String {
    format!("name: \"{network}\" id: \"")
}

/// The commands of the legacy variant.
fn legacy_command(family: Family, action: &str) -> String {
    let iptables = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let legacy = format!("{iptables}-legacy-{action}");
    // Distributions without nf_tables have no other variant, and no name for it.
    if command::find(&legacy).is_some() { legacy } else { format!("{iptables}-{action}") }
}

/// The rules of the legacy table `nat` as iptables-save prints them, if this namespace has it.
fn legacy_rules(family: Family) -> Result<Option<Vec<String>>, Error> {
    // Not /proc/net: that is the namespace of the process's first thread.
    let names = match family {
        Family::Ipv4 => "/proc/thread-self/net/ip_tables_names",
        _ => "/proc/thread-self/net/ip6_tables_names",
    };
    // The file isn't there without the legacy modules, and empty without tables.
    let listed = std::fs::read_to_string(names).unwrap_or_default();
    if !listed.lines().any(|table| table.trim() == "nat") {
        return Ok(None);
    }
    let save = legacy_command(family, "save");
    if command::find(&save).is_none() {
        log::warn!("{names} lists a table nat, but {save} is not installed: it can't be looked into");
        return Ok(None);
    }
    let printed = command::run(&save, &["-t", "nat"], "")?;
    Ok(Some(printed.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect()))
}

/// Removes the owner's chain from iptables' legacy tables.
pub(super) fn remove_legacy(owner: &Owner) -> Result<(), Error> {
    let chain = owners_chain(owner);
    remove_legacy_chains(|rules| {
        let mentioned = rules.iter().any(|rule| in_chain(rule, &chain) || jumps_to(rule, &chain));
        if mentioned { BTreeSet::from([chain.clone()]) } else { BTreeSet::new() }
    })
}

/// Removes what attachments of `network` that aren't in `valid` left in the legacy tables.
pub(super) fn gc_legacy(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let keep = kept_chains(network, valid);
    // As iptables-save quotes it.
    let mark = format!("--comment \"{}", comment_prefix(network).replace('"', "\\\""));
    remove_legacy_chains(|rules| {
        let ours = rules.iter().filter(|rule| rule.contains(&mark));
        ours.filter_map(|rule| rule.split(' ').nth(1))
            .filter(|chain| is_container_chain(chain) && !keep.contains(*chain))
            .map(str::to_owned)
            .collect()
    })
}

fn remove_legacy_chains(choose: impl Fn(&[String]) -> BTreeSet<String>) -> Result<(), Error> {
    for family in FAMILIES {
        for attempt in 1.. {
            let Some(rules) = legacy_rules(family)? else { break };
            let chains = choose(&rules);
            if chains.is_empty() {
                break;
            }
            let mut input = String::from("*nat\n");
            for chain in &chains {
                for rule in rules.iter().filter(|rule| jumps_to(rule, chain)) {
                    input.push_str(&rule.replacen("-A ", "-D ", 1));
                    input.push('\n');
                }
                input.push_str(&format!("-F {chain}\n-X {chain}\n"));
            }
            input.push_str("COMMIT\n");
            match command::run(&legacy_command(family, "restore"), &["--noflush", "--wait=10"], &input) {
                Ok(_) => break,
                // Somebody may have removed some of it in between.
                Err(_) if attempt < 3 => {}
                Err(err) => return Err(err),
            }
        }
    }
    Ok(())
}

fn in_chain(rule: &str, chain: &str) -> bool {
    rule.split(' ').nth(1) == Some(chain)
}

fn jumps_to(rule: &str, chain: &str) -> bool {
    rule.starts_with("-A POSTROUTING ") && rule.ends_with(&format!(" -j {chain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_the_references() {
        let cid = "default-237eaf51aa0c1411433db10b2c8dac0f826f87ac6f48c62084ee84c3d9c20384";
        assert_eq!(chain_name("bridge", cid), "CNI-4f6dd6c08c7e1a901788c768");
        assert!(is_container_chain(&chain_name("bridge", cid)));
        assert!(
            !is_container_chain("CNI-HOSTPORT-DNAT") && !is_container_chain("CNI-DN-4f6dd6c08c7e1a901788c")
        );
    }
}
