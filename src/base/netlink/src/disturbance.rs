//! Notifications of changes of the host that can take something from pods.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use super::link::Filter;
use super::link::read::family_and_index;
use super::monitor::{each, listen};
use super::socket::{Protocol, Socket};
use super::uapi::netconf::{NETCONFA_FORWARDING, NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL, NETCONFMSG};
use super::uapi::nf_tables::{
    NFT_MSG_DELTABLE, NFT_MSG_NEWGEN, NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID, NFTA_TABLE_NAME,
};
use super::uapi::nfnetlink::{NFGENMSG, NFNL_SUBSYS_NFTABLES, NFNLGRP_NFTABLES};
use super::uapi::rtnetlink::{
    IFINFOMSG, RT_TABLE_MAIN, RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWLINK, RTM_NEWNETCONF,
    RTM_NEWROUTE, RTMSG, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_NETCONF, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};
use super::wire::{Attributes, Message, u8_at, u32_ne};
use super::{Errno, IfPresent as _, Netlink, Result};

/// A link of these kinds has the addresses of gateways. A pod's own link is of another kind.
const SHARED: [&str; 2] = ["bridge", "vlan"];

/// Follows links, addresses, routes, forwarding and packet rules of one network namespace.
#[derive(Debug)]
pub struct Disturbances {
    host: Socket,
    /// `None` on a kernel without nf_tables.
    rules: Option<Rules>,
    /// Links that are down, or have lost a bridge, an address, a route or forwarding. If the link itself goes, so does its pod.
    suspects: BTreeSet<u32>,
    /// The MTUs of links that may be an uplink.
    mtus: BTreeMap<u32, u32>,
    found: Option<String>,
}

#[derive(Debug)]
struct Rules {
    socket: Socket,
    tables: &'static [&'static str],
    own: &'static [&'static str],
    /// Whether the transaction that is being read changes one of the tables.
    concerns: bool,
}

impl Disturbances {
    /// Follows the current namespace from now on. `tables` of nf_tables are of interest, and each deleted table.
    /// Transactions of processes with an `own` name (proc_pid_comm(5)) are not.
    pub fn open(tables: &'static [&'static str], own: &'static [&'static str]) -> Result<Self> {
        let groups = [
            RTNLGRP_LINK,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_ROUTE,
            RTNLGRP_IPV4_NETCONF,
            RTNLGRP_IPV6_NETCONF,
        ];
        let rules = listen(Protocol::Netfilter, &[NFNLGRP_NFTABLES])
            .map(|socket| Some(Rules { socket, tables, own, concerns: false }))
            .default_for(&[Errno::EPROTONOSUPPORT])?;
        let host = listen(Protocol::Route, &groups)?;
        let links = Netlink::open()?.links(&Filter::default())?;
        let mtus = links.iter().map(|link| (link.index, link.mtu)).collect();
        Ok(Disturbances { host, rules, suspects: BTreeSet::new(), mtus, found: None })
    }

    /// Returns the descriptors that are readable (poll(2)) after a change.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.host.as_fd()).chain(self.rules.iter().map(|rules| rules.socket.as_fd()))
    }

    /// Reads the waiting notifications. Returns whether one of them may be a disturbance.
    pub fn read(&mut self) -> Result<bool> {
        let (suspects, mtus, found) = (&mut self.suspects, &mut self.mtus, &mut self.found);
        let host = each(&mut self.host, "read notifications about links", |message| {
            // Both keep what they read.
            if of_host(message, suspects) | of_uplink(message, mtus) {
                found.get_or_insert_with(|| "of interfaces, addresses or forwarding".to_owned());
            }
        });
        let rules = self.rules.as_mut().map_or(Ok(()), |rules| {
            let Rules { socket, tables, own, concerns } = rules;
            each(socket, "read notifications about packet rules", |message| {
                if let Some(process) = of_rules(message, tables, concerns)
                    && !own.contains(&process.0.as_str())
                {
                    *found = Some(format!("of packet rules by process {} ({})", process.0, process.1));
                }
            })
        });
        for outcome in [host, rules] {
            match outcome {
                Err(err) if err.is(Errno::ENOBUFS) => {
                    self.found = Some("that the kernel could not report (ENOBUFS)".to_owned());
                }
                outcome => outcome?,
            }
        }
        Ok(self.found.is_some() || !self.suspects.is_empty())
    }

    /// Returns the changes since the last call, in words; `None` if there were none or a pod's links went with them.
    pub fn take(&mut self) -> Option<String> {
        let suspects = std::mem::take(&mut self.suspects);
        let links = (!suspects.is_empty()).then(|| "of interfaces, addresses or routes".to_owned());
        self.found.take().or(links)
    }
}

/// Whether the message is a disturbance by itself.
fn of_host(message: &Message<'_>, suspects: &mut BTreeSet<u32>) -> bool {
    let link = || Attributes::behind(message.body, IFINFOMSG);
    let number = |at| u32_ne(message.body, at);
    match message.kind {
        RTM_NEWLINK => {
            let (Some(flags), Some(change)) = (number(8), number(12)) else { return false };
            let up = libc::IFF_UP as u32;
            // A new link has all bits of the change.
            if change != u32::MAX && change & up != 0 && flags & up == 0 {
                suspects.extend(number(4));
            }
            false
        }
        RTM_DELLINK => match family_and_index(message) {
            Some((0, index)) => {
                suspects.remove(&index);
                let kind =
                    link().nested(libc::IFLA_LINKINFO).and_then(|info| info.text(libc::IFLA_INFO_KIND));
                kind.is_some_and(|kind| SHARED.contains(&kind.as_str()))
            }
            // AF_BRIDGE: a link is no longer a port.
            Some((_, index)) => {
                suspects.insert(index);
                false
            }
            None => false,
        },
        RTM_DELADDR => {
            suspects.extend(number(4));
            false
        }
        RTM_DELROUTE => {
            let out = Attributes::behind(message.body, RTMSG).get(libc::RTA_OIF);
            suspects.extend(out.and_then(|bytes| u32_ne(bytes, 0)));
            false
        }
        RTM_NEWNETCONF => {
            let number =
                |kind| Attributes::behind(message.body, NETCONFMSG).get(kind).and_then(|n| u32_ne(n, 0));
            let index = number(NETCONFA_IFINDEX);
            let of_all = index == Some(NETCONFA_IFINDEX_ALL as u32);
            if !of_all && number(NETCONFA_FORWARDING) == Some(0) {
                suspects.extend(index);
            }
            of_all
        }
        _ => false,
    }
}

/// Whether the message tells of another MTU, or of a default route. A pod's link changes only with the uplink.
fn of_uplink(message: &Message<'_>, mtus: &mut BTreeMap<u32, u32>) -> bool {
    match (message.kind, family_and_index(message)) {
        (RTM_NEWLINK, Some((0, index))) => {
            let link = || Attributes::behind(message.body, IFINFOMSG);
            let is_a_pods = link().text(libc::IFLA_IFNAME).is_some_and(|name| name.starts_with("veth"));
            let mtu = link().get(libc::IFLA_MTU).and_then(|mtu| u32_ne(mtu, 0)).filter(|_| !is_a_pods);
            mtu.is_some_and(|mtu| mtus.insert(index, mtu).is_some_and(|before| before != mtu))
        }
        (RTM_DELLINK, Some((0, index))) => {
            mtus.remove(&index);
            false
        }
        (RTM_NEWROUTE, _) => {
            let header = |at| u8_at(message.body, at).map(u32::from);
            header(1) == Some(0) && header(4) == Some(RT_TABLE_MAIN)
        }
        _ => false,
    }
}

/// Returns the name and the ID of the process at the end of a transaction that changes one of the tables.
fn of_rules(message: &Message<'_>, tables: &[&str], concerns: &mut bool) -> Option<(String, u32)> {
    const END: u16 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN;
    const GONE: u16 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE;
    let attributes = Attributes::behind(message.body, NFGENMSG);
    if message.kind != END {
        // The name of the table is the first attribute of each object.
        *concerns |= message.kind == GONE
            || attributes.text(NFTA_TABLE_NAME).is_some_and(|table| tables.contains(&table.as_str()));
        return None;
    }
    let name = attributes.text(NFTA_GEN_PROC_NAME).unwrap_or_default();
    let id = attributes.u32_be(NFTA_GEN_PROC_PID).unwrap_or_default();
    std::mem::take(concerns).then_some((name, id))
}
