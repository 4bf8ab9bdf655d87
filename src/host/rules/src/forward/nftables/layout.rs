use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_address, of_family};
use cnimble_netlink::nft::{
    Batch, Expr, Family, Hook, HookPoint, Key, KeyType, Meta, REG1, REG2, Table, Verdict,
};

use crate::elements::{Claim, Layout, Placed, first_name};
use crate::listed::Effect;

/// The layout of forwarding, a part of the table `inet cnimble`.
pub(crate) struct Forwarding;

/// The operator's chain. The plugin makes it and adds no rule to it.
pub(super) const ADMIN: &str = "admin";
pub(super) const POLICY: &str = "forward-policy";
pub(super) const FORWARD: &str = "forward";
const PODS4: &str = "forward4";
const PODS6: &str = "forward6";
/// The bridges with a policy.
pub(super) const BRIDGES: &str = "forward-bridges";
/// Pairs of bridges between which packets may pass. A bridge with the policy `same-bridge` is paired with itself.
pub(super) const INSIDE: &str = "forward-inside";
/// The priority of iptables' filter: `priority filter`.
const FILTER: i32 = 0;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED) | NF_CT_STATE_BIT(IP_CT_RELATED)`
const ESTABLISHED_RELATED: u32 = 0x2 | 0x4;

impl Layout for Forwarding {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[ADMIN, POLICY, FORWARD];
    const FIXED: &'static [&'static str] = &[INSIDE, BRIDGES, PODS4, PODS6];
    const FOREIGN: &'static [&'static str] = &[ADMIN];

    /// A policy belongs to the bridge, and the latest ADD on it decides.
    fn claim(set: &str) -> Claim {
        if [BRIDGES, INSIDE].contains(&set) { Claim::Shared } else { Claim::Network }
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        if chain == FORWARD {
            let hook = Hook { kind: "filter", hook: HookPoint::Forward, priority: FILTER };
            batch.create_base_chain(place, hook);
        } else {
            batch.create_chain(place);
        }
    }

    fn add_first_rules(batch: &mut Batch, chain: &str) {
        if chain == FORWARD {
            for target in [ADMIN, POLICY] {
                let jump = [Expr::verdict(Verdict::Jump(target.to_owned()))];
                batch.add_rule(Self::TABLE.chain(FORWARD), &jump, "");
            }
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let key: &[KeyType] = match first_name(set) {
            PODS4 => &[KeyType::Ipv4Addr],
            PODS6 => &[KeyType::Ipv6Addr],
            BRIDGES => &[KeyType::Ifname],
            _ => &[KeyType::Ifname, KeyType::Ifname],
        };
        batch.create_set(Self::TABLE.set(set), key);
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let ip: IpAddr = match first_name(set) {
            BRIDGES => {
                let rule = [
                    Expr::meta(Meta::Iifname, REG1),
                    Expr::in_set(REG1, BRIDGES),
                    Expr::meta(Meta::Oifname, REG1),
                    Expr::in_set(REG1, BRIDGES),
                    Expr::meta(Meta::Iifname, REG1),
                    Expr::meta(Meta::Oifname, REG2),
                    Expr::not_in_set(REG1, INSIDE),
                    Expr::verdict(Verdict::Drop),
                ];
                return batch.add_rule(Self::TABLE.chain(POLICY), &rule, "");
            }
            PODS4 => Ipv4Addr::UNSPECIFIED.into(),
            PODS6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return,
        };
        let mut answers = of_family(ip);
        answers.push(load_address(ip, DESTINATION));
        answers.push(Expr::in_set(REG1, set));
        answers.push(Expr::ct_state(REG1));
        answers.push(Expr::mask(REG1, &ESTABLISHED_RELATED.to_ne_bytes()));
        answers.push(Expr::differ(REG1, &0_u32.to_ne_bytes()));
        let mut sent = of_family(ip);
        sent.push(load_address(ip, SOURCE));
        sent.push(Expr::in_set(REG1, set));
        for mut rule in [answers, sent] {
            rule.push(Expr::verdict(Verdict::Accept));
            batch.add_rule(Self::TABLE.chain(FORWARD), &rule, "");
        }
    }

    fn effect(placed: &Placed) -> Option<Effect> {
        Some(Effect::Forward { address: address(placed)? })
    }
}

pub(super) fn pods(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { PODS4 } else { PODS6 }
}

/// Returns the key of a bridge paired with itself.
pub(super) fn pair(bridge: &str) -> Key {
    Key::ifname(bridge).and_ifname(bridge)
}

/// Returns whether a set has pods' addresses. The others are about bridges.
pub(super) fn has_pods(set: &str) -> bool {
    [PODS4, PODS6].contains(&first_name(set))
}

/// Returns the pod's address in an element, or `None` for an element of a policy.
pub(crate) fn address(placed: &Placed) -> Option<IpAddr> {
    placed.element.key.as_ip().filter(|_| has_pods(&placed.set))
}
