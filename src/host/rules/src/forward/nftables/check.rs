//! Checks every element of the pod and of its bridge's policy, and the rules over the sets.

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

use super::layout::{ADMIN, BRIDGES, FORWARD, Forwarding, INSIDE, POLICY, pair};
use super::wanted;
use crate::elements::{self, Layout, LookUp, Placed};
use crate::forward::{Forward, Policy};

/// Returns what is missing or wrong, or `None` if everything is in place.
pub(in crate::forward) fn check(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> netlink::Result<Option<String>> {
    let table = Forwarding::TABLE;
    let wanted = wanted(owner, forward);
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut pods = Vec::new();
    for Placed { set, element } in wanted {
        let place = table.set(&set);
        match elements::look_up::<Forwarding>(nft, owner, &set, &element.key)? {
            // This is a policy, whose element has no owner.
            LookUp::Foreign(other) if other.comment == element.comment => {}
            LookUp::Missing => return Ok(Some(format!("set {place} lacks {}", element.key))),
            found => match found.or_fault(place, &element.key) {
                Ok(placed) => pods.push(placed.set),
                Err(fault) => return Ok(Some(fault)),
            },
        }
    }
    for bridge in forward.policed().iter().filter(|_| forward.policy == Policy::Isolated) {
        if nft.element(table.set(INSIDE), &pair(bridge))?.is_none() {
            continue;
        }
        return Ok(Some(format!("set {} has {bridge}, which should be isolated", table.set(INSIDE))));
    }
    missing_rule(nft, &pods, forward)
}

/// Returns the first missing rule: a jump, the rule of policies, or one over the sets `pods`.
fn missing_rule(nft: &mut Nft, pods: &[String], forward: &Forward) -> netlink::Result<Option<String>> {
    let table = Forwarding::TABLE;
    let rules = nft.rules(table, None)?;
    for target in [ADMIN, POLICY] {
        if !rules.iter().any(|rule| rule.chain == FORWARD && rule.target().as_deref() == Some(target)) {
            return Ok(Some(format!("chain {} has no jump to {target}", table.chain(FORWARD))));
        }
    }
    if !forward.policed().is_empty()
        && !rules.iter().any(|rule| rule.chain == POLICY && rule.uses_set(BRIDGES))
    {
        return Ok(Some(format!("chain {} has no rule for bridges", table.chain(POLICY))));
    }
    for set in pods {
        if rules.iter().filter(|rule| rule.chain == FORWARD && rule.uses_set(set)).count() < 2 {
            return Ok(Some(format!("chain {} lacks rules for {set}", table.chain(FORWARD))));
        }
    }
    Ok(None)
}
