//! Ports that rules in the form of the Go plugins lead away, also by our iptables backend (see [`mod@reference`]).
//!
//! Their chains see a packet before ours. A pod keeps a port that it serves, and a new one gets an error. A rule counts under all conditions, unless its container is certainly gone.

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

struct Found {
    mapping: Mapping,
    holder: Holder,
    place: String,
}

/// Whether there are rules of the container itself, by an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HasOwn(bool);

/// Removes the rules of a container that `is_gone`.
pub(super) fn refuse(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
) -> Result<HasOwn, Refused> {
    let mut has_own = HasOwn::default();
    while let Some(Found { mapping, holder, place }) = find(nft, owner, forward, &mut has_own)? {
        if !is_gone(&holder) {
            let by = format!("{holder}, by {place}, in the form of the Go plugins");
            return Err(Refused::Taken(refusal(&format!("host port {}", mapping.port_text()), &by)));
        }
        log::info!("{place} of {holder} is removed: its container is gone");
        remove(nft, &holder).map_err(Refused::Taken)?;
    }
    Ok(has_own)
}

/// Removes the container's own rules, which would lead its ports to where an earlier run of it was.
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

/// The other container that rules in the form of the Go plugins lead a port to.
pub(crate) fn holder_of(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<Option<Holder>, Error> {
    Ok(find(nft, owner, forward, &mut HasOwn::default())?.map(|found| found.holder))
}

/// Removes the container's own rules of an earlier run from the Go plugin's table, if one leads a wanted port away.
/// Others may be of its other network, which they don't name.
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

fn remove(nft: &mut Nft, holder: &Holder) -> Result<(), Error> {
    let attachment =
        cnimble_cni::Attachment { container_id: holder.container.clone(), ifname: String::new() };
    let owner = Owner { network: holder.network.clone().unwrap_or_default(), attachment };
    if nft.is_supported()? {
        reference::remove_nf_tables(nft, &owner)?;
    }
    reference::remove_legacy(&owner)
}

fn find(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    has_own: &mut HasOwn,
) -> Result<Option<Found>, Refused> {
    let nf_tables = nft.tables().default_for(&UNSUPPORTED).map_err(Refused::Kernel)?;
    for (ipv4, family) in [(true, Family::Ipv4), (false, Family::Ipv6)] {
        let wanted: Vec<Mapping> =
            forward.targets().filter(|(_, pod)| pod.is_ipv4() == ipv4).map(|(mapping, _)| *mapping).collect();
        if wanted.is_empty() {
            continue;
        }
        let has = |name: &str| nf_tables.iter().any(|table| *table == (family, name.to_owned()));
        let mut found = None;
        if has("nat") {
            found = in_chains(nft, owner, family, &wanted, has_own)?;
        }
        if found.is_none() && has(reference::GO_TABLE) {
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
) -> cnimble_netlink::Result<Option<Found>> {
    for jump in nft.rules(nat(family), Some(DNAT.parent))? {
        let Some(chain) = jump.target().filter(|chain| DNAT.has(chain)) else {
            continue;
        };
        let Some(holder) = reference::holder(&jump.comment) else { continue };
        // It has all the ports of the chain, or some.
        let to = jump.destination();
        has_own.0 |= is_same(&holder, owner);
        if is_same(&holder, owner) || !wanted.iter().any(|mapping| may_take(&to, mapping)) {
            continue;
        }
        let rules = nft.rules(nat(family), Some(&chain))?;
        if let Some(mapping) = taken(rules.iter(), wanted) {
            let place = format!("chain {chain} in iptables' table nat");
            return Ok(Some(Found { mapping, holder, place }));
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
) -> cnimble_netlink::Result<Option<Found>> {
    for rule in nft.rules(table, None)? {
        let holder = Holder { network: None, container: rule.comment.clone(), tag: None };
        let maps = reference::GO_CHAINS.contains(&rule.chain.as_str()) && rule.has("nat");
        has_own.0 |= maps && is_same(&holder, owner);
        if !maps || holder.container.is_empty() || is_same(&holder, owner) {
            continue;
        }
        if let Some(mapping) = taken(std::iter::once(&rule), wanted) {
            return Ok(Some(Found { mapping, holder, place: format!("chain {}", table.chain(&rule.chain)) }));
        }
    }
    Ok(None)
}

fn in_legacy(rules: &[String], owner: &Owner, wanted: &[Mapping], has_own: &mut HasOwn) -> Option<Found> {
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
                return Some(Found { mapping: *mapping, holder, place });
            }
        }
    }
    None
}

/// A port belongs to a container, whichever of its networks it leads to.
fn is_same(holder: &Holder, owner: &Owner) -> bool {
    holder.container == owner.attachment.container_id
}

fn taken<'r>(mut rules: impl Iterator<Item = &'r Rule>, wanted: &[Mapping]) -> Option<Mapping> {
    rules.find_map(|rule| {
        let to = rule.destination();
        wanted.iter().find(|mapping| takes(&to, mapping)).copied()
    })
}

/// Whether a rule takes some of a mapping's packets.
fn takes(to: &Destination, mapping: &Mapping) -> bool {
    let (Some(_), false) = (to.protocol, to.ports.is_empty()) else { return false };
    may_take(to, mapping) && overlaps(to.address, mapping)
}

/// Returns whether a rule may take the mapping's packets, as far as it names its packets.
fn may_take(to: &Destination, mapping: &Mapping) -> bool {
    to.protocol.is_none_or(|protocol| protocol == mapping.protocol.number())
        && (to.ports.is_empty() || to.ports.iter().any(|ports| ports.contains(&mapping.host_port)))
}

fn overlaps(address: Option<IpAddr>, mapping: &Mapping) -> bool {
    address.is_none_or(|address| mapping.address().is_none_or(|wanted| wanted == address))
}
