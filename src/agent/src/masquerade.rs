//! Masquerading of what leaves the cluster: the table `inet cnimble-node`.
//!
//! ```text
//! set pods4-24 { type ipv4_addr; elements = { 10.1.0.0, 10.1.1.0, … } }   # networks of nodes
//! chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     ip saddr 10.1.0.0/24 ip daddr & 255.255.255.0 != @pods4-24 ip daddr != 10.0.0.0/8 … masquerade
//! }
//! chain guard { the same of what is invalid, with drop: NAT never sees it }
//! ```
//!
//! There is one rule for each network of this node, and one set for each length of the nodes' networks, however
//! many nodes and pods there are. A new node is one element.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_netlink as netlink;
use cnimble_netlink::nft::{
    Batch, Element, Expr, Family, Header, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, Table, Verdict,
};

/// Our table.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble-node");
const CHAIN: &str = "postrouting";
const GUARD: &str = "guard";
/// `priority srcnat`, `priority filter`.
const SRCNAT: i32 = 100;
const FILTER: i32 = 0;
/// `NF_CT_STATE_INVALID_BIT`
const STATE_INVALID: u32 = 0x1;

/// What is masqueraded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// The networks of the pods here.
    pub own: BTreeSet<IpNetwork>,
    /// The networks of all pods of the cluster.
    pub pods: BTreeSet<IpNetwork>,
    /// What isn't masqueraded besides.
    pub others: BTreeSet<IpNetwork>,
}

/// A set for networks of one family and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Length {
    ipv6: bool,
    prefix: u8,
}

impl Length {
    fn of(cidr: &IpNetwork) -> Self {
        Length { ipv6: cidr.is_ipv6(), prefix: cidr.prefix() }
    }

    fn set(self) -> String {
        format!("pods{}-{}", if self.ipv6 { 6 } else { 4 }, self.prefix)
    }
}

impl Masquerade {
    fn lengths(&self) -> BTreeSet<Length> {
        self.pods.iter().map(Length::of).collect()
    }

    /// How many rules there are.
    fn rules(&self) -> usize {
        self.own.len() * 2
    }
}

/// Brings the table from `before`, if that is what it is, to `wanted`; returns whether anything was written.
///
/// # Errors
/// The kernel's. Then all is as before.
pub fn apply(nft: &mut Nft, before: Option<&Masquerade>, wanted: &Masquerade) -> netlink::Result<bool> {
    let there = nft.has_table(TABLE)?;
    // Another agent may have made it, which has ended.
    let before = match before {
        None if there && stands(nft, wanted)? => Some(wanted),
        before => before,
    };
    let mut batch = Batch::new();
    let sound =
        there && before.is_some_and(|before| before.own == wanted.own && before.others == wanted.others);
    match before.filter(|before| sound && before.lengths() == wanted.lengths()) {
        Some(before) if nft.rules(TABLE, None)?.len() == before.rules() => {
            for cidr in before.pods.difference(&wanted.pods) {
                batch.delete_element(TABLE.set(&Length::of(cidr).set()), &Key::ip(cidr.network()));
            }
            for cidr in wanted.pods.difference(&before.pods) {
                batch.add_element(TABLE.set(&Length::of(cidr).set()), &element(cidr));
            }
        }
        _ => {
            if there {
                batch.drop_table(TABLE);
            }
            if !wanted.own.is_empty() {
                create(&mut batch, wanted);
            }
        }
    }
    let written = !batch.is_empty();
    nft.commit(&batch)?;
    Ok(written)
}

/// Removes the table; returns whether there was one.
///
/// # Errors
/// The kernel's.
pub fn remove(nft: &mut Nft) -> netlink::Result<bool> {
    if !nft.is_there()? || !nft.has_table(TABLE)? {
        return Ok(false);
    }
    let mut batch = Batch::new();
    batch.drop_table(TABLE);
    nft.commit(&batch)?;
    Ok(true)
}

fn element(cidr: &IpNetwork) -> Element {
    Element::new(Key::ip(cidr.network()), "")
}

fn create(batch: &mut Batch, wanted: &Masquerade) {
    batch.create_table(TABLE);
    for length in wanted.lengths() {
        let (name, key) = (length.set(), if length.ipv6 { KeyType::Ipv6Addr } else { KeyType::Ipv4Addr });
        batch.create_set(TABLE.set(&name), &[key]);
        let elements: Vec<Element> =
            wanted.pods.iter().filter(|cidr| Length::of(cidr) == length).map(element).collect();
        batch.create_elements(TABLE.set(&name), &elements);
    }
    let hook = |kind, priority| Hook { kind, hook: HookPoint::Postrouting, priority };
    batch.create_base_chain(TABLE.chain(CHAIN), hook("nat", SRCNAT));
    batch.create_base_chain(TABLE.chain(GUARD), hook("filter", FILTER));
    for (chain, rule, comment) in rules(wanted) {
        batch.add_rule(TABLE.chain(chain), &rule, &comment);
    }
}

/// The rules, each with its chain and its comment. By the comment another agent knows what the rule does.
fn rules(wanted: &Masquerade) -> Vec<(&'static str, Vec<Expr>, String)> {
    let mut rules = Vec::new();
    for own in &wanted.own {
        let leaving = leaving(*own, wanted);
        let rule: Vec<Expr> = leaving.iter().cloned().chain([Expr::masquerade()]).collect();
        rules.push((CHAIN, rule, "what leaves the cluster"));
        let invalid = [
            Expr::ct_state(REG1),
            Expr::mask(REG1, &STATE_INVALID.to_ne_bytes()),
            Expr::differ(REG1, &0_u32.to_ne_bytes()),
        ];
        let end = [Expr::verdict(Verdict::Drop)];
        let rule: Vec<Expr> = invalid.into_iter().chain(leaving).chain(end).collect();
        rules.push((GUARD, rule, "what no NAT would see"));
    }
    let named = |(chain, rule, what): (_, Vec<Expr>, &str)| {
        let mut hasher = DefaultHasher::new();
        format!("{rule:?}").hash(&mut hasher);
        (chain, rule, format!("{what} ({:016x})", hasher.finish()))
    };
    rules.into_iter().map(named).collect()
}

/// Whether the table is as it is to be, as far as its rules' comments and its sets tell.
fn stands(nft: &mut Nft, wanted: &Masquerade) -> netlink::Result<bool> {
    let comments: Vec<String> = nft.rules(TABLE, None)?.into_iter().map(|rule| rule.comment).collect();
    let there: BTreeSet<&str> = comments.iter().map(String::as_str).collect();
    let named = rules(wanted);
    if comments.len() != named.len() || !named.iter().all(|(_, _, comment)| there.contains(comment.as_str()))
    {
        return Ok(false);
    }
    let keys: BTreeSet<String> = wanted.lengths().into_iter().map(Length::set).collect();
    if nft.sets(TABLE)?.into_iter().collect::<BTreeSet<_>>() != keys {
        return Ok(false);
    }
    for length in wanted.lengths() {
        let there: BTreeSet<Vec<u8>> = nft
            .elements(TABLE.set(&length.set()))?
            .iter()
            .map(|element| element.key.bytes().to_vec())
            .collect();
        let pods = wanted.pods.iter().filter(|cidr| Length::of(cidr) == length);
        if there != pods.map(|cidr| octets(cidr.network())).collect() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Matches what comes from `own` and goes neither to pods nor to what isn't masqueraded nor to a group.
fn leaving(own: IpNetwork, wanted: &Masquerade) -> Vec<Expr> {
    let ipv6 = own.is_ipv6();
    let number = if ipv6 { FAMILY_IPV6 } else { FAMILY_IPV4 };
    let mut rule = vec![Expr::meta(Meta::Nfproto, REG1), Expr::equal(REG1, &[number])];
    rule.extend(load(own, false));
    rule.push(Expr::equal(REG1, &octets(own.network())));
    for length in wanted.lengths().into_iter().filter(|length| length.ipv6 == ipv6) {
        if let Ok(any) = IpNetwork::new(own.ip(), length.prefix) {
            rule.extend(load(any, true));
            rule.push(Expr::not_in_set(REG1, &length.set()));
        }
    }
    let group = match ipv6 {
        false => IpNetwork::new([224, 0, 0, 0].into(), 4),
        true => IpNetwork::new([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    };
    for other in wanted.others.iter().copied().chain(group).filter(|other| other.is_ipv6() == ipv6) {
        rule.extend(load(other, true));
        rule.push(Expr::differ(REG1, &octets(other.network())));
    }
    rule
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6` (linux/netfilter.h)
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

/// Loads the source or the destination, as much of it as is the network's.
fn load(cidr: IpNetwork, destination: bool) -> Vec<Expr> {
    let (offset, len) = match (cidr.is_ipv6(), destination) {
        (false, false) => (12, 4),
        (false, true) => (16, 4),
        (true, false) => (8, 16),
        (true, true) => (24, 16),
    };
    let mut load = vec![Expr::payload(Header::Network, offset, len, REG1)];
    if u32::from(cidr.prefix()) < len * 8 {
        load.push(Expr::mask(REG1, &octets(cidr.mask())));
    }
    load
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
