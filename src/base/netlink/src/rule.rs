//! Routing rules by source address: `ip rule`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::route::{RouteMessage, RouteProtocol};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::request::Mode;
use super::route_read::hops;
use super::uapi::fib_rules::{
    FIB_RULE_HDR, FR_ACT_TO_TBL, FRA_IIFNAME, FRA_OIFNAME, FRA_PRIORITY, FRA_PROTOCOL, FRA_SRC,
    FRA_SUPPRESS_PREFIXLEN, FRA_TABLE,
};
use super::uapi::rtnetlink::{RTM_F_CLONED, RTM_NEWROUTE, RTM_NEWRULE, RTMSG};
use super::wire::{Attributes, Malformed, Message, Parsed, ip, text, u8_at, u32_ne};
use super::{IfPresent as _, Netlink, Request, Result};

const SHORT: Malformed = Malformed("a rule message is too short");

/// A rule of policy routing, `ip rule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The one source address that it is for; `None` for a rule of any other sort, also if it has a source besides.
    pub from: Option<IpAddr>,
    /// The table that it leads to; 0 if it leads to none.
    pub table: u32,
    /// The origin of the rule (`RTPROT_…`, rtnetlink(7)); 0 is unknown.
    pub protocol: u8,
}

/// `ip rule add from ADDRESS table TABLE protocol PROTOCOL`, in front of existing rules. It depends on the kernel
/// whether the very same rule is a second one, or EEXIST.
pub fn add(from: IpAddr, table: u32, protocol: u8) -> Request {
    let message = RouteNetlinkMessage::NewRule(message(from, table, protocol));
    Request::new(format!("add rule from {from} table {table}"), Mode::Create, message)
}

/// `ip rule del from ADDRESS table TABLE protocol PROTOCOL`; the protocol 0 is any.
pub fn del(from: IpAddr, table: u32, protocol: u8) -> Request {
    let message = RouteNetlinkMessage::DelRule(message(from, table, protocol));
    Request::new(format!("delete rule from {from} table {table}"), Mode::Change, message)
}

fn message(from: IpAddr, table: u32, protocol: u8) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::from(from);
    message.header.src_len = IpNetwork::from(from).prefix();
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![RuleAttribute::Source(from), RuleAttribute::Table(table)];
    if protocol != 0 {
        message.attributes.push(RuleAttribute::Protocol(RouteProtocol::from(protocol)));
    }
    message
}

impl Netlink {
    /// `ip rule show`, both families.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP if the kernel has only one routing table.
    pub fn rules(&mut self) -> Result<Vec<Rule>> {
        self.dump("list rules", RouteNetlinkMessage::GetRule(RuleMessage::default()), read)
    }

    /// `ip rule show`: the priority of the first rule that is for packets from or to the link (`iif`, `oif`). A kernel
    /// with only one routing table has none.
    pub fn rule_about(&mut self, link: &str) -> Result<Option<u32>> {
        let message = RouteNetlinkMessage::GetRule(RuleMessage::default());
        let found = self.dump("list rules", message, |message| read_about(message, link));
        Ok(found.default_for(&[Errno::EOPNOTSUPP])?.into_iter().min())
    }

    /// `ip route show table all`: the tables that have routes, with the numbers of the links that these leave by.
    pub fn tables(&mut self) -> Result<BTreeMap<u32, BTreeSet<u32>>> {
        let message = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let mut tables: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (table, links) in self.dump("list routes of all tables", message, read_table)? {
            tables.entry(table).or_default().extend(links);
        }
        Ok(tables)
    }
}

fn is_inet(message: &Message<'_>) -> Parsed<bool> {
    let family = i32::from(u8_at(message.body, 0).ok_or(SHORT)?);
    Ok(family == libc::AF_INET || family == libc::AF_INET6)
}

pub(super) fn read(message: &Message<'_>) -> Parsed<Option<Rule>> {
    if message.kind != RTM_NEWRULE || !is_inet(message)? {
        return Ok(None);
    }
    let [_, to, length, tos, table, _, _, action] = *message.body.first_chunk().ok_or(SHORT)?;
    let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
    let mut plain = to == 0 && tos == 0 && action == FR_ACT_TO_TBL && flags == 0;
    let (mut from, mut table, mut protocol) = (None, u32::from(table), 0);
    for attribute in Attributes::behind(message.body, FIB_RULE_HDR) {
        let (kind, value) = attribute?;
        match kind {
            FRA_SRC => from = ip(value),
            FRA_TABLE => table = u32_ne(value, 0).ok_or(SHORT)?,
            FRA_PROTOCOL => protocol = u8_at(value, 0).ok_or(SHORT)?,
            FRA_PRIORITY => {}
            // "None" is -1.
            FRA_SUPPRESS_PREFIXLEN => plain &= u32_ne(value, 0) == Some(u32::MAX),
            _ => plain = false,
        }
    }
    let table = if action == FR_ACT_TO_TBL { table } else { 0 };
    let from = from.filter(|from| plain && length == IpNetwork::from(*from).prefix());
    Ok(Some(Rule { from, table, protocol }))
}

/// The priority of the rule in an RTM_NEWRULE, if it is about the link.
pub(super) fn read_about(message: &Message<'_>, link: &str) -> Parsed<Option<u32>> {
    if message.kind != RTM_NEWRULE || !is_inet(message)? {
        return Ok(None);
    }
    let (mut is_about, mut priority) = (false, 0);
    for attribute in Attributes::behind(message.body, FIB_RULE_HDR) {
        let (kind, value) = attribute?;
        match kind {
            FRA_IIFNAME | FRA_OIFNAME => is_about |= text(value) == link,
            FRA_PRIORITY => priority = u32_ne(value, 0).ok_or(SHORT)?,
            _ => {}
        }
    }
    Ok(is_about.then_some(priority))
}

/// Table and links of the route in an RTM_NEWROUTE.
pub(super) fn read_table(message: &Message<'_>) -> Parsed<Option<(u32, Vec<u32>)>> {
    if message.kind != RTM_NEWROUTE || !is_inet(message)? {
        return Ok(None);
    }
    if u32_ne(message.body, 8).ok_or(SHORT)? & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut table = u32::from(u8_at(message.body, 4).ok_or(SHORT)?);
    let mut links = Vec::new();
    for attribute in Attributes::behind(message.body, RTMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::RTA_TABLE => table = u32_ne(value, 0).ok_or(SHORT)?,
            libc::RTA_OIF => links.extend(u32_ne(value, 0)),
            libc::RTA_MULTIPATH => {
                for hop in hops(value)? {
                    links.extend(u32_ne(hop, 4));
                }
            }
            _ => {}
        }
    }
    Ok(Some((table, links)))
}
