//! One address, two networks.
//!
//! Two networks of a node may give out the same address, and a set has one element for it, with one owner. So the later
//! network gets a set and a rule of its own *beside* the first, named with the network's hash:
//! `forward4-b70a60970e0f5394`. Either pod may go alone. So may two interfaces of a container with one host port.

use cnimble_cni::Owner;
use cnimble_cni::hash::is_hash16;
use cnimble_cni::owner::tag;
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Element, Key, Nft, Set};

use super::{Claim, Layout, Placed, set};

/// The name of the set beside `set` for the owner of a comment.
fn second<L: Layout>(set: &str, comment: &str) -> Option<String> {
    Some(format!("{set}-{}", L::suffix(set, comment)?))
}

/// The set that a set is beside, or itself.
pub(crate) fn first(set: &str) -> &str {
    match set.rsplit_once('-') {
        Some((first, hash)) if is_hash16(hash) => first,
        _ => set,
    }
}

/// The set beside, if `present` is another network's.
pub(super) fn elsewhere<L: Layout>(placed: &Placed, present: &Element) -> Option<Placed> {
    let (Some(ours), Some(theirs)) = (tag(&placed.element.comment), tag(&present.comment)) else {
        return None;
    };
    if ours.split('-').next() == theirs.split('-').next() {
        return None;
    }
    beside::<L>(placed)
}

/// The same element in the set beside its own, if there may be one.
pub(super) fn beside<L: Layout>(placed: &Placed) -> Option<Placed> {
    let is_first = first(&placed.set) == placed.set && is_shared::<L>(&placed.set);
    let set = second::<L>(&placed.set, &placed.element.comment).filter(|_| is_first)?;
    Some(Placed { set, element: placed.element.clone() })
}

fn is_shared<L: Layout>(set: &str) -> bool {
    matches!(L::claim(set), Claim::Network | Claim::Container)
}

#[derive(Debug)]
pub(crate) enum LookUp {
    Own(Placed),
    Foreign(Element),
    Missing,
}

impl LookUp {
    pub(crate) fn or_fault(self, set: Set<'_>, key: &Key) -> std::result::Result<Placed, String> {
        match self {
            LookUp::Own(placed) => Ok(placed),
            LookUp::Foreign(other) => {
                Err(format!("element {key} of set {set} is another's: {}", other.comment))
            }
            LookUp::Missing => Err(format!("set {set} has no element {key}")),
        }
    }
}

/// Looks for the owner's element with this key in a set, and beside it.
pub(crate) fn look_up<L: Layout>(nft: &mut Nft, owner: &Owner, name: &str, key: &Key) -> Result<LookUp> {
    let present = nft.element(set::<L>(name), key)?;
    if let Some(element) = present.as_ref().filter(|element| owner.owns(&element.comment)) {
        return Ok(LookUp::Own(Placed { set: name.to_owned(), element: element.clone() }));
    }
    Ok(match (look_beside::<L>(nft, owner, name, key)?, present) {
        (Some(placed), _) => LookUp::Own(placed),
        (None, Some(other)) => LookUp::Foreign(other),
        (None, None) => LookUp::Missing,
    })
}

pub(super) fn look_beside<L: Layout>(
    nft: &mut Nft,
    owner: &Owner,
    name: &str,
    key: &Key,
) -> Result<Option<Placed>> {
    if !is_shared::<L>(first(name)) {
        return Ok(None);
    }
    let Some(set) = second::<L>(name, &owner.comment()) else { return Ok(None) };
    let element = nft.element(self::set::<L>(&set), key)?.filter(|present| owner.owns(&present.comment));
    Ok(element.map(|element| Placed { set, element }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masquerade::nftables::Masquerade;

    #[test]
    fn a_set_beside_another_names_its_network() {
        let comment = "b70a60970e0f5394-b85eb1db7af38d45, net: cluster, if: eth0, id: web";
        for name in ["forward4", "masq-fd00-1--/64", "portmap-hairpin-10.1.0.0/16"] {
            let beside = second::<Masquerade>(name, comment).unwrap();
            assert_eq!(beside, format!("{name}-b70a60970e0f5394"));
            assert_eq!((first(&beside), first(name)), (name, name));
        }
        assert_eq!(second::<Masquerade>("forward-bridges", "ingressPolicy: open"), None);
        assert_eq!(first("masq-10.1.0.0/16-b70a60970e0f539"), "masq-10.1.0.0/16-b70a60970e0f539");
    }
}
