//! Masquerades in nf_tables, in the table `inet cnimble`. Each pod network has a set with the addresses of its pods,
//! and a rule:
//! ```text
//! ip saddr @masq-10.1.0.0/16 ip daddr != 10.1.0.0/16 masquerade
//! ```
//! The kernel translates no packet that connection tracking calls invalid, so it would leave the node with the pod's
//! address. To drop these packets, each set has two more rules:
//! ```text
//! chain masq-invalid {
//!     ip daddr @masq-10.1.0.0/16 return
//!     ip saddr @masq-10.1.0.0/16 ip daddr != 10.1.0.0/16 drop
//! }
//! chain masq-guard {
//!     type filter hook postrouting priority filter; policy accept;
//!     ct state invalid jump masq-invalid
//! }
//! ```
//! In `masq-invalid` the rules `return` of all sets come before the rules `drop`. Packets among pods need no NAT, and
//! they may take another way than their answers, so connection tracking may call them invalid.
//!
//! With exceptions ([`Translation`]) the name of the set contains them, and the rule compares with each:
//! ```text
//! ip saddr @masq-10.1.0.0/16_10.0.0.0/8_to-192.0.2.9 ip daddr != 10.1.0.0/16 ip daddr != 10.0.0.0/8 snat to 192.0.2.9
//! ```
//!
//! A new element takes 30 µs. With one verdict map for all networks, the kernel would walk through all elements for
//! each new one (see [`cnimble_netlink::nft`]). That takes 2 ms among 20,000 pods.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::Owner;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_address, load_network, octets, of_family};
use cnimble_netlink::nft::{
    Batch, Expr, Family, Hook, HookPoint, Key, KeyType, Nft, REG1, Rule, Table, Verdict,
};

use super::translation::{Sources, Translation};
use crate::elements::{self, Changes, Claim, Layout, Placed};
use crate::listed::Effect;
use crate::packet::{network_name, network_named};

/// The layout of masquerading, a part of the table `inet cnimble`.
pub(crate) struct Masquerade;

const CHAIN: &str = "postrouting";
/// The base chain that sends invalid packets to [`INVALID`] and does nothing else.
pub(crate) const GUARD: &str = "masq-guard";
/// The chain that drops invalid packets of pods that leave their network.
const INVALID: &str = "masq-invalid";
const FILTER: i32 = 0;
/// `NF_CT_STATE_INVALID_BIT`
const STATE_INVALID: u32 = 0x1;

impl Layout for Masquerade {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[CHAIN, INVALID, GUARD];
    const FIXED: &'static [&'static str] = &[];
    const SAMPLE: Option<&'static str> = Some("masq-0.0.0.0/0");

    fn is_ours(set: &str) -> bool {
        subnet(set).is_some()
    }

    fn claim(_set: &str) -> Claim {
        Claim::Network
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        let hook = match (Self::hook(chain), chain) {
            (Some(hook), _) => hook,
            (None, GUARD) => Hook { kind: "filter", hook: HookPoint::Postrouting, priority: FILTER },
            (None, _) => return batch.create_chain(place),
        };
        batch.create_base_chain(place, hook);
    }

    fn hook(chain: &str) -> Option<Hook> {
        (chain == CHAIN).then_some(Hook::after_nat_of_others(HookPoint::Postrouting))
    }

    /// The guard gets `ct state invalid jump masq-invalid`. The other chains get `ip daddr 224.0.0.0/4 return` and `ip6
    /// daddr ff00::/8 return`.
    fn add_first_rules(batch: &mut Batch, chain: &str) {
        if chain == GUARD {
            let rule = [
                Expr::ct_state(REG1),
                Expr::mask(REG1, &STATE_INVALID.to_ne_bytes()),
                Expr::differ(REG1, &0_u32.to_ne_bytes()),
                Expr::verdict(Verdict::Jump(INVALID.to_owned())),
            ];
            return batch.add_rule(Self::TABLE.chain(chain), &rule, "");
        }
        let groups = [(IpAddr::from([224, 0, 0, 0]), 4), (IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8)];
        for (group, prefix) in groups {
            let mut rule = of_family(group);
            rule.extend(load_network(group, DESTINATION, prefix));
            rule.push(Expr::equal(REG1, &octets(group)));
            rule.push(Expr::verdict(Verdict::Return));
            batch.add_rule(Self::TABLE.chain(chain), &rule, "");
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let Some(subnet) = subnet(set) else { return };
        let key = if subnet.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr };
        batch.create_set(Self::TABLE.set(set), &[key]);
    }

    /// Adds `ip saddr @SET ip daddr != SUBNET … masquerade`, and the same with `drop` for invalid packets. In front of
    /// these stands `ip daddr @SET return`.
    fn add_rule(batch: &mut Batch, set: &str) {
        let Some((subnet, translation)) = read(set) else { return };
        let ip = subnet.ip();
        let mut leaving = of_family(ip);
        leaving.push(load_address(ip, SOURCE));
        leaving.push(Expr::in_set(REG1, set));
        for net in std::iter::once(&subnet).chain(translation.excluded(ip.is_ipv4())) {
            leaving.extend(load_network(net.ip(), DESTINATION, net.prefix()));
            leaving.push(Expr::differ(REG1, &octets(net.ip())));
        }
        let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let translate = match translation.address(ip.is_ipv4()) {
            Some(to) => vec![Expr::immediate(REG1, &octets(to)), Expr::snat(family, REG1)],
            None => vec![Expr::masquerade()],
        };
        for (chain, end) in [(CHAIN, translate), (INVALID, vec![Expr::verdict(Verdict::Drop)])] {
            let rule: Vec<Expr> = leaving.iter().cloned().chain(end).collect();
            batch.add_rule(Self::TABLE.chain(chain), &rule, "");
        }
        let mut to_a_pod = of_family(ip);
        to_a_pod.push(load_address(ip, DESTINATION));
        to_a_pod.push(Expr::in_set(REG1, set));
        to_a_pod.push(Expr::verdict(Verdict::Return));
        batch.insert_rule(Self::TABLE.chain(INVALID), &to_a_pod, "");
    }

    fn has_rules(rules: &[Rule], set: &str) -> bool {
        count_over(rules, CHAIN, set) == 1 && count_over(rules, INVALID, set) == 2
    }

    fn effect(placed: &Placed) -> Option<Effect> {
        Some(Effect::Masquerade { address: placed.element.key.as_ip()?, network: subnet(&placed.set)? })
    }
}

/// Returns how many rules of a chain use a set.
fn count_over(rules: &[Rule], chain: &str, set: &str) -> usize {
    rules.iter().filter(|rule| rule.chain == chain && rule.uses_set(set)).count()
}

/// Returns the name of the set for an address's network and exceptions: `masq-10.1.0.0/16`.
fn set_name(addr: IpNetwork, translation: &Translation) -> String {
    format!("masq-{}{}", network_name(&addr), translation.suffix(addr.is_ipv4()))
}

/// Reads the network and the exceptions from the name of a set. `None` if the set is not of this part.
fn read(set: &str) -> Option<(IpNetwork, Translation)> {
    let mut parts = elements::first_name(set).strip_prefix("masq-")?.split('_');
    Some((network_named(parts.next()?)?, Translation::named(parts)?))
}

fn subnet(set: &str) -> Option<IpNetwork> {
    read(set).map(|(subnet, _)| subnet)
}

/// Returns the owner's elements, one for each address.
pub(crate) fn wanted(owner: &Owner, sources: Sources<'_>) -> Vec<Placed> {
    let comment = owner.comment();
    let placed = sources
        .addrs
        .iter()
        .map(|addr| Placed::new(set_name(*addr, sources.translation), Key::ip(addr.ip()), &comment));
    placed.collect()
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, sources: Sources<'_>) -> netlink::Result<Changes> {
    elements::insert::<Masquerade>(nft, &wanted(owner, sources))
}

pub(super) fn remove(nft: &mut Nft, owner: &Owner, sources: Sources<'_>) -> netlink::Result<()> {
    elements::remove::<Masquerade>(nft, owner, &wanted(owner, sources)).map(drop)
}

/// Returns what is missing, or `None` if the address is masqueraded.
pub(super) fn check(
    nft: &mut Nft,
    owner: &Owner,
    addr: IpNetwork,
    translation: &Translation,
) -> netlink::Result<Option<String>> {
    let name = set_name(addr, translation);
    let set = Masquerade::TABLE.set(&name);
    let key = Key::ip(addr.ip());
    let used = match elements::look_up::<Masquerade>(nft, owner, &name, &key)?.or_fault(set, &key) {
        Ok(placed) => placed.set,
        Err(fault) => return Ok(Some(fault)),
    };
    let rules = nft.rules(Masquerade::TABLE, Some(CHAIN))?;
    if rules.iter().any(|rule| rule.uses_set(&used) && (rule.has("masq") || rule.has("nat"))) {
        return Ok(None);
    }
    let chain = Masquerade::TABLE.chain(CHAIN);
    Ok(Some(format!("chain {chain} has no rule for set {used}")))
}

/// Returns the exceptions in the name of an element's set.
pub(crate) fn translation(placed: &Placed) -> Option<Translation> {
    read(&placed.set).map(|(_, translation)| translation)
}

/// Returns the pod's address in an element, with the prefix length of its network.
pub(crate) fn address(placed: &Placed) -> Option<IpNetwork> {
    IpNetwork::new(placed.element.key.as_ip()?, subnet(&placed.set)?.prefix()).ok()
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
            assert_eq!(set_name(addr, &Translation::default()), name);
            let back = subnet(name).unwrap();
            assert_eq!((back.ip(), back.prefix()), (addr.network(), addr.prefix()));
        }
        assert_eq!(subnet("masq-fd00-1--/64-b70a60970e0f5394"), "fd00:1::/64".parse().ok());
        assert_eq!(
            subnet("masq-10.1.0.0/16_10.0.0.0/8_to-192.0.2.9-b70a60970e0f5394"),
            "10.1.0.0/16".parse().ok()
        );
        assert_eq!(subnet("other"), None);
    }
}
