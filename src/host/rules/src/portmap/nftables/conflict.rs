//! Finds wanted ports that belong to another container.

use std::collections::BTreeSet;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Element, Key, Nft, protocol_name};

use super::names::{Portmap, family, has_ports, is_of_addresses};
use crate::elements::{Layout, Placed, Refusal};
use crate::portmap::holder::{self, Holder};

/// The maximum number of ports that are looked up one by one. For more, the whole set is listed.
const FEW: usize = 8;

/// The address of the host or `None` for all, the number of the protocol, and the port.
type Port = (Option<std::net::IpAddr>, u8, u16);

/// Returns the error for a wanted port that this element maps: code 102, with its owner and target.
pub(super) fn taken(old: &Element) -> Error {
    let port = match old.key.as_port() {
        Some((addr, protocol, port)) => {
            let on = addr.map(|addr| format!(" of {addr}")).unwrap_or_default();
            format!("host port {port}/{}{on}", protocol_name(protocol))
        }
        None => format!("host port {}", old.key),
    };
    let target = old.data.as_ref().and_then(Key::as_service);
    let target = target.map(|(ip, port)| format!(" and leads to {ip} port {port}")).unwrap_or_default();
    let names = old.comment.find("net: ").and_then(|at| old.comment.get(at..)).unwrap_or(&old.comment);
    holder::refusal(&port, &format!("{names}{target}"))
}

/// Returns the owner of an element, or `None` if its comment is not ours.
pub(super) fn holder(element: &Element) -> Option<Holder> {
    Holder::of_comment(&element.comment)
}

/// The wanted ports that are compared with the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// All of them.
    All,
    /// Ports that are wanted in another set. For the same set the kernel itself refuses a key that is taken.
    OfOtherSets,
}

/// Looks in `sets` for ports of other containers that would compete with the wanted ones although the keys differ. A
/// port of one address competes with the same port of all addresses, and with one in a second set or in one with
/// conditions.
///
/// # Errors
/// Fails with [`Refusal::Taken`] and the first such element.
pub(super) fn look_around(
    nft: &mut Nft,
    owner: &Owner,
    wanted: &[Placed],
    sets: &BTreeSet<String>,
    keys: Keys,
) -> Result<(), Refusal> {
    for set in sets.iter().filter(|set| has_ports(set)) {
        let is_ipv4 = family(set).map(|ip| ip.is_ipv4());
        let ports: Vec<Port> = wanted
            .iter()
            .filter(|placed| has_ports(&placed.set) && family(&placed.set).map(|ip| ip.is_ipv4()) == is_ipv4)
            .filter(|placed| keys == Keys::All || placed.set != *set)
            .filter_map(|placed| placed.element.key.as_port())
            .collect();
        for element in suspects(nft, set, &ports)? {
            let Some((addr, protocol, port)) = element.key.as_port() else { continue };
            let collides = ports.iter().any(|(mine, of, number)| {
                (*of, *number) == (protocol, port) && (mine.is_none() || addr.is_none() || *mine == addr)
            });
            let id = &owner.attachment.container_id;
            if collides && !owner.owns(&element.comment) && !Owner::is_of_container(&element.comment, id) {
                return Err(Refusal::Taken(Box::new(Placed { set: set.clone(), element })));
            }
        }
    }
    Ok(())
}

/// Returns the elements of a set that may compete with `ports`. Looks up a few ports one by one, so that the number of
/// other mappings does not matter.
fn suspects(nft: &mut Nft, set: &str, ports: &[Port]) -> cnimble_netlink::Result<Vec<Element>> {
    let place = Portmap::TABLE.set(set);
    let mut keys = Vec::new();
    for (addr, protocol, port) in ports {
        match (is_of_addresses(set), addr) {
            (false, _) => keys.push(Key::port(*protocol, *port)),
            (true, Some(addr)) => keys.push(Key::ip(*addr).and_port(*protocol, *port)),
            (true, None) => return nft.elements(place),
        }
    }
    if keys.len() > FEW {
        return nft.elements(place);
    }
    let mut found = Vec::new();
    for key in keys {
        found.extend(nft.element(place, &key)?);
    }
    Ok(found)
}
