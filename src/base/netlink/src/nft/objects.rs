//! The objects of nf_tables by their names: families, tables, chains, sets and hooks.

use std::fmt;

use crate::uapi::nf_tables::{
    NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE,
};
use crate::uapi::nfnetlink::{
    NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING,
    NFPROTO_BRIDGE, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6,
};
use crate::wire::Writer;

/// The packets that a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Both IPv4 and IPv6.
    Inet,
    /// Packets of IPv4 alone.
    Ipv4,
    /// Packets of IPv6 alone.
    Ipv6,
    /// Frames that a bridge forwards.
    Bridge,
}

impl Family {
    /// The number `NFPROTO_*` of linux/netfilter.h.
    pub(super) fn number(self) -> u8 {
        match self {
            Family::Inet => NFPROTO_INET,
            Family::Ipv4 => NFPROTO_IPV4,
            Family::Bridge => NFPROTO_BRIDGE,
            Family::Ipv6 => NFPROTO_IPV6,
        }
    }

    /// The family with this number, if it is one of these.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        let all = [Family::Inet, Family::Ipv4, Family::Ipv6, Family::Bridge];
        all.into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table's name. Displayed as `inet cnimble`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// The family of packets.
    pub family: Family,
    /// The name of the object.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// The table `family name`.
    pub const fn new(family: Family, name: &'a str) -> Self {
        Table { family, name }
    }
    /// A chain in it.
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }
    /// A set or map in it.
    pub const fn set(self, name: &'a str) -> Set<'a> {
        Set { table: self, name }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A chain's name. Displayed as `inet cnimble postrouting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The table with it.
    pub table: Table<'a>,
    /// The name of the object.
    pub name: &'a str,
}

impl Chain<'_> {
    /// Names it in a message about chains.
    pub(super) fn write(self, w: &mut Writer) {
        w.text(NFTA_CHAIN_TABLE, self.table.name);
        w.text(NFTA_CHAIN_NAME, self.name);
    }

    /// Names it in a message about rules.
    pub(super) fn write_of_rules(self, w: &mut Writer) {
        w.text(NFTA_RULE_TABLE, self.table.name);
        w.text(NFTA_RULE_CHAIN, self.name);
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// A chain that packets enter from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// The family of its table.
    pub family: Family,
    /// The name of its table.
    pub table: String,
    /// The name of the chain.
    pub name: String,
    /// Whether it drops what none of its rules decides about (`policy drop`).
    pub drops: bool,
}

/// A set's or map's name. Displayed as `inet cnimble ports`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set<'a> {
    /// The table with it.
    pub table: Table<'a>,
    /// The name of the object.
    pub name: &'a str,
}

impl Set<'_> {
    /// Names it in a message about sets.
    pub(super) fn write(self, w: &mut Writer) {
        w.text(NFTA_SET_TABLE, self.table.name);
        w.text(NFTA_SET_NAME, self.name);
    }

    /// Names it in a message about elements.
    pub(super) fn write_of_elements(self, w: &mut Writer) {
        w.text(NFTA_SET_ELEM_LIST_TABLE, self.table.name);
        w.text(NFTA_SET_ELEM_LIST_SET, self.name);
    }
}

impl fmt::Display for Set<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// The hook that a base chain gets its packets from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// The type: `filter` or `nat`.
    pub kind: &'static str,
    /// The place in the kernel (`NF_INET_*` or `NF_BR_*`, whose numbers agree).
    pub hook: HookPoint,
    /// The order among the chains at this hook, lower first. nft(8) has names for some priorities.
    pub priority: i32,
}

impl Hook {
    /// Returns the hook of a chain of type `nat` one step after the priorities of NAT. There iptables' table `nat`,
    /// kube-proxy and Docker have their chains. The first translation of a connection counts, so their rules win over
    /// those of the chain. At the same priority, the chain that was made last would win.
    pub const fn after_nat_of_others(hook: HookPoint) -> Self {
        // The numbers of `priority dstnat` and `priority srcnat` in nft(8).
        const DSTNAT: i32 = -100;
        const SRCNAT: i32 = 100;
        let priority = match hook {
            HookPoint::Postrouting | HookPoint::Input => SRCNAT + 1,
            HookPoint::Prerouting | HookPoint::Output | HookPoint::Forward => DSTNAT + 1,
        };
        Hook { kind: "nat", hook, priority }
    }
}

/// A hook of netfilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // as in nft(8)
pub enum HookPoint {
    Prerouting = NF_INET_PRE_ROUTING,
    Input = NF_INET_LOCAL_IN,
    Output = NF_INET_LOCAL_OUT,
    Forward = NF_INET_FORWARD,
    Postrouting = NF_INET_POST_ROUTING,
}

impl HookPoint {
    /// The hook with this number, if it is one of these.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        let all = [
            HookPoint::Prerouting,
            HookPoint::Input,
            HookPoint::Output,
            HookPoint::Forward,
            HookPoint::Postrouting,
        ];
        all.into_iter().find(|hook| *hook as u32 == number)
    }
}

/// Writes the hook as nft(8) does.
impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookPoint::Prerouting => "prerouting",
            HookPoint::Input => "input",
            HookPoint::Output => "output",
            HookPoint::Forward => "forward",
            HookPoint::Postrouting => "postrouting",
        })
    }
}
