//! Policy routing as the kernel lists it, complete enough to explain a refused packet: `ip rule show`, and routes of
//! every type with `ip route show table all`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::lookup::RouteKind;
use super::uapi::fib_rules::{
    FIB_RULE_HDR, FIB_RULE_INVERT, FR_ACT_BLACKHOLE, FR_ACT_PROHIBIT, FR_ACT_TO_TBL, FR_ACT_UNREACHABLE,
    FRA_DST, FRA_FWMARK, FRA_FWMASK, FRA_IIFNAME, FRA_L3MDEV, FRA_PRIORITY, FRA_PROTOCOL, FRA_SRC,
    FRA_SUPPRESS_PREFIXLEN, FRA_TABLE,
};
use super::uapi::rtnetlink::{RTM_F_CLONED, RTM_GETRULE, RTM_NEWROUTE, RTM_NEWRULE, RTMSG};
use super::wire::{self, Attributes, Malformed, Message, Parsed, ip, text, u8_at, u32_ne};
use super::{IfPresent as _, Netlink, Result};

const SHORT: Malformed = Malformed("a message about policy routing is too short");

/// A rule of `ip rule`, with its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Rules with a lower number come first.
    pub priority: u32,
    /// The sources that it is for. `None` is all.
    pub from: Option<IpNetwork>,
    /// The destinations that it is for. `None` is all.
    pub to: Option<IpNetwork>,
    /// The name of the link that the packet arrived at. `None` is any, or this host itself.
    pub input: Option<String>,
    /// A mark of the packet with a mask.
    pub mark: Option<(u32, u32)>,
    /// The effect of the rule on its packets.
    pub action: RuleAction,
    /// Whether it has conditions or effects that these fields lack: `not`, ports, an output link, a suppressed prefix.
    pub more: bool,
}

/// The action of a rule of `ip rule`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The routes of this table count.
    Table(u32),
    /// The routes of the VRF count in which the packet arrives or leaves. Other packets do not meet the rule.
    VrfTable,
    /// Packets are dropped, as by a route of this type.
    Drop(RouteKind),
    /// `goto` and the like.
    Other,
}

/// A route of any type, of any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnyRoute {
    /// The type of the route.
    pub kind: RouteKind,
    /// The destinations of the route.
    pub to: IpNetwork,
    /// The table with the route.
    pub table: u32,
    /// The lowest metric counts.
    pub metric: u32,
}

impl Netlink {
    /// `ip rule show`, of one family, in the order in which they are tried.
    pub fn policy_rules(&mut self, v4: bool) -> Result<Vec<PolicyRule>> {
        let mut header = vec![0; FIB_RULE_HDR];
        put_family(&mut header, v4);
        let message = wire::list(RTM_GETRULE, &header);
        let rules = self.dump_raw("list rules", &message, |message| read_rule(message, v4));
        // The kernel has only one routing table.
        let mut rules = rules.default_for(&[Errno::EOPNOTSUPP])?;
        rules.sort_by_key(|rule| rule.priority);
        Ok(rules)
    }

    /// `ip route show table all`, of one family, with blackholes and the like.
    pub fn routes_of_all_kinds(&mut self, v4: bool) -> Result<Vec<AnyRoute>> {
        let mut header = vec![0; RTMSG];
        put_family(&mut header, v4);
        let message = wire::list(libc::RTM_GETROUTE, &header);
        self.dump_raw("list routes", &message, |message| read_route(message, v4))
    }
}

fn family_number(v4: bool) -> u8 {
    let family = if v4 { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}

fn put_family(header: &mut [u8], v4: bool) {
    if let Some(first) = header.first_mut() {
        *first = family_number(v4);
    }
}

pub(super) fn read_rule(message: &Message<'_>, v4: bool) -> Parsed<Option<PolicyRule>> {
    if message.kind != RTM_NEWRULE || u8_at(message.body, 0).ok_or(SHORT)? != family_number(v4) {
        return Ok(None);
    }
    let [_, to_bits, from_bits, tos, table, _, _, action] = *message.body.first_chunk().ok_or(SHORT)?;
    let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
    let mut table = u32::from(table);
    let mut rule = PolicyRule {
        priority: 0,
        from: None,
        to: None,
        input: None,
        mark: None,
        action: RuleAction::Other,
        more: tos != 0 || flags & FIB_RULE_INVERT != 0,
    };
    let (mut mark, mut mask) = (None, u32::MAX);
    let mut is_for_vrfs = false;
    for attribute in Attributes::behind(message.body, FIB_RULE_HDR) {
        let (kind, value) = attribute?;
        match kind {
            FRA_PRIORITY => rule.priority = u32_ne(value, 0).ok_or(SHORT)?,
            FRA_SRC => rule.from = network(value, from_bits)?,
            FRA_DST => rule.to = network(value, to_bits)?,
            FRA_IIFNAME => rule.input = Some(text(value)),
            FRA_FWMARK => mark = u32_ne(value, 0),
            FRA_FWMASK => mask = u32_ne(value, 0).ok_or(SHORT)?,
            FRA_TABLE => table = u32_ne(value, 0).ok_or(SHORT)?,
            FRA_PROTOCOL => {}
            FRA_L3MDEV => is_for_vrfs = u8_at(value, 0).ok_or(SHORT)? != 0,
            // "None" is -1.
            FRA_SUPPRESS_PREFIXLEN => rule.more |= u32_ne(value, 0) != Some(u32::MAX),
            _ => rule.more = true,
        }
    }
    rule.mark = mark.map(|mark| (mark, mask));
    rule.action = match action {
        FR_ACT_TO_TBL if is_for_vrfs => RuleAction::VrfTable,
        FR_ACT_TO_TBL => RuleAction::Table(table),
        FR_ACT_BLACKHOLE => RuleAction::Drop(RouteKind::Blackhole),
        FR_ACT_UNREACHABLE => RuleAction::Drop(RouteKind::Unreachable),
        FR_ACT_PROHIBIT => RuleAction::Drop(RouteKind::Prohibit),
        _ => RuleAction::Other,
    };
    Ok(Some(rule))
}

fn network(value: &[u8], bits: u8) -> Parsed<Option<IpNetwork>> {
    let address = ip(value).ok_or(SHORT)?;
    let network = IpNetwork::new(address, bits);
    network.map(Some).map_err(|_| Malformed("a prefix longer than the address"))
}

pub(super) fn read_route(message: &Message<'_>, v4: bool) -> Parsed<Option<AnyRoute>> {
    if message.kind != RTM_NEWROUTE || u8_at(message.body, 0).ok_or(SHORT)? != family_number(v4) {
        return Ok(None);
    }
    let [_, prefix, _, _, table, _, _, kind] = *message.body.first_chunk().ok_or(SHORT)?;
    if u32_ne(message.body, 8).ok_or(SHORT)? & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut to: IpAddr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let (mut table, mut metric) = (u32::from(table), 0);
    for attribute in Attributes::behind(message.body, RTMSG) {
        let (attribute, value) = attribute?;
        match attribute {
            libc::RTA_DST => to = ip(value).ok_or(SHORT)?,
            libc::RTA_TABLE => table = u32_ne(value, 0).ok_or(SHORT)?,
            libc::RTA_PRIORITY => metric = u32_ne(value, 0).ok_or(SHORT)?,
            _ => {}
        }
    }
    let to = IpNetwork::new(to, prefix).map_err(|_| Malformed("a prefix longer than the address"))?;
    Ok(Some(AnyRoute { kind: RouteKind::from_number(kind), to, table, metric }))
}
