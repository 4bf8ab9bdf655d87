//! Forwarding in nf_tables: chains in the table `inet cnimble`.
//! ```text
//! chain admin { }                          the operator's
//! chain forward-policy {
//!     iifname @forward-bridges oifname @forward-bridges iifname . oifname != @forward-inside drop
//! }
//! chain forward {
//!     type filter hook forward priority filter; policy accept;
//!     jump admin
//!     jump forward-policy
//!     ip daddr @forward4 ct state established,related accept
//!     ip saddr @forward4 accept
//! }
//! ```
//! A pod is one element for each address. A bridge with a policy is one, and a pair with itself unless isolated.

mod check;
mod layout;
mod policy;

use std::net::IpAddr;

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Element, Key, Nft};

use super::{Forward, Leaving, Policy};
use crate::elements::{self, Changes, Layout, Placed};
pub(super) use check::check;
use layout::{ADMIN, BRIDGES, INSIDE, pair, pods};
pub(crate) use layout::{Forwarding, address};
pub(super) use policy::{When, add_policy, any_pod, remove_policy, remove_unused};
pub(crate) use policy::{bridge, policies};
use policy::{forget_others, policy_comment};

fn wanted(owner: &Owner, forward: &Forward) -> Vec<Placed> {
    let placed = |set: &str, key: Key, comment: &str| Placed {
        set: set.to_owned(),
        element: Element::new(key, comment),
    };
    let comment = policy_comment(forward.policy);
    let policies = forward.policed().iter().flat_map(|bridge| {
        let inside = (forward.policy == Policy::SameBridge).then(|| placed(INSIDE, pair(bridge), comment));
        inside.into_iter().chain([placed(BRIDGES, Key::ifname(bridge), comment)])
    });
    policies.chain(of_pod(owner, &forward.addrs)).collect()
}

fn of_pod(owner: &Owner, addrs: &[IpAddr]) -> Vec<Placed> {
    let comment = owner.comment();
    let placed = |ip: &IpAddr| Placed {
        set: pods(*ip).to_owned(),
        element: Element::new(Key::ip(*ip), comment.as_str()),
    };
    addrs.iter().map(placed).collect()
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, forward: &Forward) -> netlink::Result<Changes> {
    let mut changes = elements::insert::<Forwarding>(nft, &wanted(owner, forward))?;
    if let Err(err) = forget_others(nft, forward, &mut changes) {
        elements::revert::<Forwarding>(nft, &changes)?;
        return Err(err);
    }
    Ok(changes)
}

/// Returns whether the pod's bridge has a policy.
pub(super) fn remove(nft: &mut Nft, owner: &Owner, leaving: &Leaving<'_>) -> netlink::Result<bool> {
    elements::remove::<Forwarding>(nft, owner, &of_pod(owner, leaving.addrs))?;
    for interface in leaving.interfaces {
        if nft.element(Forwarding::TABLE.set(BRIDGES), &Key::ifname(interface))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) fn admin_rules(nft: &mut Nft) -> netlink::Result<usize> {
    Ok(nft.rules(Forwarding::TABLE, Some(ADMIN))?.len())
}
