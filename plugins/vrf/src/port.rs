//! The pod's interface as a port of a VRF. The kernel sets a new port down and up again. It loses its routes, except to
//! its addresses' networks, and its IPv6 addresses without `keep_addr_on_down`. Both are restored.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::route::NewRoute;
use cnimble_netlink::{self as netlink, IfPresent as _, NetNs, Netlink, addr, route, sysctl};
use cnimble_plugin::Call;

/// The table main of rtnetlink(7).
pub(crate) const MAIN: u32 = 254;

/// The scope RT_SCOPE_UNIVERSE of rtnetlink(7).
const GLOBAL: u8 = 0;

/// The port has to keep these.
#[derive(Debug)]
pub(crate) struct Belongings {
    addrs: Vec<IpNetwork>,
    routes: Vec<NewRoute>,
}

impl Belongings {
    pub(crate) fn read(inside: &mut Netlink, link: &Link, table: u32) -> netlink::Result<Self> {
        let present = inside.addrs(link.index)?;
        let mut routes = inside.routes(link.index, Some(table))?;
        // The kernel derives them from the addresses.
        let comes_with = |route: &NewRoute| {
            route.via.is_none()
                && present.iter().any(|addr| {
                    addr.net.network() == route.dst.ip() && addr.net.prefix() == route.dst.prefix()
                })
        };
        routes.retain(|route| !comes_with(route));
        // A next hop may need another route.
        routes.sort_by_key(|route| route.via.is_some());
        let global = present.into_iter().filter(|addr| addr.net.is_ipv6() && addr.scope == GLOBAL);
        Ok(Belongings { addrs: global.map(|addr| addr.net).collect(), routes })
    }

    /// Missing ones only; routes in this table.
    pub(crate) fn put_back(&self, inside: &mut Netlink, link: &Link, table: u32) -> netlink::Result<()> {
        let addrs = inside.addrs(link.index)?;
        let lost = self.addrs.iter().filter(|net| !addrs.iter().any(|addr| addr.net == **net));
        let mut requests: Vec<_> = lost.map(|net| addr::add(link.index, &link.name, *net)).collect();
        let routes = inside.routes(link.index, Some(table))?;
        let wanted = self.routes.iter().map(|route| NewRoute { table: Some(table), ..route.clone() });
        let lost = wanted.filter(|route| !routes.contains(route));
        requests.extend(lost.map(|wanted| route::prepend(&wanted, &link.name)));
        inside.execute_all(requests)
    }
}

/// No duplicate address detection, with an undo: the addresses are known to be free since the previous plugin's ADD. A
/// read-only switch is no error.
pub(crate) fn trust_addresses(call: &Call, netns: &NetNs, link: &Link) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{}/accept_dad", link.name);
    let set = netns.enter(|| sysctl::ensure(&key, "0"))?;
    if let Some(old) = set.default_for(&[Errno::EROFS]).if_present()?.flatten() {
        let home = call.open_netns()?;
        call.undo.push(format!("put back sysctl {key}"), move || {
            home.enter(|| sysctl::write(&key, &old))?.if_present()?;
            Ok(())
        });
    }
    Ok(())
}

/// The index 0 means no master.
pub(crate) fn set_master(inside: &mut Netlink, link: &Link, master: u32) -> netlink::Result<()> {
    let change = Change { master: Some(master), ..Change::default() };
    inside.execute(link::set(link.index, &link.name, &change))
}

/// Its routes go to the table main.
pub(crate) fn take_out(inside: &mut Netlink, index: u32, belongings: &Belongings) -> Result<(), Error> {
    let Some(link) = inside.link_at(index).if_present()? else { return Ok(()) };
    if link.master.is_some() {
        set_master(inside, &link, 0)?;
    }
    Ok(belongings.put_back(inside, &link, MAIN)?)
}
