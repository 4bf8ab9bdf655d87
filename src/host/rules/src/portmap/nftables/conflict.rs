//! Ports that are another container's.

use std::collections::BTreeSet;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Element, Key, Nft, protocol_name};

use super::names::{Portmap, family, has_ports, is_of_addresses};
use crate::elements::{Layout, Placed, Refusal};
use crate::portmap::holder::{self, Holder};

/// A longer list of ports is not looked up one by one: a set is listed.
const FEW: usize = 8;

/// An address of the host, if any, a protocol and a port.
type Port = (Option<std::net::IpAddr>, u8, u16);

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

pub(super) fn holder(element: &Element) -> Option<Holder> {
    Holder::of_comment(&element.comment)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    All,
    /// Ports that are wanted in another set. The kernel itself refuses the very same key in the very same set.
    OfOtherSets,
}

/// Looks for ports of other containers that the kernel wouldn't refuse beside the wanted ones: of all addresses and of
/// one, and in the sets beside others. One would take packets from the other.
pub(super) fn look_around(
    nft: &mut Nft,
    owner: &Owner,
    wanted: &[Placed],
    sets: &BTreeSet<String>,
    keys: Keys,
) -> Result<(), Refusal> {
    for set in sets.iter().filter(|set| has_ports(set)) {
        let of_family = |placed: &&Placed| {
            has_ports(&placed.set)
                && family(&placed.set).map(|ip| ip.is_ipv4()) == family(set).map(|ip| ip.is_ipv4())
        };
        let elsewhere = |placed: &&Placed| keys == Keys::All || placed.set != *set;
        let ports: Vec<Port> = wanted
            .iter()
            .filter(of_family)
            .filter(elsewhere)
            .filter_map(|of| of.element.key.as_port())
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

/// Elements of a set that may be in the way. A few ports are looked up: others' mappings then cost nothing.
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
