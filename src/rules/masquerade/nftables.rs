//! Masquerading in nf_tables: the table `inet cnimble`.
//!
//! For each pod network there is a set with the addresses of its pods, and a rule:
//!
//! ```text
//! ip saddr @masq-10.1.0.0/16 ip daddr != 10.1.0.0/16 masquerade
//! ```
//!
//! A pod costs one element. Plain sets rather than one verdict map for all networks,
//! because with every new element of a verdict map the kernel walks through all the others
//! (see [`crate::net::nft`]): 20,000 pods made that 2 ms where a set takes 30 µs.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net;
use crate::net::nft::{
    Batch, Element, Expr, Family, Header, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, SetType, Table,
    Verdict,
};
use crate::rules::Owner;
use crate::rules::elements::{self, Changes, Layout, Placed};
use crate::spec::{Attachment, Error};

struct Masquerade;

/// Where iptables' and everybody's source NAT is: `priority srcnat`.
const SRCNAT: i32 = 100;

impl Layout for Masquerade {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAIN: &'static str = "postrouting";
    const FIXED: &'static [&'static str] = &[];

    fn create_chain(batch: &mut Batch) {
        let hook = Hook { kind: "nat", hook: HookPoint::Postrouting, priority: SRCNAT };
        batch.create_base_chain(Self::TABLE.chain(Self::CHAIN), hook);
    }

    /// `ip daddr 224.0.0.0/4 return`, `ip6 daddr ff00::/8 return`
    fn add_first_rules(batch: &mut Batch) {
        let groups = [(IpAddr::from([224, 0, 0, 0]), 4), (IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8)];
        for (group, prefix) in groups {
            let mut rule = of_family(group);
            rule.extend(load_network(group, DESTINATION, prefix));
            rule.push(Expr::equal(REG1, &octets(group)));
            rule.push(Expr::verdict(Verdict::Return));
            batch.add_rule(Self::TABLE.chain(Self::CHAIN), &rule, "");
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let Some(subnet) = subnet(set) else { return };
        let key = if subnet.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr };
        batch.create_set(Self::TABLE.set(set), &SetType { key: &[key], verdicts: false });
    }

    /// `ip saddr @SET ip daddr != SUBNET masquerade`
    fn add_rule(batch: &mut Batch, set: &str) {
        let Some(subnet) = subnet(set) else { return };
        let ip = subnet.ip();
        let mut rule = of_family(ip);
        rule.extend(load_network(ip, SOURCE, full_length(ip)));
        rule.push(Expr::in_set(REG1, set));
        rule.extend(load_network(ip, DESTINATION, subnet.prefix()));
        rule.push(Expr::differ(REG1, &octets(ip)));
        rule.push(Expr::masquerade());
        batch.add_rule(Self::TABLE.chain(Self::CHAIN), &rule, "");
    }
}

/// Offsets of the addresses in the headers of IPv4 and IPv6.
const SOURCE: (u32, u32) = (12, 8);
const DESTINATION: (u32, u32) = (16, 24);

/// `meta nfproto ipv4`, or ipv6
fn of_family(ip: IpAddr) -> Vec<Expr> {
    let number = if ip.is_ipv4() { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 };
    vec![Expr::meta(Meta::Nfproto, REG1), Expr::equal(REG1, &[u8::try_from(number).unwrap_or(0)])]
}

/// Loads an address of the packet and keeps its first `prefix` bits.
fn load_network(ip: IpAddr, (v4, v6): (u32, u32), prefix: u8) -> Vec<Expr> {
    let (offset, len) = if ip.is_ipv4() { (v4, 4) } else { (v6, 16) };
    let mut load = vec![Expr::payload(Header::Network, offset, len, REG1)];
    if prefix < full_length(ip)
        && let Ok(network) = IpNetwork::new(ip, prefix)
    {
        load.push(Expr::mask(REG1, &octets(network.mask())));
    }
    load
}

fn full_length(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The set for the pods of a network: `masq-10.1.0.0/16`. The `nft` command takes no colon in
/// a name, so IPv6 has dashes: `masq-fd00-1--/64`.
fn set_name(addr: IpNetwork) -> String {
    format!("masq-{}/{}", addr.network(), addr.prefix()).replace(':', "-")
}

/// The network that a set is for.
fn subnet(set: &str) -> Option<IpNetwork> {
    set.strip_prefix("masq-")?.replace('-', ":").parse().ok()
}

fn wanted(owner: &Owner, addrs: &[IpNetwork]) -> Vec<Placed> {
    let comment = owner.comment();
    let mut wanted: Vec<Placed> = Vec::new();
    for addr in addrs {
        let placed =
            Placed { set: set_name(*addr), element: Element::new(Key::ip(addr.ip()), comment.as_str()) };
        if !wanted.contains(&placed) {
            wanted.push(placed);
        }
    }
    wanted
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> net::Result<Changes> {
    elements::insert::<Masquerade>(nft, &wanted(owner, addrs))
}

pub(super) fn revert(nft: &mut Nft, changes: &Changes) -> Result<(), Error> {
    Ok(elements::revert::<Masquerade>(nft, changes)?)
}

pub(super) fn remove(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> net::Result<()> {
    let hints: Vec<(String, Key)> = addrs.iter().map(|addr| (set_name(*addr), Key::ip(addr.ip()))).collect();
    elements::remove::<Masquerade>(nft, owner, &hints)
}

pub(super) fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> net::Result<()> {
    elements::gc::<Masquerade>(nft, network, valid)
}

/// What is missing for `addr`, or `None` if it is masqueraded.
pub(super) fn check(nft: &mut Nft, owner: &Owner, addr: IpNetwork) -> net::Result<Option<String>> {
    let name = set_name(addr);
    let set = Masquerade::TABLE.set(&name);
    match nft.element(set, &Key::ip(addr.ip()))? {
        None => return Ok(Some(format!("set {set} has no element for it"))),
        Some(element) if !owner.owns(&element.comment) => {
            return Ok(Some(format!("its element in set {set} is another's: {}", element.comment)));
        }
        Some(_) => {}
    }
    let chain = Masquerade::TABLE.chain(Masquerade::CHAIN);
    let rules = nft.rules(Masquerade::TABLE, Some(Masquerade::CHAIN))?;
    if rules.iter().any(|rule| rule.uses_set(&name) && rule.has("masq")) {
        Ok(None)
    } else {
        Ok(Some(format!("chain {chain} has no rule for set {name}")))
    }
}

/// Whether the kernel would masquerade for us.
pub(super) fn usable(nft: &mut Nft) -> Result<(), Error> {
    if nft.has_table(Masquerade::TABLE)? {
        return Ok(());
    }
    let mut batch = Batch::new();
    elements::create_table::<Masquerade>(&mut batch);
    Masquerade::create_set(&mut batch, "masq-0.0.0.0/0");
    Masquerade::add_rule(&mut batch, "masq-0.0.0.0/0");
    match nft.try_out(&batch) {
        // Somebody has made it in this moment, so it can be made.
        Err(err) if err.is(nix::errno::Errno::EEXIST) => Ok(()),
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_say_their_network() {
        for (addr, name) in [
            ("10.1.2.3/16", "masq-10.1.0.0/16"),
            ("10.1.2.3/32", "masq-10.1.2.3/32"),
            ("10.1.2.3/0", "masq-0.0.0.0/0"),
            ("fd00:1::5/64", "masq-fd00-1--/64"),
            ("fd00::5/0", "masq---/0"),
            ("::ffff:1.2.3.4/128", "masq---ffff-1.2.3.4/128"),
        ] {
            let addr: IpNetwork = addr.parse().unwrap();
            assert_eq!(set_name(addr), name);
            let back = subnet(name).unwrap();
            assert_eq!((back.ip(), back.prefix()), (addr.network(), addr.prefix()));
        }
        assert_eq!(subnet("other"), None);
    }
}
