//! Adds the policies of bridges, and removes those of unused bridges.

use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::{Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Batch, Key, Nft};

use super::layout::{BRIDGES, Forwarding, INSIDE, has_pods, pair};
use super::{add, elements};
use crate::elements::{Changes, Layout, Placed};
use crate::forward::{Forward, Policy, Unused, table};
use crate::retry::ATTEMPTS;

/// Returns the comment of a policy's elements. It names no owner, because all pods of the bridge share them.
pub(super) fn policy_comment(policy: Policy) -> String {
    format!("ingressPolicy: {policy}")
}

/// Deletes the elements of the bridges' former policy that the new one excludes, and notes them in `changes`.
pub(super) fn forget_others(nft: &mut Nft, forward: &Forward, changes: &mut Changes) -> netlink::Result<()> {
    for bridge in &forward.interfaces {
        let has_inside = match forward.policy {
            Policy::Open => elements::also_delete::<Forwarding>(nft, changes, BRIDGES, &Key::ifname(bridge))?,
            Policy::SameBridge => false,
            Policy::Isolated => true,
        };
        if has_inside {
            elements::also_delete::<Forwarding>(nft, changes, INSIDE, &pair(bridge))?;
        }
    }
    Ok(())
}

/// Adds the bridge's policy without elements of a pod. Does nothing if no other bridge has a policy here, since it
/// would separate nothing. With the policy `open`, deletes the bridge's former one.
pub(in crate::forward) fn add_policy(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> netlink::Result<Changes> {
    if forward.policy != Policy::Open && nft.is_empty(Forwarding::TABLE.set(BRIDGES))? {
        return Ok(Changes::default());
    }
    add(nft, owner, &Forward { addrs: Vec::new(), ..forward.clone() })
}

/// The condition for the removal of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::forward) enum When {
    /// The bridge is unused.
    Unused,
    /// The bridge is unused, or no pod on the host has rules. This is for the bridge of a pod that leaves.
    Idle,
}

/// Removes the policies of all unused bridges.
pub(in crate::forward) fn remove_unused(nft: &mut Nft, unused: Unused<'_>) -> Result<(), Error> {
    let mut bridges = BTreeSet::new();
    for set in [BRIDGES, INSIDE] {
        let elements = nft.elements(Forwarding::TABLE.set(set))?;
        bridges.extend(elements.iter().map(|element| element.key.first_ifname()));
    }
    for bridge in bridges {
        remove_policy(nft, &bridge, unused, When::Unused)?;
    }
    Ok(())
}

/// Removes a bridge's policy if `when` allows it, and then unused sets and the unused part.
///
/// The deletion is bound to the generation in which the bridge was seen. A concurrent ADD makes its port before its
/// rules, so either the port is seen, or the ADD writes the policy again. If the ruleset keeps changing, the policy
/// stays until GC.
pub(in crate::forward) fn remove_policy(
    nft: &mut Nft,
    bridge: &str,
    unused: Unused<'_>,
    when: When,
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let generation = nft.generation()?;
        if !unused(bridge)? && (when == When::Unused || any_pod(nft)?) {
            return Ok(());
        }
        let mut batch = Batch::only_in(generation);
        for (set, key) in [(BRIDGES, Key::ifname(bridge)), (INSIDE, pair(bridge))] {
            if nft.element(Forwarding::TABLE.set(set), &key)?.is_some() {
                batch.delete_element(Forwarding::TABLE.set(set), &key);
            }
        }
        match nft.commit(&batch) {
            Err(err) if err.is(Errno::ERESTART) || err.is(Errno::ENOENT) => {}
            Err(err) => return Err(err.into()),
            Ok(()) => return Ok(elements::drop_all_unused::<Forwarding>(nft)?),
        }
    }
    log::debug!("the policy of {bridge} stays until GC: too much is going on");
    Ok(())
}

/// Returns whether any pod has rules, here or in iptables. Rules tell more than ports: pods that are being deleted at
/// this moment still have a port.
pub(in crate::forward) fn any_pod(nft: &mut Nft) -> Result<bool, Error> {
    for set in nft.sets(Forwarding::TABLE)? {
        if has_pods(&set) && !nft.is_empty(Forwarding::TABLE.set(&set))? {
            return Ok(true);
        }
    }
    table::has_pods(nft)
}

/// Returns the bridge of an element of a policy, or `None` for an element of a pod.
pub(crate) fn bridge(placed: &Placed) -> Option<String> {
    [BRIDGES, INSIDE].contains(&placed.set.as_str()).then(|| placed.element.key.first_ifname())
}

/// Returns the bridges with a policy here, sorted by name.
pub(crate) fn policies(nft: &mut Nft) -> netlink::Result<Vec<(String, Policy)>> {
    let all = [Policy::SameBridge, Policy::Isolated];
    let found = nft.elements(Forwarding::TABLE.set(BRIDGES))?;
    let mut read: Vec<_> = found
        .into_iter()
        .filter_map(|element| {
            let policy = all.into_iter().find(|policy| policy_comment(*policy) == element.comment)?;
            Some((element.key.as_ifname()?, policy))
        })
        .collect();
    read.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(read)
}
