//! Masquerading of packets that leave the cluster: the table `inet cnimble-node`.
//!
//! ```text
//! set pods4-24 { type ipv4_addr; elements = { 10.1.0.0, 10.1.1.0, … } }   # networks of nodes
//! chain postrouting {
//!     type nat hook postrouting priority srcnat + 1; policy accept;
//!     ip saddr 10.1.0.0/24 ip daddr & 255.255.255.0 != @pods4-24 ip daddr != 10.0.0.0/8 … masquerade
//! }
//! chain guard { the same of what is invalid, with drop: NAT never sees it }
//! ```
//!
//! Each network of this node has one rule, and each prefix length of the nodes' networks one set. A new node is one
//! element.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_network, octets, of_family};
use cnimble_netlink::nft::{
    Batch, Element, Expr, Family, Hook, HookPoint, Key, KeyType, Nft, REG1, Rule, Table, Verdict,
};

/// The agent's table.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble-node");
/// The chain that masquerades.
const CHAIN: &str = "postrouting";
/// The chain that drops invalid packets, which NAT does not translate.
const GUARD: &str = "guard";
/// The number of `priority filter`.
const FILTER: i32 = 0;
/// The hook of the chain that masquerades. An earlier version chose another priority, so [`is_complete`] compares it.
const NAT: Hook = Hook::after_nat_of_others(HookPoint::Postrouting);
/// The value of `NF_CT_STATE_INVALID_BIT`.
const STATE_INVALID: u32 = 0x1;

/// The content of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// The networks of this node's pods, whose packets are masqueraded.
    pub own: BTreeSet<IpNetwork>,
    /// The networks of all pods. Packets to them keep their source.
    pub pods: BTreeSet<IpNetwork>,
    /// Other destinations to which packets keep their source.
    pub others: BTreeSet<IpNetwork>,
}

/// A family with a prefix length: the networks of one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Length {
    ipv6: bool,
    prefix: u8,
}

impl Length {
    fn of(cidr: &IpNetwork) -> Self {
        Length { ipv6: cidr.is_ipv6(), prefix: cidr.prefix() }
    }

    /// Returns the name of the set.
    fn set(self) -> String {
        format!("pods{}-{}", if self.ipv6 { 6 } else { 4 }, self.prefix)
    }
}

impl Masquerade {
    fn lengths(&self) -> BTreeSet<Length> {
        self.pods.iter().map(Length::of).collect()
    }
}

/// The table as it was after the last call of [`apply`]: its content, and its rules as the kernel lists them.
#[derive(Debug, Default)]
pub struct Known(Option<(Masquerade, Vec<Rule>)>);

/// Brings the table to `wanted` in one transaction. Returns whether it wrote. Pass the same `known` in each call.
pub fn apply(nft: &mut Nft, known: &mut Known, wanted: &Masquerade) -> netlink::Result<bool> {
    let exists = nft.has_table(TABLE)?;
    let rules = if exists { nft.rules(TABLE, None)? } else { Vec::new() };
    let before = match known.0.take() {
        Some((before, listed)) if listed == rules => Some(before),
        // An earlier agent made the table, or another program has changed it.
        _ if exists && is_complete(nft, &rules, wanted)? => Some(wanted.clone()),
        _ => None,
    };
    let mut batch = Batch::new();
    let updated = before.as_ref().filter(|before| {
        exists
            && before.own == wanted.own
            && before.others == wanted.others
            && before.lengths() == wanted.lengths()
    });
    match updated {
        Some(before) => {
            for cidr in before.pods.difference(&wanted.pods) {
                batch.delete_element(TABLE.set(&Length::of(cidr).set()), &Key::ip(cidr.network()));
            }
            for cidr in wanted.pods.difference(&before.pods) {
                batch.add_element(TABLE.set(&Length::of(cidr).set()), &element(cidr));
            }
        }
        None => {
            if exists {
                batch.drop_table(TABLE);
            }
            if !wanted.own.is_empty() {
                create(&mut batch, wanted);
            }
        }
    }
    let written = !batch.is_empty();
    nft.commit(&batch)?;
    // The kernel's form of the rules is stored. It may differ from the written form, which is no change.
    let rules = if updated.is_some() || !written { rules } else { nft.rules(TABLE, None)? };
    known.0 = Some((wanted.clone(), rules));
    Ok(written)
}

/// Removes the table. Returns false if there was none, or if the kernel has no nf_tables.
pub fn remove(nft: &mut Nft) -> netlink::Result<bool> {
    if !nft.is_supported()? || !nft.has_table(TABLE)? {
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

/// Adds the table with its sets, chains and rules to the batch.
fn create(batch: &mut Batch, wanted: &Masquerade) {
    batch.create_table(TABLE);
    for length in wanted.lengths() {
        let (name, key) = (length.set(), if length.ipv6 { KeyType::Ipv6Addr } else { KeyType::Ipv4Addr });
        batch.create_set(TABLE.set(&name), &[key]);
        let elements: Vec<Element> =
            wanted.pods.iter().filter(|cidr| Length::of(cidr) == length).map(element).collect();
        batch.create_elements(TABLE.set(&name), &elements);
    }
    let filter = Hook { kind: "filter", hook: HookPoint::Postrouting, priority: FILTER };
    batch.create_base_chain(TABLE.chain(CHAIN), NAT);
    batch.create_base_chain(TABLE.chain(GUARD), filter);
    for (chain, rule, comment) in rules(wanted) {
        batch.add_rule(TABLE.chain(chain), &rule, comment);
    }
}

/// Returns each rule with its chain and its comment.
fn rules(wanted: &Masquerade) -> Vec<(&'static str, Vec<Expr>, &'static str)> {
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
    rules
}

/// Returns whether the table is `wanted`, whoever has made it. `found` are its rules.
fn is_complete(nft: &mut Nft, found: &[Rule], wanted: &Masquerade) -> netlink::Result<bool> {
    let rules = rules(wanted);
    if nft.priority(TABLE.chain(CHAIN))? != Some(NAT.priority) {
        return Ok(false);
    }
    if found.len() != rules.len() || !rules.iter().all(|(chain, rule, _)| has_rule(found, chain, rule)) {
        return Ok(false);
    }
    let keys: BTreeSet<String> = wanted.lengths().into_iter().map(Length::set).collect();
    if nft.sets(TABLE)?.into_iter().collect::<BTreeSet<_>>() != keys {
        return Ok(false);
    }
    for length in wanted.lengths() {
        let elements: BTreeSet<Vec<u8>> = nft
            .elements(TABLE.set(&length.set()))?
            .iter()
            .map(|element| element.key.bytes().to_vec())
            .collect();
        let pods = wanted.pods.iter().filter(|cidr| Length::of(cidr) == length);
        if elements != pods.map(|cidr| octets(cidr.network())).collect() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_rule(found: &[Rule], chain: &str, wanted: &[Expr]) -> bool {
    found.iter().any(|rule| rule.chain == chain && rule.does(wanted))
}

/// Returns the expressions that match packets from `own` to neither pods, nor an exception, nor a multicast group.
fn leaving(own: IpNetwork, wanted: &Masquerade) -> Vec<Expr> {
    let ipv6 = own.is_ipv6();
    let mut rule = of_family(own.ip());
    rule.extend(load_network(own.ip(), SOURCE, own.prefix()));
    rule.push(Expr::equal(REG1, &octets(own.network())));
    for length in wanted.lengths().into_iter().filter(|length| length.ipv6 == ipv6) {
        rule.extend(load_network(own.ip(), DESTINATION, length.prefix));
        rule.push(Expr::not_in_set(REG1, &length.set()));
    }
    let group = if ipv6 {
        IpNetwork::new([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8)
    } else {
        IpNetwork::new([224, 0, 0, 0].into(), 4)
    };
    for other in wanted.others.iter().copied().chain(group).filter(|other| other.is_ipv6() == ipv6) {
        rule.extend(load_network(other.ip(), DESTINATION, other.prefix()));
        rule.push(Expr::differ(REG1, &octets(other.network())));
    }
    rule
}
