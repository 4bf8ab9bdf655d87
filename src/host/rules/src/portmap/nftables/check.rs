//! Checks every element with its owner and target, and the rules over the sets.

use std::collections::BTreeSet;

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

use super::names::{DISPATCH, GUARD, OUTPUT, POSTROUTING, PREROUTING, Portmap, has_ports};
use super::{services, wanted};
use crate::elements::{self, Layout};
use crate::portmap::Forward;

/// Returns what is missing or wrong, or `None` if all mappings are in place.
pub(in crate::portmap) fn check(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> netlink::Result<Option<String>> {
    let wanted = wanted(owner, forward);
    let mut used = BTreeSet::new();
    // The elements are looked up one by one, because a set has the ports of all pods.
    for placed in &wanted {
        let (place, key) = (Portmap::TABLE.set(&placed.set), &placed.element.key);
        let found = elements::look_up::<Portmap>(nft, owner, &placed.set, key)?;
        match found.or_fault(place, key) {
            Ok(found) if found.element.data == placed.element.data => drop(used.insert(found.set)),
            Ok(_) => return Ok(Some(format!("element {key} of {place} leads elsewhere"))),
            Err(fault) => return Ok(Some(fault)),
        }
    }
    missing_rule(nft, &used, forward)
}

/// Returns the first rule that is missing: over one of the `sets`, to the rules over them, or of the guard of
/// localhost.
fn missing_rule(
    nft: &mut Nft,
    sets: &BTreeSet<String>,
    forward: &Forward,
) -> netlink::Result<Option<String>> {
    let rules = nft.rules(Portmap::TABLE, None)?;
    for set in sets {
        let (chain, action) = if has_ports(set) { (DISPATCH, "nat") } else { (POSTROUTING, "masq") };
        if !rules.iter().any(|rule| rule.chain == chain && rule.uses_set(set) && rule.has(action)) {
            return Ok(Some(format!("chain {} has no rule for {set}", Portmap::TABLE.chain(chain))));
        }
    }
    for chain in [PREROUTING, OUTPUT] {
        if !rules.iter().any(|rule| rule.chain == chain && rule.target().as_deref() == Some(DISPATCH)) {
            let chain = Portmap::TABLE.chain(chain);
            return Ok(Some(format!("chain {chain} has no rule that leads to {DISPATCH}")));
        }
    }
    if forward.localhost().is_some() && rules.iter().filter(|rule| rule.chain == GUARD).count() < 2 {
        let chain = Portmap::TABLE.chain(GUARD);
        return Ok(Some(format!("chain {chain} has no rule that keeps others from 127.0.0.0/8")));
    }
    services::missing(nft, &rules)
}
