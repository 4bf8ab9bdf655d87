//! The way of marked packets through nf_tables: `nft monitor trace`.
//!
//! [`Nft::trace_packets`] marks packets by a table that belongs to its socket (Linux 5.12). The kernel deletes the table
//! when the socket closes, so a killed process leaves nothing. iptables-nft is nf_tables, too; legacy iptables isn't.

use std::os::fd::{AsFd, BorrowedFd};

use super::expr::Verdict;
use super::{BaseChain, Batch, Expr, Family, Hook, HookPoint, Nft, Query, REG1, Table};
use crate::monitor::{for_each_waiting, listen};
use crate::socket::{Protocol, Socket};
use crate::uapi::nf_tables::{
    NFT_META_NFTRACE, NFT_MSG_GETCHAIN, NFT_MSG_TRACE, NFT_TRACETYPE_POLICY, NFT_TRACETYPE_RULE,
    NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_DEVICE_NAME, NFTA_HOOK_DEV,
    NFTA_HOOK_DEVS, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_TRACE_CHAIN, NFTA_TRACE_ID,
    NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_POLICY, NFTA_TRACE_RULE_HANDLE, NFTA_TRACE_TABLE,
    NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_TYPE, NFTA_TRACE_VERDICT,
};
use crate::uapi::nfnetlink::{NF_DROP, NFGENMSG, NFNL_SUBSYS_NFTABLES, NFNLGRP_NFTRACE, NFPROTO_UNSPEC};
use crate::wire::{Attributes, Message, text, u8_at};
use crate::{NetNs, Result};

/// The priority in front of all other chains, so that all of them are traced.
const FIRST: i32 = i32::MIN;

/// The priority behind the chains of others, so that these see a packet that [`Nft::drop_traced`] drops. Connection
/// tracking comes last, at `i32::MAX` (NF_IP_PRI_CONNTRACK_CONFIRM).
const LAST: i32 = i32::MAX - 1;

/// The name of the chain of [`Nft::drop_traced`].
pub const DROPPING_CHAIN: &str = "postrouting";

/// One step of a traced packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceStep {
    /// One packet has one number on its way, and another one when a bridge hands it to the IP layer.
    pub id: u32,
    /// The family of the table.
    pub family: Family,
    /// The name of the table.
    pub table: String,
    /// The name of the chain.
    pub chain: String,
    /// The handle of the rule. `None` for the policy or the end of a chain.
    pub rule: Option<u64>,
    /// Whether the packet was dropped here.
    pub dropped: bool,
    /// The first bytes of the network header: a whole packet of ARP, or the header of IPv6. The kernel tells them once
    /// for each base chain.
    pub network: Vec<u8>,
    /// The first bytes of the transport header. The kernel tells them once for each base chain.
    pub transport: Vec<u8>,
}

/// A base chain with its hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookedChain {
    /// The chain with its table.
    pub chain: BaseChain,
    /// The hook that it gets packets from. The hooks of bridges have the same names.
    pub hook: HookPoint,
    /// The priority. Chains with lower numbers come first.
    pub priority: i32,
}

/// A chain on one link, such as one of the family netdev. It sees packets before or after all other chains, and no trace
/// shows its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChain {
    /// The name of the link.
    pub link: String,
    /// The name of the table.
    pub table: String,
    /// The name of the chain.
    pub chain: String,
}

/// The steps of traced packets in one namespace.
#[derive(Debug)]
pub struct TraceMonitor {
    socket: Socket,
}

impl TraceMonitor {
    /// Opens a socket in the network namespace of this thread, and listens. Steps before that aren't told.
    pub fn open() -> Result<Self> {
        Ok(TraceMonitor { socket: listen(Protocol::Netfilter, &[NFNLGRP_NFTRACE])? })
    }

    /// Returns the steps since the last call. Does not wait.
    ///
    /// # Errors
    /// Fails with ENOBUFS if a step was lost.
    pub fn read(&mut self) -> Result<Vec<TraceStep>> {
        let mut steps = Vec::new();
        for_each_waiting(&mut self.socket, "read the trace of a packet", |message| {
            steps.extend(read(message));
        })?;
        Ok(steps)
    }
}

impl AsFd for TraceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Expr {
    /// `meta set nftrace with reg N`, for [`REG1`].
    fn set_trace() -> Self {
        Expr::meta_set(NFT_META_NFTRACE, REG1)
    }
}

impl Nft {
    /// Makes the tables `name` of the families inet and bridge, which trace packets that match one of `matches`. These
    /// are packets that arrive, and those that this namespace makes. The kernel deletes the tables when this value's
    /// socket closes. If the table of bridges can't be made, packets are traced without it.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP or EINVAL on a kernel before 5.12.
    pub fn trace_packets(&mut self, name: &str, matches: &[Vec<Expr>]) -> Result<()> {
        self.trace_in(Table::new(Family::Inet, name), matches)?;
        // A kernel without nf_tables for bridges has no rules there.
        match self.trace_in(Table::new(Family::Bridge, name), matches) {
            Err(err) => {
                log::debug!("frames of bridges are not traced: {err}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Makes a table that traces packets at the hooks prerouting and output, in front of all other chains.
    fn trace_in(&mut self, table: Table<'_>, matches: &[Vec<Expr>]) -> Result<()> {
        let mut batch = Batch::new();
        batch.create_owned_table(table);
        for (name, hook) in [("prerouting", HookPoint::Prerouting), ("output", HookPoint::Output)] {
            let chain = table.chain(name);
            batch.create_base_chain(chain, Hook { kind: "filter", hook, priority: FIRST });
            for condition in matches {
                let mut rule = condition.clone();
                rule.extend([Expr::immediate(REG1, &[1]), Expr::set_trace()]);
                batch.add_rule(chain, &rule, "");
            }
        }
        self.commit(&batch)
    }

    /// Drops packets that match one of `matches` before they leave the host, in the table `name` of the family inet that
    /// [`trace_packets`](Self::trace_packets) has made. Their last step then names [`DROPPING_CHAIN`].
    ///
    /// # Errors
    /// Fails if the table is not there, or belongs to another socket.
    pub fn drop_traced(&mut self, name: &str, matches: &[Vec<Expr>]) -> Result<()> {
        let chain = Table::new(Family::Inet, name).chain(DROPPING_CHAIN);
        let mut batch = Batch::new();
        batch.create_base_chain(chain, Hook { kind: "filter", hook: HookPoint::Postrouting, priority: LAST });
        for condition in matches {
            let mut rule = condition.clone();
            rule.push(Expr::verdict(Verdict::Drop));
            batch.add_rule(chain, &rule, "");
        }
        self.commit(&batch)
    }

    /// Returns the base chains of all tables of the families that are known here, with their hooks. They are sorted by
    /// priority, so those of one hook are in the order in which a packet meets them.
    pub fn hooked_chains(&mut self) -> Result<Vec<HookedChain>> {
        let query = Query { kind: NFT_MSG_GETCHAIN, family: NFPROTO_UNSPEC, what: "list base chains" };
        let mut found =
            self.list(&query, |_| {}, |family, attrs| hooked(family, attrs).into_iter().collect())?;
        found.sort_by_key(|of: &HookedChain| of.priority);
        Ok(found)
    }

    /// Returns the chains on links, of all families. A chain on several links is there once for each.
    pub fn device_chains(&mut self) -> Result<Vec<DeviceChain>> {
        let query = Query { kind: NFT_MSG_GETCHAIN, family: NFPROTO_UNSPEC, what: "list base chains" };
        self.list(&query, |_| {}, |_, attrs| on_devices(attrs).unwrap_or_default())
    }

    /// Opens a socket in the network namespace of this thread at once. Listings don't replace it, so tables that belong
    /// to it stay until this value is dropped.
    pub fn open_here() -> Result<Self> {
        Nft::open_in(&NetNs::current()?)
    }
}

/// Reads a base chain. `None` for a chain without a hook, or with one that isn't known here.
fn hooked(family: u8, attrs: Attributes<'_>) -> Option<HookedChain> {
    let at = attrs.nested(NFTA_CHAIN_HOOK)?;
    let drops = attrs.u32_be(NFTA_CHAIN_POLICY) == Some(NF_DROP.cast_unsigned());
    Some(HookedChain {
        chain: BaseChain {
            family: Family::from_number(family)?,
            table: attrs.text(NFTA_CHAIN_TABLE)?,
            name: attrs.text(NFTA_CHAIN_NAME)?,
            drops,
        },
        hook: HookPoint::from_number(at.u32_be(NFTA_HOOK_HOOKNUM)?)?,
        priority: at.u32_be(NFTA_HOOK_PRIORITY)?.cast_signed(),
    })
}

/// Reads the links of a base chain. `None` for a chain without any.
fn on_devices(attrs: Attributes<'_>) -> Option<Vec<DeviceChain>> {
    let at = attrs.nested(NFTA_CHAIN_HOOK)?;
    let mut links: Vec<String> = at.text(NFTA_HOOK_DEV).into_iter().collect();
    for device in at.nested(NFTA_HOOK_DEVS).into_iter().flatten() {
        let (kind, name) = device.ok()?;
        links.extend((kind == NFTA_DEVICE_NAME).then(|| text(name)));
    }
    links.dedup();
    let (table, chain) = (attrs.text(NFTA_CHAIN_TABLE)?, attrs.text(NFTA_CHAIN_NAME)?);
    let on_link = |link| DeviceChain { link, table: table.clone(), chain: chain.clone() };
    Some(links.into_iter().map(on_link).collect())
}

/// Reads the step in an NFT_MSG_TRACE. `None` for another message, and for a step of another family.
pub(crate) fn read(message: &Message<'_>) -> Option<TraceStep> {
    if message.kind != NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_TRACE {
        return None;
    }
    let family = Family::from_number(u8_at(message.body, 0)?)?;
    let attrs = Attributes::behind(message.body, NFGENMSG);
    let kind = attrs.u32_be(NFTA_TRACE_TYPE)?;
    let verdict = attrs.nested(NFTA_TRACE_VERDICT).and_then(Verdict::parse);
    let policy = attrs.u32_be(NFTA_TRACE_POLICY);
    let dropped = match kind {
        NFT_TRACETYPE_RULE => verdict == Some(Verdict::Drop),
        NFT_TRACETYPE_POLICY => policy == Some(NF_DROP.cast_unsigned()),
        _ => false,
    };
    Some(TraceStep {
        id: attrs.u32_be(NFTA_TRACE_ID)?,
        family,
        table: attrs.text(NFTA_TRACE_TABLE)?,
        chain: attrs.text(NFTA_TRACE_CHAIN)?,
        rule: attrs.u64_be(NFTA_TRACE_RULE_HANDLE).filter(|_| kind == NFT_TRACETYPE_RULE),
        dropped,
        network: attrs.get(NFTA_TRACE_NETWORK_HEADER).unwrap_or_default().to_vec(),
        transport: attrs.get(NFTA_TRACE_TRANSPORT_HEADER).unwrap_or_default().to_vec(),
    })
}
