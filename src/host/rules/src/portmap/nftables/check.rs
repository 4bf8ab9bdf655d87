//! CHECK: every element with its owner and target, and the rules over them.

use std::collections::{BTreeSet, HashMap};

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Element, Nft};

use super::names::{DISPATCH, GUARD, OUTPUT, POSTROUTING, PREROUTING, Portmap, has_ports};
use super::wanted;
use crate::elements::{self, Layout};
use crate::portmap::Forward;

/// A missing element or rule, or `None` if all is there.
pub(in crate::portmap) fn check(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> netlink::Result<Option<String>> {
    let wanted = wanted(owner, forward);
    let sets: BTreeSet<&str> = wanted.iter().map(|placed| placed.set.as_str()).collect();
    let mut used = BTreeSet::new();
    for set in sets {
        let place = Portmap::TABLE.set(set);
        let mut listed: HashMap<Vec<u8>, Element> =
            nft.elements(place)?.into_iter().map(|element| (element.key.bytes().to_vec(), element)).collect();
        for placed in wanted.iter().filter(|placed| placed.set == set) {
            let key = &placed.element.key;
            let listed = listed.remove(key.bytes()).filter(|found| owner.owns(&found.comment));
            let (element, set) = match listed {
                Some(element) => (element, set.to_owned()),
                None => match elements::look_up::<Portmap>(nft, owner, set, key)?.or_fault(place, key) {
                    Ok(placed) => (placed.element, placed.set),
                    Err(fault) => return Ok(Some(fault)),
                },
            };
            if element.data != placed.element.data {
                return Ok(Some(format!("element {key} of {place} leads elsewhere")));
            }
            used.insert(set);
        }
    }
    missing_rule(nft, &used, forward)
}

fn missing_rule(
    nft: &mut Nft,
    sets: &BTreeSet<String>,
    forward: &Forward,
) -> netlink::Result<Option<String>> {
    let rules = nft.rules(Portmap::TABLE, None)?;
    let missing = |chain: &str, what: &str| {
        Ok(Some(format!("chain {} has no rule {what}", Portmap::TABLE.chain(chain))))
    };
    for set in sets {
        let (chain, action) = if has_ports(set) { (DISPATCH, "nat") } else { (POSTROUTING, "masq") };
        if !rules.iter().any(|rule| rule.chain == chain && rule.uses_set(set) && rule.has(action)) {
            return missing(chain, &format!("for {set}"));
        }
    }
    for chain in [PREROUTING, OUTPUT] {
        if !rules.iter().any(|rule| rule.chain == chain && rule.target().as_deref() == Some(DISPATCH)) {
            return missing(chain, &format!("that leads to {DISPATCH}"));
        }
    }
    if forward.localhost().is_some() && rules.iter().filter(|rule| rule.chain == GUARD).count() < 2 {
        return missing(GUARD, "that keeps others from 127.0.0.0/8");
    }
    Ok(None)
}
