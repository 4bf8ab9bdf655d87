//! Notifications of the kernel: `ip monitor link`, `nft monitor`.
//!
//! A program waits for their descriptors to be readable (poll(2)) and then reads. When the socket can't hold all,
//! [`LinkMonitor::read`] and [`RuleMonitor::read`] fail with ENOBUFS, once: the caller has to ask for the state itself
//! then.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use super::link::read::{self as link_read, family_and_index};
use super::link::{Filter, Link};
use super::nft::{Element, Rule};
use super::socket::{Protocol, Socket};
use super::uapi::nf_tables::{NFT_MSG_NEWRULE, NFT_MSG_NEWSETELEM};
use super::uapi::nfnetlink::{NFGENMSG, NFNL_SUBSYS_NFTABLES, NFNLGRP_NFTABLES};
use super::uapi::rtnetlink::{
    IFINFOMSG, RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWROUTE, RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};
use super::wire::{Attributes, Message, Messages, Parsed, u8_at};
use super::{Netlink, Result, addr};

/// The maximum number of datagrams that one call reads, so that a flood doesn't keep the caller from its other work.
const AT_ONCE: usize = 1024;

/// A notification about a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkNotice {
    /// The link is new, or has changed. The kernel doesn't tell of a new alias while the link is down.
    Seen(Box<Link>),
    /// The link has been deleted, or has gone to another namespace.
    Gone {
        /// The index of the link.
        index: u32,
        /// The alias of the link; empty for none.
        alias: String,
    },
}

/// Notifications of the links of one namespace.
#[derive(Debug)]
pub struct LinkMonitor {
    pub(super) socket: Socket,
}

impl LinkMonitor {
    /// Begins to listen for links of the current namespace.
    pub fn open() -> Result<Self> {
        Ok(LinkMonitor { socket: listen(Protocol::Route, &[RTNLGRP_LINK])? })
    }

    /// Returns the notifications since the last call. Does not wait.
    ///
    /// # Errors
    /// Fails with ENOBUFS if a notification was lost.
    pub fn read(&mut self) -> Result<Vec<LinkNotice>> {
        let mut notices = Vec::new();
        for_each_waiting(&mut self.socket, "read notifications about links", |message| {
            notices.extend(read(message).ok().flatten());
        })?;
        Ok(notices)
    }

    /// Returns all links of the current namespace, with which a caller begins.
    pub fn links() -> Result<Vec<Link>> {
        Netlink::open()?.links(&Filter::default())
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Notifications of the routes of one namespace, both families.
#[derive(Debug)]
pub struct RouteMonitor {
    socket: Socket,
}

impl RouteMonitor {
    /// Begins to listen for routes of the current namespace.
    pub fn open() -> Result<Self> {
        Ok(RouteMonitor { socket: listen(Protocol::Route, &[RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE])? })
    }

    /// Returns whether since the last call another protocol's routes have been added or changed, or any route was
    /// deleted. Does not wait. The kernel doesn't report IPv4 routes that go with their link.
    ///
    /// # Errors
    /// Fails with ENOBUFS if a notification was lost.
    pub fn disturbs(&mut self, protocol: u8) -> Result<bool> {
        let mut disturbed = false;
        for_each_waiting(&mut self.socket, "read notifications about routes", |message| {
            let own = u8_at(message.body, 5) == Some(protocol);
            disturbed |= message.kind == RTM_DELROUTE || (message.kind == RTM_NEWROUTE && !own);
        })?;
        Ok(disturbed)
    }
}

impl AsFd for RouteMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Notifications of the addresses of one namespace, both families.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

impl AddressMonitor {
    /// Begins to listen for addresses of the current namespace.
    pub fn open() -> Result<Self> {
        Ok(AddressMonitor { socket: listen(Protocol::Route, &[RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR])? })
    }

    /// The numbers of the links that have gained or lost an address since then. Does not wait.
    ///
    /// # Errors
    /// Fails with ENOBUFS if a notification was lost.
    pub fn read(&mut self) -> Result<BTreeSet<u32>> {
        let mut links = BTreeSet::new();
        for_each_waiting(&mut self.socket, "read notifications about addresses", |message| {
            if message.kind == RTM_NEWADDR || message.kind == RTM_DELADDR {
                links.extend(addr::link_of(message));
            }
        })?;
        Ok(links)
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Notifications of nf_tables in one namespace.
#[derive(Debug)]
pub struct RuleMonitor {
    socket: Socket,
}

impl RuleMonitor {
    /// Begins to listen for rules of nf_tables of the current namespace.
    pub fn open() -> Result<Self> {
        Ok(RuleMonitor { socket: listen(Protocol::Netfilter, &[NFNLGRP_NFTABLES])? })
    }

    /// The comments of rules and elements that have been added since; doesn't wait.
    ///
    /// # Errors
    /// Fails with ENOBUFS if a notification was lost.
    pub fn read(&mut self) -> Result<Vec<String>> {
        let mut notices = Vec::new();
        for_each_waiting(&mut self.socket, "read notifications about rules", |message| {
            notices.extend(comments(message));
        })?;
        Ok(notices)
    }
}

impl AsFd for RuleMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens a socket that gets notifications of these groups, with room for a flood.
pub(super) fn listen(protocol: Protocol, groups: &[u32]) -> Result<Socket> {
    let mut socket = Socket::open(protocol)?;
    socket.expect_many();
    for group in groups {
        socket.join(*group)?;
    }
    Ok(socket)
}

pub(super) fn for_each_waiting(
    socket: &mut Socket,
    what: &str,
    mut take: impl FnMut(&Message<'_>),
) -> Result<()> {
    for _ in 0..AT_ONCE {
        let Some(datagram) = socket.waiting(what)? else { break };
        Messages::new(datagram).flatten().for_each(|message| take(&message));
    }
    Ok(())
}

/// A notification about a link; `None` if it is about something else.
pub(super) fn read(message: &Message<'_>) -> Parsed<Option<LinkNotice>> {
    if message.kind == RTM_DELLINK {
        // A bridge says with RTM_DELLINK of AF_BRIDGE that a link is no longer its port.
        let Some((0, index)) = family_and_index(message) else { return Ok(None) };
        let alias = Attributes::behind(message.body, IFINFOMSG).text(libc::IFLA_IFALIAS).unwrap_or_default();
        return Ok(Some(LinkNotice::Gone { index, alias }));
    }
    Ok(link_read::read(message)?.map(|link| LinkNotice::Seen(Box::new(link))))
}

/// The comments of the rule or the elements that a notification adds.
pub(super) fn comments(message: &Message<'_>) -> impl Iterator<Item = String> {
    const NEW_RULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWRULE;
    const NEW_ELEMENTS: u16 = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM;
    let attributes = Attributes::behind(message.body, NFGENMSG);
    let found: Vec<String> = match message.kind {
        NEW_RULE => Rule::parse(attributes).map(|rule| rule.comment).into_iter().collect(),
        NEW_ELEMENTS => Element::parse_list(attributes).into_iter().map(|element| element.comment).collect(),
        _ => Vec::new(),
    };
    found.into_iter().filter(|comment| !comment.is_empty())
}
