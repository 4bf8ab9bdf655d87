//! Next hops of this host. A route has one, several, or names a nexthop object that has it (`ip nexthop`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use super::route::ANY_TABLE;
use super::route_read::RouteSelector;
use super::uapi::nexthop::{NHA_GATEWAY, NHA_OIF, NHMSG, RTM_GETNEXTHOP, RTM_NEWNEXTHOP};
use super::wire::{self, Attributes, Message, Parsed, ip, u32_ne};
use super::{IfPresent as _, Netlink, Result};

/// The next hop of a nexthop object. A group has none of its own, and a blackhole none at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NextHop {
    /// The index of the link, or 0.
    pub index: u32,
    /// The address, if it is not the destination itself.
    pub via: Option<IpAddr>,
}

impl Netlink {
    /// `ip nexthop show`: the objects, also those that no route names. A kernel before 5.3 has none.
    pub fn next_hop_objects(&mut self) -> Result<Vec<NextHop>> {
        let message = wire::list(RTM_GETNEXTHOP, &[0; NHMSG]);
        self.dump_raw("list nexthop objects", &message, read).default_for(&[Errno::EOPNOTSUPP])
    }

    /// The addresses of all next hops: of the unicast routes of every table, and of nexthop objects.
    pub fn next_hops(&mut self) -> Result<BTreeSet<IpAddr>> {
        let all = RouteSelector { index: 0, table: ANY_TABLE };
        let routes = self.routes_of_both("list routes of all tables", &all)?;
        let of_routes = routes.into_iter().filter_map(|(route, _)| route.via);
        Ok(of_routes.chain(self.next_hop_objects()?.into_iter().filter_map(|hop| hop.via)).collect())
    }
}

/// A nexthop object from RTM_NEWNEXTHOP.
pub(super) fn read(message: &Message<'_>) -> Parsed<Option<NextHop>> {
    if message.kind != RTM_NEWNEXTHOP {
        return Ok(None);
    }
    let mut hop = NextHop::default();
    for attribute in Attributes::behind(message.body, NHMSG) {
        let (kind, value) = attribute?;
        match kind {
            NHA_OIF => hop.index = u32_ne(value, 0).unwrap_or_default(),
            NHA_GATEWAY => hop.via = ip(value),
            _ => {}
        }
    }
    Ok(Some(hop))
}
