//! Ports that are somebody else's.

use std::collections::HashMap;

use cnimble_cni::{Code, Error, Owner};
use cnimble_netlink::nft::{Element, Key, Nft};

use super::layout::{ADDR_PORTS, PORTS, Portmap, name};
use crate::backend::Refused;
use crate::elements::{Layout, Placed};

/// The refusal of a port, with whose it is.
pub(super) fn taken(old: &Element) -> Refused {
    let port = match old.key.as_port() {
        Some((_, protocol, port)) => {
            let protocol = Key::port(protocol, port).to_string();
            let protocol = protocol.split(' ').next().unwrap_or_default().to_owned();
            let addr = old.key.as_port().and_then(|(addr, ..)| addr);
            let on = addr.map(|addr| format!(" of {addr}")).unwrap_or_default();
            format!("host port {port}/{protocol}{on}")
        }
        None => format!("host port {}", old.key),
    };
    let target = old.data.as_ref().and_then(Key::as_service);
    let target = target.map(|(ip, port)| format!(" and leads to {ip} port {port}")).unwrap_or_default();
    let holder = old.comment.find("net: ").and_then(|at| old.comment.get(at..)).unwrap_or(&old.comment);
    Refused::Taken(
        Error::new(Code::CONFLICT, format!("{port} is already taken"))
            .details(format!("it belongs to {holder}{target}"))
            .details("if that container is gone, its DEL or a GC of its network frees the port"),
    )
}

/// A port of all addresses and the same port of one address, of different owners: the kernel
/// wouldn't mind, but one would take packets from the other.
pub(super) fn refuse_overlap(nft: &mut Nft, owner: &Owner, wanted: &[Placed]) -> Result<(), Refused> {
    for index in [0, 1] {
        for (mine, others) in [(PORTS, ADDR_PORTS), (ADDR_PORTS, PORTS)] {
            let ports: HashMap<(u8, u16), &Placed> = wanted
                .iter()
                .filter(|placed| placed.set == name(mine, index))
                .filter_map(|placed| {
                    let (_, protocol, port) = placed.element.key.as_port()?;
                    Some(((protocol, port), placed))
                })
                .collect();
            if ports.is_empty() {
                continue;
            }
            let set = Portmap::TABLE.set(name(others, index));
            let there = match ports.keys().collect::<Vec<_>>().as_slice() {
                // A few are looked up; that way the many mappings of others cost nothing.
                few if mine == ADDR_PORTS && few.len() <= 8 => {
                    let mut there = Vec::new();
                    for (protocol, port) in few {
                        there.extend(nft.element(set, &Key::port(*protocol, *port))?);
                    }
                    there
                }
                _ => nft.elements(set)?,
            };
            for element in there {
                let port = element.key.as_port().map(|(_, protocol, port)| (protocol, port));
                if port.is_some_and(|port| ports.contains_key(&port)) && !owner.owns(&element.comment) {
                    return Err(taken(&element));
                }
            }
        }
    }
    Ok(())
}
