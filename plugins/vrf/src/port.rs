//! The pod's interface as a port of a VRF. The kernel sets a new port down and up again. The port then loses its
//! routes, except those to its addresses' networks. It also loses its IPv6 addresses, unless `keep_addr_on_down` is
//! set. Both are restored.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::route::NewRoute;
use cnimble_netlink::{self as netlink, IfPresent as _, NetNs, Netlink, addr, route, sysctl};
use cnimble_plugin::Call;

/// The table main of rtnetlink(7).
pub(crate) const MAIN: u32 = 254;

/// The scope of addresses that are valid everywhere (RT_SCOPE_UNIVERSE of rtnetlink(7)).
const GLOBAL: u8 = 0;

/// The addresses and routes that the interface must have again as a port. Of addresses, only global ones of IPv6 count.
#[derive(Debug)]
pub(crate) struct Belongings {
    addrs: Vec<IpNetwork>,
    routes: Vec<NewRoute>,
}

impl Belongings {
    /// Reads the addresses and the routes of the table `table`. Leaves out the routes that the kernel derives from the
    /// addresses.
    pub(crate) fn read(inside: &mut Netlink, link: &Link, table: u32) -> netlink::Result<Self> {
        let present = inside.addrs(link.index)?;
        let mut routes = inside.routes(link.index, Some(table))?;
        // The kernel derives these routes from the addresses.
        routes.retain(|route| {
            let is_derived = route.via.is_none()
                && present.iter().any(|addr| {
                    addr.net.network() == route.dst.ip() && addr.net.prefix() == route.dst.prefix()
                });
            !is_derived
        });
        // Routes without a next hop come first, because a next hop may need one of them.
        routes.sort_by_key(|route| route.via.is_some());
        let global = present.into_iter().filter(|addr| addr.net.is_ipv6() && addr.scope == GLOBAL);
        Ok(Belongings { addrs: global.map(|addr| addr.net).collect(), routes })
    }

    /// Adds the addresses and routes that are missing. The routes are compared with `table` and added there.
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

/// Switches duplicate address detection off for the interface, with its undo. The previous plugin's ADD has found the
/// addresses free. A switch that is missing or read-only is no error.
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

/// Makes the link a port of the link with the index `master`. The index 0 means no master.
pub(crate) fn set_master(inside: &mut Netlink, link: &Link, master: u32) -> netlink::Result<()> {
    let change = Change { master: Some(master), ..Change::default() };
    inside.execute(link::set(link.index, &link.name, &change))
}

/// Takes the interface out of its VRF for the undo, and restores its addresses and its routes in the table main. Does
/// nothing if the interface is gone.
pub(crate) fn take_out(inside: &mut Netlink, index: u32, belongings: &Belongings) -> Result<(), Error> {
    let Some(link) = inside.link_at(index).if_present()? else { return Ok(()) };
    if link.master.is_some() {
        set_master(inside, &link, 0)?;
    }
    Ok(belongings.put_back(inside, &link, MAIN)?)
}
