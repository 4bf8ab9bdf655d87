//! Finds ports that rules in the form of the Go plugins lead to another container (see [`mod@reference`]). Our iptables
//! backend makes such rules, too.
//!
//! A packet meets these chains before ours. So a container keeps a port that it has, and an ADD of another one fails. A
//! rule counts under all its conditions, unless its container is certainly gone.

use std::net::IpAddr;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::IfPresent as _;
use cnimble_netlink::nft::{Destination, Family, Nft, Rule, Table};

use super::holder::{Holder, IsGone, refusal};
use super::{Forward, Mapping, reference};
use crate::backend::Refused;
use crate::failures::UNSUPPORTED;
use crate::go_chains::DNAT;
use crate::xtables::{self, in_chain, legacy_rules, nat};

/// A rule that takes packets of a wanted port.
struct TakenPort {
    mapping: Mapping,
    holder: Holder,
    place: String,
}

/// Whether the container itself has rules in the form of the Go plugins, from an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HasOwn(bool);

/// Fails with [`Refused::Taken`] if a port belongs to another container. First removes the rules of a container that
/// `is_gone`. Returns whether the owner's container has such rules itself; they are no obstacle, and [`replace_own`]
/// removes them.
pub(super) fn refuse(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
) -> Result<HasOwn, Refused> {
    let mut has_own = HasOwn::default();
    while let Some(TakenPort { mapping, holder, place }) = find_taken_port(nft, owner, forward, &mut has_own)?
    {
        if !is_gone(&holder) {
            let by = format!("{holder}, by {place}, in the form of the Go plugins");
            return Err(Refused::Taken(refusal(&format!("host port {}", mapping.port_text()), &by)));
        }
        log::info!("{place} of {holder} is removed: its container is gone");
        remove(nft, &holder).map_err(Refused::Taken)?;
    }
    Ok(has_own)
}

/// Removes the container's own rules of an earlier run, if [`refuse`] has found any. They would lead its ports to the
/// old addresses. Call this once the new mappings are in place.
pub(super) fn replace_own(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    has_own: HasOwn,
) -> Result<(), Error> {
    if !has_own.0 {
        return Ok(());
    }
    reference::remove_chains(nft, owner)?;
    reference::remove_legacy(owner)?;
    remove_own(nft, owner, forward)
}

/// Returns another container that gets one of these ports by rules in the form of the Go plugins.
pub(crate) fn holder_of(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<Option<Holder>, Error> {
    Ok(find_taken_port(nft, owner, forward, &mut HasOwn::default())?.map(|found| found.holder))
}

/// Removes all rules of the container from the Go plugin's nf_tables table of a family, if one of them takes a wanted
/// port. Otherwise they stay, since they name no network and may serve another network of the container.
pub(super) fn remove_own(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<(), Error> {
    let container = &owner.attachment.container_id;
    for (ipv4, family) in [(true, Family::Ipv4), (false, Family::Ipv6)] {
        let targets = forward.targets().filter(|(_, pod)| pod.is_ipv4() == ipv4);
        let wanted: Vec<Mapping> = targets.map(|(mapping, _)| *mapping).collect();
        let table = Table::new(family, reference::GO_TABLE);
        let rules = reference::go_rules(nft, table, container)?;
        if taken(rules.iter().filter(|rule| rule.has("nat")), &wanted).is_some() {
            reference::remove_go_rules(nft, table, container)?;
        }
    }
    Ok(())
}

/// Removes the holder's rules. Without a network only those in the Go plugin's nf_tables table are found, because
/// chains are named by network and container.
fn remove(nft: &mut Nft, holder: &Holder) -> Result<(), Error> {
    let attachment =
        cnimble_cni::Attachment { container_id: holder.container.clone(), ifname: String::new() };
    let owner = Owner { network: holder.network.clone().unwrap_or_default(), attachment };
    if nft.is_supported()? {
        reference::remove_nf_tables(nft, &owner)?;
    }
    reference::remove_legacy(&owner)
}

/// Returns whether a table is among those of nf_tables.
fn has_table(tables: &[(Family, String)], family: Family, name: &str) -> bool {
    tables.iter().any(|(of, table)| *of == family && table == name)
}

/// Returns the first rule of another container that takes a wanted port. Notes in `has_own` whether the owner's
/// container has rules; after a find the rest is not read.
fn find_taken_port(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    has_own: &mut HasOwn,
) -> Result<Option<TakenPort>, Refused> {
    let nf_tables = nft.tables().default_for(&UNSUPPORTED).map_err(Refused::Kernel)?;
    for (ipv4, family) in [(true, Family::Ipv4), (false, Family::Ipv6)] {
        let wanted: Vec<Mapping> =
            forward.targets().filter(|(_, pod)| pod.is_ipv4() == ipv4).map(|(mapping, _)| *mapping).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut found = None;
        if has_table(&nf_tables, family, "nat") {
            found = in_chains(nft, owner, family, &wanted, has_own)?;
        }
        if found.is_none() && has_table(&nf_tables, family, reference::GO_TABLE) {
            found = in_go_table(nft, owner, Table::new(family, reference::GO_TABLE), &wanted, has_own)?;
        }
        if found.is_none() {
            let rules = legacy_rules(family).map_err(Refused::Taken)?.unwrap_or_default();
            found = in_legacy(&rules, owner, &wanted, has_own);
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn in_chains(
    nft: &mut Nft,
    owner: &Owner,
    family: Family,
    wanted: &[Mapping],
    has_own: &mut HasOwn,
) -> cnimble_netlink::Result<Option<TakenPort>> {
    for jump in nft.rules(nat(family), Some(DNAT.parent))? {
        let Some(chain) = jump.target().filter(|chain| DNAT.has(chain)) else {
            continue;
        };
        let Some(holder) = reference::holder(&jump.comment) else { continue };
        // The jump names the ports of the chain. If a chain has several jumps, each names some of them.
        let to = jump.destination();
        has_own.0 |= is_same(&holder, owner);
        if is_same(&holder, owner) || !wanted.iter().any(|mapping| may_take(&to, mapping)) {
            continue;
        }
        let rules = nft.rules(nat(family), Some(&chain))?;
        if let Some(mapping) = taken(rules.iter(), wanted) {
            let place = format!("chain {chain} in iptables' table nat");
            return Ok(Some(TakenPort { mapping, holder, place }));
        }
    }
    Ok(None)
}

fn in_go_table(
    nft: &mut Nft,
    owner: &Owner,
    table: Table<'_>,
    wanted: &[Mapping],
    has_own: &mut HasOwn,
) -> cnimble_netlink::Result<Option<TakenPort>> {
    for rule in nft.rules(table, None)? {
        let holder = Holder { network: None, container: rule.comment.clone(), tag: None };
        let maps = reference::GO_CHAINS.contains(&rule.chain.as_str()) && rule.has("nat");
        has_own.0 |= maps && is_same(&holder, owner);
        if !maps || holder.container.is_empty() || is_same(&holder, owner) {
            continue;
        }
        if let Some(mapping) = taken(std::iter::once(&rule), wanted) {
            return Ok(Some(TakenPort {
                mapping,
                holder,
                place: format!("chain {}", table.chain(&rule.chain)),
            }));
        }
    }
    Ok(None)
}

fn in_legacy(rules: &[String], owner: &Owner, wanted: &[Mapping], has_own: &mut HasOwn) -> Option<TakenPort> {
    for jump in rules.iter().filter(|rule| in_chain(rule, DNAT.parent)) {
        let chain = jump.rsplit(' ').next().filter(|chain| DNAT.has(chain));
        let holder = reference::holder(&jump.replace("\\\"", "\""));
        let (Some(chain), Some(holder)) = (chain, holder) else { continue };
        if is_same(&holder, owner) {
            has_own.0 = true;
            continue;
        }
        let ours = rules.iter().filter(|rule| in_chain(rule, chain)).map(|rule| xtables::destination(rule));
        for to in ours {
            if let Some(mapping) = wanted.iter().find(|mapping| takes(&to, mapping)) {
                let place = format!("chain {chain} in iptables' legacy table nat");
                return Some(TakenPort { mapping: *mapping, holder, place });
            }
        }
    }
    None
}

/// Returns whether both are the same container, in whichever network: a port belongs to a container.
fn is_same(holder: &Holder, owner: &Owner) -> bool {
    holder.container == owner.attachment.container_id
}

/// Returns the first wanted mapping of which a rule takes packets.
fn taken<'r>(mut rules: impl Iterator<Item = &'r Rule>, wanted: &[Mapping]) -> Option<Mapping> {
    rules.find_map(|rule| {
        let to = rule.destination();
        wanted.iter().find(|mapping| takes(&to, mapping)).copied()
    })
}

/// Returns whether a rule that names protocol and ports takes some of a mapping's packets.
fn takes(to: &Destination, mapping: &Mapping) -> bool {
    let (Some(_), false) = (to.protocol, to.ports.is_empty()) else { return false };
    may_take(to, mapping) && overlaps(to.address, mapping)
}

/// Returns whether protocol and ports of a rule fit the mapping. What a rule doesn't name fits.
fn may_take(to: &Destination, mapping: &Mapping) -> bool {
    to.protocol.is_none_or(|protocol| protocol == mapping.protocol.number())
        && (to.ports.is_empty() || to.ports.iter().any(|ports| ports.contains(&mapping.host_port)))
}

/// Returns whether an address of the host fits the mapping's. `None` is all addresses.
fn overlaps(address: Option<IpAddr>, mapping: &Mapping) -> bool {
    address.is_none_or(|address| mapping.address().is_none_or(|wanted| wanted == address))
}
