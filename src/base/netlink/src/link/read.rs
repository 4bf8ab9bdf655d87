//! Links as the kernel describes them: look-ups, lists, waiting.

use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage};
use nix::errno::Errno;

use crate::link::bad_name;
use crate::link::kind::{Kind, Vrf};
use crate::link::port::read_port;
use crate::link::{Filter, Link, Mac};
use crate::request::encode;
use crate::uapi::if_link::{
    DEVCONF_ACCEPT_RA, DEVCONF_DISABLE_IPV6, DEVCONF_FORWARDING, IF_OPER_UP, IFF_ALLMULTI, IFF_LOWER_UP,
    IFF_PROMISC, IFF_UP, IFLA_BR_VLAN_FILTERING, IFLA_INET_CONF, IFLA_INET6_CONF, IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND,
};
use crate::uapi::netlink::NLM_F_REQUEST;
use crate::uapi::rtnetlink::{IFINFOMSG, RTM_DELLINK, RTM_NEWLINK, RTNLGRP_LINK};
use crate::wire::{Attributes, Malformed, Message, Messages, Parsed, text, u8_at, u32_ne};
use crate::{Error, IfPresent as _, Netlink, Request, Result, socket};

impl Netlink {
    /// Carries out a creating request and returns the new link, from the kernel's echo (NLM_F_ECHO). Looks it up on
    /// kernels before 6.2, which don't echo.
    ///
    /// # Errors
    /// Fails with EEXIST if the name is taken.
    pub fn create_link(&mut self, request: Request) -> Result<Link> {
        let mut echo = None;
        let answer = self.socket.ask(&request.what, request.bytes?, &mut |message| {
            echo = echo.take().or(read(message)?);
            Ok(())
        });
        // The kernel echoes only what it has made. Without an echo, a lost answer leaves open whether the link is there.
        let lost = match answer {
            Ok(()) => None,
            Err(err) if err.is(Errno::ENOBUFS) => Some(err),
            Err(err) => return Err(err),
        };
        match (echo, request.makes) {
            (Some(mut link), _) => {
                link.master = link.master.or(request.master);
                Ok(link)
            }
            (None, Some(name)) => self.link(&name).map_err(|err| lost.unwrap_or(err)),
            (None, None) => Err(lost.unwrap_or_else(|| socket::broken(&request.what, "it made no link"))),
        }
    }

    /// The link called `name`.
    ///
    /// # Errors
    /// Fails with ENODEV if there is no such link.
    pub fn link(&mut self, name: &str) -> Result<Link> {
        let what = format!("look up link {name}");
        if let Some(reason) = bad_name(name) {
            return Err(Error::new(what, Errno::ENODEV).reason(reason));
        }
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.get_link(&what, message, read)
    }

    /// Returns the link called `name`, or `None` if there is none or no link can have that name.
    ///
    /// # Errors
    /// Fails with any errno but ENODEV.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>> {
        self.link(name).map(Some).default_for(&[Errno::ENODEV])
    }

    /// Returns the link at `index`.
    ///
    /// # Errors
    /// Fails with ENODEV if there is no such link.
    pub fn link_at(&mut self, index: u32) -> Result<Link> {
        self.get_link_at(index, read)
    }

    /// Returns the routing table of the VRF of which the link is a port, or `None` if it is in none.
    ///
    /// # Errors
    /// Fails with ENODEV if the VRF has gone.
    pub fn vrf_table(&mut self, link: &Link) -> Result<Option<u32>> {
        let Some(master) = link.master else { return Ok(None) };
        match self.link_at(master)?.settings {
            Some(Kind::Vrf(Vrf { table })) => Ok(Some(table)),
            _ => Ok(None),
        }
    }

    /// Asks for the link at `index`, and returns what `read` finds in the answer.
    ///
    /// # Errors
    /// Fails with ENODEV if there is no such link.
    pub(super) fn get_link_at<T>(
        &mut self,
        index: u32,
        read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<T> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.get_link(&format!("look up link number {index}"), message, read)
    }

    fn get_link<T>(
        &mut self,
        what: &str,
        mut message: LinkMessage,
        read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<T> {
        message.attributes.push(without_statistics());
        let message = encode(RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST);
        self.get(what, message, read)?.ok_or_else(|| socket::broken(what, "it is no link"))
    }

    /// The links of `ip link show [master M] [type K]`.
    pub fn links(&mut self, filter: &Filter<'_>) -> Result<Vec<Link>> {
        let mut links = self.dump("list links", query(filter), read)?;
        // The kernel ignores a kind that it doesn't know.
        links.retain(|link| {
            filter.kind.is_none_or(|kind| link.kind == kind)
                && filter.master.is_none_or(|master| link.master == Some(master))
        });
        Ok(links)
    }

    /// `ip link show`: returns the links that `wanted` is true for. The others take no memory, however many there are.
    pub fn find_links(&mut self, wanted: impl Fn(&Link) -> bool) -> Result<Vec<Link>> {
        self.dump("list links", query(&Filter::default()), |message| Ok(read(message)?.filter(&wanted)))
    }

    /// Waits until the link is operationally up, and returns it. The kernel's notifications tell of that. It is looked
    /// up once before subscribing, so that nothing is waited for in vain, and once after, so that nothing is lost.
    ///
    /// # Errors
    /// Fails with ETIMEDOUT after `timeout`, with EINTR if a signal came, and with ENODEV if the link is deleted.
    pub fn wait_oper_up(&mut self, index: u32, timeout: Duration) -> Result<Link> {
        let end = Instant::now() + timeout;
        let link = self.link_at(index)?;
        if link.oper_up {
            return Ok(link);
        }
        self.socket.join(RTNLGRP_LINK)?;
        let outcome = self.await_notice(&link, end);
        self.socket.usual_patience()?;
        self.socket.leave(RTNLGRP_LINK)?;
        outcome
    }

    fn await_notice(&mut self, link: &Link, end: Instant) -> Result<Link> {
        let what = format!("wait for link {} to be up", link.name);
        let mut recheck = true;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let reason = "its operational state has not become up in time";
                return Err(Error::new(what, Errno::ETIMEDOUT).reason(reason));
            }
            let outcome = if std::mem::take(&mut recheck) {
                self.link_at(link.index).map(Some)
            } else {
                self.socket.patience(left)?;
                self.notice(&what, link.index)
            };
            match outcome {
                Ok(Some(link)) if link.oper_up => return Ok(link),
                // Notifications were lost, maybe with an answer: leaving the group empties the socket.
                Err(err) if err.is(Errno::ENOBUFS) => {
                    self.socket.leave(RTNLGRP_LINK)?;
                    self.socket.join(RTNLGRP_LINK)?;
                    recheck = true;
                }
                Ok(_) => {}
                Err(err) if err.is(Errno::ETIMEDOUT) => {}
                Err(err) => return Err(err),
            }
        }
    }

    /// Waits for a datagram, and returns the last that it says about the link. `None` if it says nothing. Fails with
    /// ENODEV if the link has been deleted.
    fn notice(&mut self, what: &str, index: u32) -> Result<Option<Link>> {
        let mut last = None;
        let datagram = self.socket.datagram(what, 0)?;
        for message in Messages::new(datagram).flatten() {
            if message.kind == RTM_DELLINK && family_and_index(&message) == Some((0, index)) {
                return Err(Error::new(what, Errno::ENODEV).reason("it has been deleted"));
            }
            if let Ok(Some(link)) = read(&message)
                && link.index == index
            {
                last = Some(link);
            }
        }
        Ok(last)
    }
}

/// Returns the request for the links that `filter` chooses.
pub(crate) fn query(filter: &Filter<'_>) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(without_statistics());
    if let Some(master) = filter.master {
        message.attributes.push(LinkAttribute::Controller(master));
    }
    if let Some(kind) = filter.kind {
        let kind = LinkInfo::Kind(InfoKind::from(kind));
        message.attributes.push(LinkAttribute::LinkInfo(vec![kind]));
    }
    RouteNetlinkMessage::GetLink(message)
}

/// Asks the kernel to leave out the statistics, which are most of a link's description.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

/// Returns the family and the index of a message about a link. A bridge says with an RTM_DELLINK of AF_BRIDGE that a
/// link is no longer its port, so the family has to be looked at.
pub(crate) fn family_and_index(message: &Message<'_>) -> Option<(u8, u32)> {
    Some((u8_at(message.body, 0)?, u32_ne(message.body, 4)?))
}

/// Reads the link in an RTM_NEWLINK. `None` if it is another message, or one about a bridge's port.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<Link>> {
    const SHORT: Malformed = Malformed("a link message is too short");
    let (family, index) = family_and_index(message).ok_or(SHORT)?;
    if message.kind != RTM_NEWLINK || family != 0 {
        return Ok(None);
    }
    let flags = u32_ne(message.body, 8).ok_or(SHORT)?;
    let mut link = Link {
        index,
        up: flags & IFF_UP != 0,
        promisc: flags & IFF_PROMISC != 0,
        allmulti: flags & IFF_ALLMULTI != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        ..Link::default()
    };
    for attribute in Attributes::behind(message.body, IFINFOMSG) {
        let (kind, value) = attribute?;
        match kind {
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok().map(Mac),
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = u32_ne(value, 0).ok_or(SHORT)?,
            libc::IFLA_TXQLEN => link.txqlen = u32_ne(value, 0).ok_or(SHORT)?,
            libc::IFLA_GROUP => link.group = u32_ne(value, 0).ok_or(SHORT)?,
            libc::IFLA_LINK => link.peer = u32_ne(value, 0),
            libc::IFLA_LINK_NETNSID => link.peer_netnsid = Some(u32_ne(value, 0).ok_or(SHORT)?.cast_signed()),
            libc::IFLA_MASTER => link.master = u32_ne(value, 0),
            libc::IFLA_OPERSTATE => link.oper_up = u8_at(value, 0) == Some(IF_OPER_UP),
            libc::IFLA_IFALIAS => link.alias = text(value),
            libc::IFLA_LINKINFO => read_info(&mut link, value)?,
            libc::IFLA_AF_SPEC => {
                let forwarding = switch(value, libc::AF_INET, IFLA_INET_CONF, DEVCONF_FORWARDING)?;
                link.forwards = forwarding.map(|on| on != 0);
                link.accept_ra = switch(value, libc::AF_INET6, IFLA_INET6_CONF, DEVCONF_ACCEPT_RA)?;
                let disabled = switch(value, libc::AF_INET6, IFLA_INET6_CONF, DEVCONF_DISABLE_IPV6)?;
                link.disable_ipv6 = disabled.map(|on| on != 0);
            }
            _ => {}
        }
    }
    Ok(Some(link))
}

/// Reads IFLA_LINKINFO, which tells of the link's kind and of its master's.
fn read_info(link: &mut Link, info: &[u8]) -> Parsed<()> {
    let mut of_bridge = false;
    for attribute in Attributes::new(info) {
        let (kind, value) = attribute?;
        match kind {
            libc::IFLA_INFO_KIND => link.kind = text(value),
            IFLA_INFO_SLAVE_KIND => of_bridge = text(value) == "bridge",
            libc::IFLA_INFO_DATA if link.kind == "bridge" => {
                link.vlan_filtering = flag(value, IFLA_BR_VLAN_FILTERING)?;
            }
            libc::IFLA_INFO_DATA => link.settings = super::kind::read(&link.kind, value)?,
            IFLA_INFO_SLAVE_DATA if of_bridge => {
                let (port, frames) = read_port(Attributes::new(value))?;
                (link.port, link.frames) = (Some(port), Some(frames));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads a number from IFLA_AF_SPEC. It has an array for each family, indexed as in linux/ip.h and linux/ipv6.h.
fn switch(families: &[u8], family: i32, array: u16, index: usize) -> Parsed<Option<u32>> {
    let Some(family) = Attributes::new(families).find(family as u16)? else { return Ok(None) };
    Ok(Attributes::new(family).find(array)?.and_then(|conf| u32_ne(conf, 4 * index)))
}

/// Whether an attribute of one byte is there, and not 0.
fn flag(attributes: &[u8], wanted: u16) -> Parsed<bool> {
    Ok(Attributes::new(attributes)
        .find(wanted)?
        .and_then(|value| u8_at(value, 0))
        .is_some_and(|byte| byte != 0))
}
