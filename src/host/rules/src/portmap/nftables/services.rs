//! Keeps published ports off the addresses of Services.
//!
//! kube-proxy in IPVS mode gives each ClusterIP to the link `kube-ipvs0`. So these are local addresses of the node, and
//! `fib daddr type local` matches packets to them. A published port must not take such packets: port 443 would take the
//! API server away from the whole node.
//!
//! nf_tables can't ask which link has a local address. So a set of each family has the addresses, and a rule at each
//! hook returns before the look-up of ports:
//! ```text
//! ip daddr @portmap-services4 return
//! ```
//! The sets exist only on nodes with such a link. ADD, `cnimble guard` and `cnimble node` bring them up to date.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnimble_netlink::nft::packet::{DESTINATION, load_address, of_family};
use cnimble_netlink::nft::{Batch, Element, Expr, Key, KeyType, Nft, REG1, Rule, Verdict};
use cnimble_netlink::{IfPresent as _, Netlink, Result, sysctl};

use super::names::{OUTPUT, PREROUTING, Portmap, V4, V6, for_family};
use crate::elements::Layout;
use crate::retry::{OVERTAKEN, retry};

const SETS: [&str; 2] = ["portmap-services4", "portmap-services6"];

/// The links on which kube-proxy in IPVS mode, and kube-router, put the addresses of Services.
pub(in crate::portmap) const LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// Additions and deletions in one batch: with their errors they stay far below the socket's buffers.
const CHUNK: usize = 200;

/// Returns whether a set is one of these two.
pub(super) fn is_set(name: &str) -> bool {
    SETS.contains(&name)
}

/// Returns the addresses of Services on this node. Link-local addresses don't count. Neither does an address that
/// another link has as well, because it is the node's own.
pub(super) fn local() -> Result<BTreeSet<IpAddr>> {
    let mut names = Vec::new();
    for name in LINKS {
        // This cheap look is enough on nearly all nodes, which have no such link.
        if sysctl::read(&format!("net/ipv4/conf/{name}/forwarding")).if_present()?.is_some() {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut host = Netlink::open()?;
    let indexes = indexes_of(&mut host, &names)?;
    let (mut services, mut own) = (BTreeSet::new(), BTreeSet::new());
    for (index, addr) in host.addrs_with_links()? {
        let addresses = if indexes.contains(&index) { &mut services } else { &mut own };
        addresses.insert(addr.net.ip());
    }
    services.retain(|ip| !own.contains(ip) && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    Ok(services)
}

/// Returns the interface indexes of those of the links that exist.
fn indexes_of(host: &mut Netlink, names: &[&str]) -> Result<BTreeSet<u32>> {
    let mut indexes = BTreeSet::new();
    for name in names {
        indexes.extend(host.find_link(name)?.map(|link| link.index));
    }
    Ok(indexes)
}

/// Returns the interface indexes of the links that have addresses of Services.
pub(in crate::portmap) fn links() -> Result<BTreeSet<u32>> {
    indexes_of(&mut Netlink::open()?, &LINKS)
}

/// Brings the sets up to date. Does nothing if nf_tables has no chain of port mappings.
pub(in crate::portmap) fn refresh(nft: &mut Nft) -> Result<()> {
    if !nft.has_chain(Portmap::TABLE.chain(PREROUTING))? {
        return Ok(());
    }
    keep_off(nft, &local()?)
}

/// Makes the sets contain exactly these addresses, and adds missing rules over them, except to a chain without any
/// rule. Without addresses the sets are emptied and stay, and no set is made. The part must exist.
pub(super) fn keep_off(nft: &mut Nft, services: &BTreeSet<IpAddr>) -> Result<()> {
    for family in [V4, V6] {
        let of_family =
            services.iter().copied().filter(|ip| ip.is_ipv4() == family.is_ipv4()).collect::<BTreeSet<_>>();
        retry(&OVERTAKEN, || keep_off_family(nft, family, &of_family))?;
    }
    Ok(())
}

fn keep_off_family(nft: &mut Nft, family: IpAddr, services: &BTreeSet<IpAddr>) -> Result<()> {
    let name = for_family(SETS, family);
    let set = Portmap::TABLE.set(name);
    let has_set = nft.has_set(set)?;
    if !has_set && services.is_empty() {
        return Ok(());
    }
    let listed = if has_set { nft.elements(set)? } else { Vec::new() };
    let present: BTreeSet<IpAddr> = listed.iter().filter_map(|element| element.key.as_ip()).collect();
    let mut batch = Batch::new();
    if !has_set {
        batch.create_set(set, &[if family.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr }]);
    }
    for chain in [PREROUTING, OUTPUT] {
        let rules = nft.rules(Portmap::TABLE, Some(chain))?;
        // A chain without rules was flushed. It stays so, because an ADD repairs only a chain that has no rules at all.
        if !rules.is_empty() && !rules.iter().any(|rule| rule.uses_set(name)) {
            batch.insert_rule(Portmap::TABLE.chain(chain), &to_a_service(family, name), "");
        }
    }
    nft.commit(&batch)?;
    let mut changes: Vec<(bool, IpAddr)> = services.difference(&present).map(|ip| (true, *ip)).collect();
    changes.extend(present.difference(services).map(|ip| (false, *ip)));
    for chunk in changes.chunks(CHUNK) {
        let mut batch = Batch::new();
        let added = chunk.iter().filter(|(is_new, _)| *is_new);
        let added: Vec<Element> = added.map(|(_, ip)| Element::new(Key::ip(*ip), "")).collect();
        batch.create_elements(set, &added);
        for (_, ip) in chunk.iter().filter(|(is_new, _)| !is_new) {
            batch.delete_element(set, &Key::ip(*ip));
        }
        nft.commit(&batch)?;
    }
    Ok(())
}

/// `ip daddr @portmap-services4 return`
fn to_a_service(family: IpAddr, set: &str) -> Vec<Expr> {
    let mut rule = of_family(family);
    rule.push(load_address(family, DESTINATION));
    rule.push(Expr::in_set(REG1, set));
    rule.push(Expr::verdict(Verdict::Return));
    rule
}

/// Removes the sets and the rules over them. Call this only if there are no mappings.
pub(super) fn remove(nft: &mut Nft) -> Result<()> {
    for name in SETS {
        let set = Portmap::TABLE.set(name);
        retry(&OVERTAKEN, || {
            if !nft.has_set(set)? {
                return Ok(());
            }
            let over: Vec<Rule> =
                nft.rules(Portmap::TABLE, None)?.into_iter().filter(|rule| rule.uses_set(name)).collect();
            let elements = nft.elements(set)?;
            for chunk in elements.chunks(CHUNK) {
                let mut batch = Batch::new();
                chunk.iter().for_each(|element| batch.delete_element(set, &element.key));
                nft.commit(&batch)?;
            }
            let mut batch = Batch::new();
            for rule in &over {
                batch.delete_rule(Portmap::TABLE.chain(&rule.chain), rule.handle);
            }
            batch.delete_set(set);
            nft.commit(&batch)
        })?;
    }
    Ok(())
}

/// Returns the first object that CHECK misses, or `None` if all addresses of Services are excluded. `rules` are those
/// of the table.
pub(super) fn missing(nft: &mut Nft, rules: &[Rule]) -> Result<Option<String>> {
    let services = local()?;
    for family in [V4, V6] {
        let name = for_family(SETS, family);
        let mut of_family = services.iter().filter(|ip| ip.is_ipv4() == family.is_ipv4()).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        let set = Portmap::TABLE.set(name);
        let listed = if nft.has_set(set)? { nft.elements(set)? } else { Vec::new() };
        let present: BTreeSet<IpAddr> = listed.iter().filter_map(|element| element.key.as_ip()).collect();
        if let Some(ip) = of_family.find(|ip| !present.contains(ip)) {
            return Ok(Some(format!("set {set} lacks {ip}, the address of a Service")));
        }
        for chain in [PREROUTING, OUTPUT] {
            if !rules.iter().any(|rule| rule.chain == chain && rule.uses_set(name)) {
                let chain = Portmap::TABLE.chain(chain);
                return Ok(Some(format!("chain {chain} has no rule for {name}")));
            }
        }
    }
    Ok(None)
}
