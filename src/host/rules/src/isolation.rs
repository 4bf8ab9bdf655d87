//! Isolates ports of a bridge that could reach each other by a router (`portIsolation`). A bridge separates isolated
//! ports from each other, but not from the gateway, by which the host would route back to the bridge. So the table
//! `bridge cnimble` has two rules:
//! ```text
//! meta protocol ip iifname @isolated-ports ip daddr @isolated4 drop
//! meta protocol ip6 iifname @isolated-ports ip6 daddr @isolated6 drop
//! ```
//! The check uses a frame's port, so a forged source does not help. It comes before address translation: a packet to a
//! published port or a service has the address of the host or the service, and passes.

use std::net::IpAddr;

use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::{DESTINATION, load_address};
use cnimble_netlink::nft::{
    Batch, Expr, Family, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, Table, Verdict,
};

use super::elements::{self, Claim, Layout, Placed, first_name};
use super::failures;
pub use super::undo::Applied;

/// The layout of isolated ports, a part of the table `bridge cnimble`.
pub(super) struct Isolation;

const CHAIN: &str = "isolation";
const PORTS: &str = "isolated-ports";
const PODS4: &str = "isolated4";
const PODS6: &str = "isolated6";
/// The priority of the chain: after the MAC check, before everything else that looks at frames.
const PRIORITY: i32 = -299;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Returns the port of an element, or `None` for an element with an address. The set decides, because an IPv6 address
/// is as long as an interface's name.
pub(super) fn port(placed: &Placed) -> Option<String> {
    if placed.set == PORTS { placed.element.key.as_ifname() } else { None }
}

impl Layout for Isolation {
    const TABLE: Table<'static> = Table::new(Family::Bridge, "cnimble");
    const CHAINS: &'static [&'static str] = &[CHAIN];
    const FIXED: &'static [&'static str] = &[PORTS, PODS4, PODS6];

    /// A port belongs to the pod whose link has the name now.
    fn claim(set: &str) -> Claim {
        if set == PORTS { Claim::Last } else { Claim::Network }
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let hook = Hook { kind: "filter", hook: HookPoint::Prerouting, priority: PRIORITY };
        batch.create_base_chain(Self::TABLE.chain(chain), hook);
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let key = match first_name(set) {
            PODS4 => KeyType::Ipv4Addr,
            PODS6 => KeyType::Ipv6Addr,
            _ => KeyType::Ifname,
        };
        batch.create_set(Self::TABLE.set(set), &[key]);
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let (ip, protocol) = match first_name(set) {
            PODS4 => (IpAddr::from([0; 4]), ETH_P_IP),
            PODS6 => (IpAddr::from([0_u16; 8]), ETH_P_IPV6),
            _ => return,
        };
        let rule = [
            Expr::meta(Meta::Protocol, REG1),
            Expr::equal(REG1, &protocol.to_be_bytes()),
            Expr::meta(Meta::Iifname, REG1),
            Expr::in_set(REG1, PORTS),
            load_address(ip, DESTINATION),
            Expr::in_set(REG1, set),
            Expr::verdict(Verdict::Drop),
        ];
        batch.add_rule(Self::TABLE.chain(CHAIN), &rule, "");
    }
}

fn pods(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { PODS4 } else { PODS6 }
}

/// Returns the elements of an isolated pod: its port and its addresses.
pub(super) fn wanted(owner: &Owner, port: &str, addrs: &[IpAddr]) -> Vec<Placed> {
    let comment = owner.comment();
    let places = std::iter::once((PORTS, Key::ifname(port)));
    places
        .chain(addrs.iter().map(|ip| (pods(*ip), Key::ip(*ip))))
        .map(|(set, key)| Placed::new(set, key, &comment))
        .collect()
}

/// Drops what `port` sends to other isolated pods, and what other isolated ports send to `addrs`. Returns what takes it
/// back. A second call changes nothing.
pub fn add(nft: &mut Nft, owner: &Owner, port: &str, addrs: &[IpAddr]) -> Result<Applied, Error> {
    let changes = elements::insert::<Isolation>(nft, &wanted(owner, port, addrs)).map_err(explain)?;
    Ok(Applied::from_changes::<Isolation>(changes))
}

fn explain(err: netlink::Error) -> Error {
    let need = "it needs CONFIG_NF_TABLES_BRIDGE, or pods would reach each other by way of the gateway";
    failures::explain(err, "portIsolation", need)
}

/// Removes the owner's elements. `port` and `addrs` save a listing; they may be outdated, but `addrs` must be complete
/// or empty.
pub fn remove(nft: &mut Nft, owner: &Owner, port: Option<&str>, addrs: &[IpAddr]) -> Result<(), Error> {
    if !nft.is_supported()? {
        return Ok(());
    }
    // If only the port were looked up, the elements of the addresses would stay.
    let hints = match port {
        Some(port) if !addrs.is_empty() => wanted(owner, port, addrs),
        _ => Vec::new(),
    };
    elements::remove::<Isolation>(nft, owner, &hints)?;
    Ok(())
}

/// Fails with code 103 and the missing object if the port is not isolated.
pub fn check(nft: &mut Nft, owner: &Owner, port: &str, addrs: &[IpAddr]) -> Result<(), Error> {
    match missing(nft, owner, port, addrs).map_err(explain)? {
        None => Ok(()),
        Some(missing) => {
            Err(Error::check(format!("isolation of port {port} by way of the gateway is missing"))
                .details(missing))
        }
    }
}

/// Returns the first missing element or rule, or `None` if everything is in place.
fn missing(nft: &mut Nft, owner: &Owner, port: &str, addrs: &[IpAddr]) -> netlink::Result<Option<String>> {
    let mut sets = Vec::new();
    for Placed { set, element } in wanted(owner, port, addrs) {
        let found = elements::look_up::<Isolation>(nft, owner, &set, &element.key)?;
        match found.or_fault(Isolation::TABLE.set(&set), &element.key) {
            Ok(placed) => sets.push(placed.set),
            Err(fault) => return Ok(Some(fault)),
        }
    }
    let rules = nft.rules(Isolation::TABLE, Some(CHAIN))?;
    let lacking = sets.iter().find(|set| !rules.iter().any(|rule| rule.uses_set(set)));
    Ok(lacking.map(|set| format!("chain {} has no rule over {set}", Isolation::TABLE.chain(CHAIN))))
}

/// Removes the elements of all attachments of `network` that are not in `valid`.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    if nft.is_supported()? {
        Isolation::gc(nft, network, valid)?;
    }
    Ok(())
}

/// Fails with code 50 if nf_tables cannot be used.
pub fn status(nft: &mut Nft) -> Result<(), Error> {
    Isolation::usable(nft).map_err(|err| failures::not_available(explain(err)))
}
