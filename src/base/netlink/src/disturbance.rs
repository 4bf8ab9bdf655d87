//! Notifications of changes of the host that can take something from pods.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use cnimble_cni::owner::tag;

use super::link::port::{Frames, Port, read_port};
use super::link::read::family_and_index;
use super::link::{Filter, Mac};
use super::monitor::{for_each_waiting, listen};
use super::nft::Element;
use super::port_state::PortState;
use super::socket::{Protocol, Socket};
use super::uapi::if_link::{IFF_LOWER_UP, IFF_UP};
use super::uapi::netconf::{NETCONFA_FORWARDING, NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL, NETCONFMSG};
use super::uapi::nf_tables::{
    NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_DELSET, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE, NFT_MSG_NEWGEN,
    NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID, NFTA_TABLE_NAME,
};
use super::uapi::nfnetlink::{NFGENMSG, NFNL_SUBSYS_NFTABLES, NFNLGRP_NFTABLES};
use super::uapi::rtnetlink::{
    IFINFOMSG, RT_TABLE_MAIN, RTM_DELADDR, RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELTCLASS,
    RTM_DELTFILTER, RTM_NEWLINK, RTM_NEWNETCONF, RTM_NEWROUTE, RTMSG, RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_NETCONF, RTNLGRP_IPV6_ROUTE,
    RTNLGRP_LINK, RTNLGRP_TC, TCM_IFINDEX,
};
use super::wire::{Attributes, Message, u8_at, u32_ne};
use super::{Errno, IfPresent as _, Netlink, Result};

/// The kinds of links that have the addresses of gateways. A pod's own link is of another kind.
const SHARED: [&str; 2] = ["bridge", "vlan"];

/// The kind of the devices on which pods' traffic is limited.
const DEVICE: &str = "ifb";

/// Follows links, addresses, routes, forwarding, traffic control and packet rules of one network namespace.
///
/// A message that only adds something is no disturbance, nor is one about an object that goes with its pod: a DEL
/// removes the elements and the limits of a pod, and then its link.
#[derive(Debug)]
pub struct Disturbances {
    host: Socket,
    /// `None` on a kernel without nf_tables.
    rules: Option<Rules>,
    seen: PendingChanges,
}

/// The changes that were read since the last [`Disturbances::take_changes`], and the known state of links.
#[derive(Debug, Default)]
struct PendingChanges {
    /// Links that are down, or have lost a bridge, an address, a route, a flag or forwarding. If the link itself goes,
    /// so does its pod.
    suspects: BTreeSet<u32>,
    /// Links that have lost a part of traffic control.
    unlimited: BTreeSet<u32>,
    /// The owners ([`tag`]) of deleted elements and devices.
    losers: BTreeSet<String>,
    /// The owners of deleted links.
    leavers: BTreeSet<String>,
    /// The MTUs and MACs of links that may be a bridge or an uplink.
    links: BTreeMap<u32, (u32, Option<Mac>)>,
    /// The flags of bridge ports.
    ports: BTreeMap<u32, Flags>,
    /// A change that is surely a disturbance, in words.
    found: Option<String>,
    /// The process that changed packet rules last.
    process: Option<String>,
}

/// The flags of a bridge port that are on. The mask keeps frames to reserved addresses from the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flags {
    port: Port,
    frames: Frames,
}

#[derive(Debug)]
struct Rules {
    socket: Socket,
    tables: &'static [&'static str],
    /// The name of the table that has only rules of ours.
    own: &'static str,
    /// Whether the transaction that is being read takes a rule, a set or a chain away.
    takes: bool,
    /// The owners of the elements that it deletes.
    losers: BTreeSet<String>,
}

impl Disturbances {
    /// Follows the current namespace from now on. Of nf_tables, the `tables` are of interest, and each deleted table.
    /// In the table `own` only deletions are, because nobody else adds rules there.
    pub fn open(tables: &'static [&'static str], own: &'static str) -> Result<Self> {
        let groups = [
            RTNLGRP_LINK,
            RTNLGRP_TC,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_ROUTE,
            RTNLGRP_IPV4_NETCONF,
            RTNLGRP_IPV6_NETCONF,
        ];
        let rules = listen(Protocol::Netfilter, &[NFNLGRP_NFTABLES])
            .map(|socket| Some(Rules { socket, tables, own, takes: false, losers: BTreeSet::new() }))
            .default_for(&[Errno::EPROTONOSUPPORT])?;
        let host = listen(Protocol::Route, &groups)?;
        let mut seen = PendingChanges::default();
        for link in Netlink::open()?.links(&Filter::default())? {
            if let Some((port, frames)) = link.port.zip(link.frames) {
                seen.ports.insert(link.index, Flags { port, frames });
            }
            seen.links.insert(link.index, (link.mtu, link.mac));
        }
        Ok(Disturbances { host, rules, seen })
    }

    /// Returns the descriptors that are readable (poll(2)) after a change.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.host.as_fd()).chain(self.rules.iter().map(|rules| rules.socket.as_fd()))
    }

    /// Reads the waiting notifications. Returns whether one of them may be a disturbance.
    pub fn read(&mut self) -> Result<bool> {
        let seen = &mut self.seen;
        let host = for_each_waiting(&mut self.host, "read notifications about links", |message| {
            seen.note_host(message);
            seen.note_uplink(message);
        });
        let rules = self.rules.as_mut().map_or(Ok(()), |rules| {
            let Rules { socket, tables, own, takes, losers } = rules;
            for_each_waiting(socket, "read notifications about packet rules", |message| {
                let end = read_rules(message, tables, own, takes, losers);
                if let Some(process) = end {
                    seen.note_transaction(&process, std::mem::take(takes), &std::mem::take(losers));
                }
            })
        });
        for outcome in [host, rules] {
            match outcome {
                Err(err) if err.is(Errno::ENOBUFS) => {
                    self.seen.found = Some("that the kernel could not report (ENOBUFS)".to_owned());
                }
                outcome => outcome?,
            }
        }
        Ok(self.seen.is_disturbed())
    }

    /// Returns whether all that was read may be the beginning of a DEL, which deletes the pod's link at its end.
    pub fn may_be_a_removal(&self) -> bool {
        self.seen.is_disturbed() && !self.seen.is_surely_disturbed()
    }

    /// Returns the changes since the last call, in words. Returns `None` if there were none, or if the pods' links were
    /// deleted with what they lost.
    pub fn take_changes(&mut self) -> Option<String> {
        let is_disturbed = self.seen.is_disturbed();
        let seen = PendingChanges {
            links: std::mem::take(&mut self.seen.links),
            ports: std::mem::take(&mut self.seen.ports),
            ..PendingChanges::default()
        };
        let PendingChanges { suspects, losers, found, process, .. } = std::mem::replace(&mut self.seen, seen);
        if !is_disturbed {
            return None;
        }
        let of_rules = process.filter(|_| !losers.is_empty()).map(|by| format!("of packet rules by {by}"));
        let of_links = (!suspects.is_empty()).then(|| "of interfaces, addresses or routes".to_owned());
        found.or(of_rules).or(of_links).or_else(|| Some("of a limit of bandwidth".to_owned()))
    }
}

impl PendingChanges {
    fn is_disturbed(&self) -> bool {
        self.is_surely_disturbed() || !self.losers.is_empty() || !self.unlimited.is_empty()
    }

    fn is_surely_disturbed(&self) -> bool {
        self.found.is_some() || !self.suspects.is_empty()
    }

    fn note_disturbance(&mut self, what: &str) {
        self.found.get_or_insert_with(|| what.to_owned());
    }

    fn note_host(&mut self, message: &Message<'_>) {
        match message.kind {
            RTM_NEWLINK => self.note_link(message),
            RTM_DELLINK => self.note_deleted_link(message),
            RTM_DELADDR => self.suspects.extend(u32_ne(message.body, 4)),
            RTM_DELQDISC | RTM_DELTCLASS | RTM_DELTFILTER => {
                self.unlimited.extend(u32_ne(message.body, TCM_IFINDEX));
            }
            RTM_DELROUTE => {
                let out = Attributes::behind(message.body, RTMSG).get(libc::RTA_OIF);
                self.suspects.extend(out.and_then(|bytes| u32_ne(bytes, 0)));
            }
            RTM_NEWNETCONF => {
                let switches = Attributes::behind(message.body, NETCONFMSG);
                let index = switches.get(NETCONFA_IFINDEX).and_then(|index| u32_ne(index, 0));
                let forwarding = switches.get(NETCONFA_FORWARDING).and_then(|on| u32_ne(on, 0));
                if index == Some(NETCONFA_IFINDEX_ALL as u32) {
                    self.note_disturbance("of forwarding");
                } else if forwarding == Some(0) {
                    self.suspects.extend(index);
                }
            }
            _ => {}
        }
    }

    fn note_link(&mut self, message: &Message<'_>) {
        let (Some((family, index)), Some(flags), Some(change)) =
            (family_and_index(message), u32_ne(message.body, 8), u32_ne(message.body, 12))
        else {
            return;
        };
        // A notification about a new link has all bits of the change set.
        if change != u32::MAX && change & IFF_UP != 0 && flags & IFF_UP == 0 {
            self.suspects.insert(index);
        }
        if i32::from(family) == libc::AF_BRIDGE
            && let Some(port) = Attributes::behind(message.body, IFINFOMSG).nested(libc::IFLA_PROTINFO)
            && let Ok((port, frames)) = read_port(port)
        {
            let now = Flags { port, frames };
            let has_carrier = flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0;
            let before = self.ports.insert(index, now);
            if (now.frames.state == PortState::Disabled && has_carrier)
                || before.is_some_and(|before| now.lacks(before))
            {
                self.suspects.insert(index);
            }
        }
    }

    fn note_deleted_link(&mut self, message: &Message<'_>) {
        let Some((family, index)) = family_and_index(message) else { return };
        self.ports.remove(&index);
        // AF_BRIDGE: a link is no longer a port.
        if family != 0 {
            self.suspects.insert(index);
            return;
        }
        self.suspects.remove(&index);
        self.unlimited.remove(&index);
        self.links.remove(&index);
        let link = Attributes::behind(message.body, IFINFOMSG);
        let kind = link.nested(libc::IFLA_LINKINFO).and_then(|info| info.text(libc::IFLA_INFO_KIND));
        let kind = kind.unwrap_or_default();
        let alias = link.text(libc::IFLA_IFALIAS).unwrap_or_default();
        if SHARED.contains(&kind.as_str()) {
            self.note_disturbance("of interfaces, addresses or forwarding");
        } else if kind == DEVICE {
            match tag(&alias) {
                Some(owner) if self.leavers.contains(owner) => {}
                Some(owner) => drop(self.losers.insert(owner.to_owned())),
                None => self.note_disturbance("of a limit of bandwidth"),
            }
        } else if let Some(owner) = tag(&alias) {
            self.losers.remove(owner);
            self.leavers.insert(owner.to_owned());
        }
    }

    /// Notes another MTU or MAC, or a default route. A pod's link changes its MTU only with the uplink.
    fn note_uplink(&mut self, message: &Message<'_>) {
        match (message.kind, family_and_index(message)) {
            (RTM_NEWLINK, Some((0, index))) => {
                let link = Attributes::behind(message.body, IFINFOMSG);
                let is_a_pods = link.text(libc::IFLA_IFNAME).is_some_and(|name| name.starts_with("veth"));
                let mtu = link.get(libc::IFLA_MTU).and_then(|mtu| u32_ne(mtu, 0)).filter(|_| !is_a_pods);
                let mac = link.get(libc::IFLA_ADDRESS).and_then(|mac| mac.try_into().ok()).map(Mac);
                if let Some(now) = mtu.map(|mtu| (mtu, mac))
                    && self.links.insert(index, now).is_some_and(|before| before != now)
                {
                    self.note_disturbance("of interfaces, addresses or forwarding");
                }
            }
            (RTM_NEWROUTE, _)
                if u8_at(message.body, 1) == Some(0)
                    && u8_at(message.body, 4).map(u32::from) == Some(RT_TABLE_MAIN) =>
            {
                self.note_disturbance("of interfaces, addresses or forwarding");
            }
            _ => {}
        }
    }

    /// Notes the end of a transaction of packet rules.
    fn note_transaction(&mut self, process: &(String, u32), takes: bool, losers: &BTreeSet<String>) {
        // Our own repairs replace elements.
        if process.1 == std::process::id() {
            return;
        }
        let process = format!("process {} ({})", process.0, process.1);
        if takes {
            self.found = Some(format!("of packet rules by {process}"));
        }
        let losers: BTreeSet<String> = losers.difference(&self.leavers).cloned().collect();
        if !losers.is_empty() {
            self.process = Some(process);
        }
        self.losers.extend(losers);
    }
}

impl Flags {
    /// Returns whether a flag of the port was on before and is off now. An ADD only switches flags on.
    fn lacks(self, before: Flags) -> bool {
        before.values().into_iter().zip(self.values()).any(|(before, now)| before && !now)
    }

    /// Returns the flags that an ADD may switch on.
    fn values(self) -> [bool; 5] {
        let Flags { port, frames } = self;
        [port.hairpin, port.isolated, port.closed, frames.learning, frames.flood]
    }
}

/// Reads a notification of nf_tables. Returns the name and the ID of the process at the end of a transaction.
fn read_rules(
    message: &Message<'_>,
    tables: &[&str],
    own: &str,
    takes: &mut bool,
    losers: &mut BTreeSet<String>,
) -> Option<(String, u32)> {
    let attributes = Attributes::behind(message.body, NFGENMSG);
    match message.kind.checked_sub(NFNL_SUBSYS_NFTABLES << 8)? {
        NFT_MSG_NEWGEN => {
            let name = attributes.text(NFTA_GEN_PROC_NAME).unwrap_or_default();
            return Some((name, attributes.u32_be(NFTA_GEN_PROC_PID).unwrap_or_default()));
        }
        NFT_MSG_DELTABLE => *takes = true,
        kind => {
            // The name of the table is the first attribute of each object.
            let table = attributes.text(NFTA_TABLE_NAME).filter(|table| tables.contains(&table.as_str()))?;
            match kind {
                NFT_MSG_DELSETELEM if table == own => {
                    let elements = Element::parse_list(attributes);
                    losers.extend(elements.iter().filter_map(|of| Some(tag(&of.comment)?.to_owned())));
                }
                NFT_MSG_DELCHAIN | NFT_MSG_DELRULE | NFT_MSG_DELSET => *takes = true,
                // A chain of another program can drop what ours accept.
                _ => *takes |= table != own,
            }
        }
    }
    None
}
