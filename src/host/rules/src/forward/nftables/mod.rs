//! Forwards in nf_tables, by chains in the table `inet cnimble`.
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
//! A pod has one element for each address. A bridge with a policy has one, and a second one unless it is isolated: its
//! pair with itself.

mod check;
mod layout;
mod policy;

use std::net::IpAddr;

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Key, Nft};

use super::{Forward, Leaving, Policy};
use crate::elements::{self, Changes, Layout, Placed};
pub(super) use check::check;
use layout::{ADMIN, BRIDGES, INSIDE, pair, pods};
pub(crate) use layout::{Forwarding, address};
pub(super) use policy::{When, add_policy, any_pod, remove_policy, remove_unused};
pub(crate) use policy::{bridge, policies};
use policy::{forget_others, policy_comment};

/// Returns the elements of the pod and those of its bridge's policy.
fn wanted(owner: &Owner, forward: &Forward) -> Vec<Placed> {
    let comment = &policy_comment(forward.policy);
    let policies = forward.policed().iter().flat_map(|bridge| {
        let is_inside = forward.policy == Policy::SameBridge;
        let inside = is_inside.then(|| Placed::new(INSIDE, pair(bridge), comment));
        inside.into_iter().chain([Placed::new(BRIDGES, Key::ifname(bridge), comment)])
    });
    policies.chain(of_pod(owner, &forward.addrs)).collect()
}

fn of_pod(owner: &Owner, addrs: &[IpAddr]) -> Vec<Placed> {
    let comment = owner.comment();
    addrs.iter().map(|ip| Placed::new(pods(*ip), Key::ip(*ip), &comment)).collect()
}

/// Inserts the elements, and deletes those of the bridge's former policy. Nothing stays after an error.
pub(super) fn add(nft: &mut Nft, owner: &Owner, forward: &Forward) -> netlink::Result<Changes> {
    let mut changes = elements::insert::<Forwarding>(nft, &wanted(owner, forward))?;
    if let Err(err) = forget_others(nft, forward, &mut changes) {
        elements::revert::<Forwarding>(nft, &changes)?;
        return Err(err);
    }
    Ok(changes)
}

/// Removes the pod's elements. Returns whether one of its interfaces has a policy, which [`remove_policy`] may remove.
pub(super) fn remove(nft: &mut Nft, owner: &Owner, leaving: &Leaving<'_>) -> netlink::Result<bool> {
    elements::remove::<Forwarding>(nft, owner, &of_pod(owner, leaving.addrs))?;
    for interface in leaving.interfaces {
        if nft.element(Forwarding::TABLE.set(BRIDGES), &Key::ifname(interface))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the number of the operator's rules in the chain `admin`.
pub(crate) fn admin_rules(nft: &mut Nft) -> netlink::Result<usize> {
    Ok(nft.rules(Forwarding::TABLE, Some(ADMIN))?.len())
}
