//! Second sets, for one address in two networks.
//!
//! Two networks of a node may give out the same address, and a set holds one element for it, with one owner. So the pod
//! of the later network gets its element in a *second* set with a rule of its own, beside the first set. The second set
//! has the hash of the network behind its name, as in `forward4-b70a60970e0f5394`. Each pod can then leave without the
//! other. The same helps two interfaces of one container that publish the same host port.

use cnimble_cni::Owner;
use cnimble_cni::hash::is_hash16;
use cnimble_cni::owner::tag;
use cnimble_netlink::Result;
use cnimble_netlink::nft::{Element, Key, Nft, Set};

use super::{Claim, Layout, Placed, set};

/// Returns the name of the second set beside `set`, for the owner of a comment. `None` if the comment names no owner.
fn second_name<L: Layout>(set: &str, comment: &str) -> Option<String> {
    Some(format!("{set}-{}", L::suffix(set, comment)?))
}

/// Returns the name of the first set for the name of a second one. Any other name is returned unchanged.
pub(crate) fn first_name(set: &str) -> &str {
    match set.rsplit_once('-') {
        Some((first, hash)) if is_hash16(hash) => first,
        _ => set,
    }
}

/// Returns the element in the second set, if `present` has the same key and belongs to another network. Returns `None`
/// if both belong to the same network, if a comment names no owner, or if the part has no second sets.
pub(super) fn move_elsewhere<L: Layout>(placed: &Placed, present: &Element) -> Option<Placed> {
    let (Some(ours), Some(theirs)) = (tag(&placed.element.comment), tag(&present.comment)) else {
        return None;
    };
    if ours.split('-').next() == theirs.split('-').next() {
        return None;
    }
    move_beside::<L>(placed)
}

/// Returns the same element in the second set. Returns `None` if the set is a second one already, or can't have one.
pub(super) fn move_beside<L: Layout>(placed: &Placed) -> Option<Placed> {
    let is_first = first_name(&placed.set) == placed.set && is_shared::<L>(&placed.set);
    let set = second_name::<L>(&placed.set, &placed.element.comment).filter(|_| is_first)?;
    Some(Placed { set, element: placed.element.clone() })
}

/// Returns whether a set can have a second set beside it, by its [`Claim`]. Pass its [`first_name`].
fn is_shared<L: Layout>(set: &str) -> bool {
    matches!(L::claim(set), Claim::Network | Claim::Container)
}

/// The result of [`look_up`].
#[derive(Debug)]
pub(crate) enum LookUp {
    /// The owner's element, in the first or the second set.
    Own(Placed),
    /// The owner has no element. Another owner has this one, with the same key in the first set.
    Foreign(Element),
    /// Neither set has an element of the owner, and the first one has none with the key.
    Missing,
}

impl LookUp {
    /// Returns the owner's element, or a sentence for CHECK that says what is wrong with the first set.
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

/// Looks for the owner's element with this key, in the set `name` and in the second set beside it.
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

/// Looks for the owner's element with this key in the second set alone. Returns `None` if `name` can't have a second
/// set.
pub(super) fn look_beside<L: Layout>(
    nft: &mut Nft,
    owner: &Owner,
    name: &str,
    key: &Key,
) -> Result<Option<Placed>> {
    if !is_shared::<L>(first_name(name)) {
        return Ok(None);
    }
    let Some(set) = second_name::<L>(name, &owner.comment()) else { return Ok(None) };
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
            let beside = second_name::<Masquerade>(name, comment).unwrap();
            assert_eq!(beside, format!("{name}-b70a60970e0f5394"));
            assert_eq!((first_name(&beside), first_name(name)), (name, name));
        }
        assert_eq!(second_name::<Masquerade>("forward-bridges", "ingressPolicy: open"), None);
        assert_eq!(first_name("masq-10.1.0.0/16-b70a60970e0f539"), "masq-10.1.0.0/16-b70a60970e0f539");
    }
}
