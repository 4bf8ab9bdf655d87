//! Routing rules by source address: `ip rule`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::request::Mode;
use super::uapi::fib_rules::{
    FIB_RULE_HDR, FR_ACT_TO_TBL, FRA_PRIORITY, FRA_PROTOCOL, FRA_SRC, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE,
};
use super::uapi::netlink::{NLM_F_DUMP, NLM_F_REQUEST};
use super::uapi::rtnetlink::{
    RTM_DELRULE, RTM_F_CLONED, RTM_GETROUTE, RTM_GETRULE, RTM_NEWROUTE, RTM_NEWRULE, RTMSG, RTNEXTHOP,
};
use super::wire::{self, Attributes, Malformed, Message, ip, u8_at, u16_ne, u32_ne};
use super::{Netlink, Request, Result};

const SHORT: Malformed = Malformed("a rule message is too short");

/// A routing rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The one source address that it is for; `None` for a rule of any other sort, also if it has a
    /// source besides.
    pub from: Option<IpAddr>,
    /// The table that it leads to; 0 if it leads to none.
    pub table: u32,
    /// The origin of the rule (`RTPROT_…`, rtnetlink(7)); 0 is unknown.
    pub protocol: u8,
}

/// `ip rule add from ADDRESS table TABLE protocol PROTOCOL`, in front of those that are there. The very same
/// rule is a second one, or EEXIST, whichever the kernel thinks right.
pub fn add(from: IpAddr, table: u32, protocol: u8) -> Request {
    of("add", Mode::Create, RTM_NEWRULE, from, table, protocol)
}

/// `ip rule del from ADDRESS table TABLE protocol PROTOCOL`; the protocol 0 is any.
pub fn del(from: IpAddr, table: u32, protocol: u8) -> Request {
    of("delete", Mode::Change, RTM_DELRULE, from, table, protocol)
}

fn of(verb: &str, mode: Mode, kind: u16, from: IpAddr, table: u32, protocol: u8) -> Request {
    let what = format!("{verb} rule from {from} table {table}");
    let (family, bits, bytes) = match from {
        IpAddr::V4(ip) => (libc::AF_INET, 32, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, 128, ip.octets().to_vec()),
    };
    let family = u8::try_from(family).unwrap_or_default();
    let header = [family, 0, bits, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    Request::written(what, mode, kind, &header, |w| {
        w.bytes(FRA_SRC, &bytes);
        w.u32_ne(FRA_TABLE, table);
        if protocol != 0 {
            w.bytes(FRA_PROTOCOL, &[protocol]);
        }
    })
}

impl Netlink {
    /// `ip rule show`, both families.
    ///
    /// # Errors
    /// The kernel's; EOPNOTSUPP if it has one routing table only.
    pub fn rules(&mut self) -> Result<Vec<Rule>> {
        let message = wire::message(RTM_GETRULE, NLM_F_REQUEST | NLM_F_DUMP, &[0; FIB_RULE_HDR], |_| {});
        self.dump_raw("list rules", &message, read)
    }

    /// `ip route show table all`: the tables that have routes, with the numbers of the links that these
    /// leave by.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request.
    pub fn tables(&mut self) -> Result<BTreeMap<u32, BTreeSet<u32>>> {
        let message = wire::message(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, &[0; RTMSG], |_| {});
        let mut tables: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (table, links) in self.dump_raw("list routes of all tables", &message, read_table)? {
            tables.entry(table).or_default().extend(links);
        }
        Ok(tables)
    }
}

fn is_inet(message: &Message<'_>) -> std::result::Result<bool, Malformed> {
    let family = i32::from(u8_at(message.body, 0).ok_or(SHORT)?);
    Ok(family == libc::AF_INET || family == libc::AF_INET6)
}

/// The rule in an RTM_NEWRULE.
pub(super) fn read(message: &Message<'_>) -> std::result::Result<Option<Rule>, Malformed> {
    if message.kind != RTM_NEWRULE || !is_inet(message)? {
        return Ok(None);
    }
    let header = |offset| u8_at(message.body, offset).ok_or(SHORT);
    let (to, bits, tos, action) = (header(1)?, header(2)?, header(3)?, header(7)?);
    let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
    let mut plain = to == 0 && tos == 0 && action == FR_ACT_TO_TBL && flags == 0;
    let (mut from, mut table, mut protocol) = (None, u32::from(header(4)?), 0);
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
    let whole = |from: &IpAddr| bits == if from.is_ipv4() { 32 } else { 128 };
    let table = if action == FR_ACT_TO_TBL { table } else { 0 };
    Ok(Some(Rule { from: from.filter(whole).filter(|_| plain), table, protocol }))
}

/// Table and links of the route in an RTM_NEWROUTE.
pub(super) fn read_table(message: &Message<'_>) -> std::result::Result<Option<(u32, Vec<u32>)>, Malformed> {
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
                let mut hops = value;
                while !hops.is_empty() {
                    let length = usize::from(u16_ne(hops, 0).ok_or(SHORT)?);
                    if length < RTNEXTHOP {
                        return Err(SHORT);
                    }
                    links.extend(u32_ne(hops, 4));
                    hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Ok(Some((table, links)))
}
