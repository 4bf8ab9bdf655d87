use std::net::IpAddr;

use cnimble_netlink as netlink;
use cnimble_netlink::Netlink;

use crate::node::is_host;

/// The value of RT_SCOPE_UNIVERSE (linux/rtnetlink.h).
const GLOBAL: u8 = 0;

/// Returns the MTU of the link with the default route. It returns `None` without a default route.
pub(crate) fn mtu(netlink: &mut Netlink) -> netlink::Result<Option<u32>> {
    match netlink.default_link()? {
        Some(index) => Ok(Some(netlink.link_at(index)?.mtu)),
        None => Ok(None),
    }
}

/// Returns one address of each family by which others reach this host, from the link with the default route. Permanent
/// addresses precede those that expire. The list is empty without a default route.
pub fn addresses() -> netlink::Result<Vec<IpAddr>> {
    let mut netlink = Netlink::open()?;
    let Some(index) = netlink.default_link()? else { return Ok(Vec::new()) };
    let mut addrs = netlink.addrs(index)?;
    addrs.retain(|addr| addr.scope == GLOBAL && !addr.tentative && is_host(addr.net.ip()));
    addrs.sort_by_key(|addr| !addr.permanent);
    let mut found = Vec::new();
    for ipv4 in [true, false] {
        found.extend(addrs.iter().map(|addr| addr.net.ip()).find(|ip| ip.is_ipv4() == ipv4));
    }
    Ok(found)
}
