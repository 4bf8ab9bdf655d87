//! Applies the changes of a renewal to the interface.

use nix::errno::Errno;

use ipnetwork::IpNetwork;

use cnimble_cni::Error;
use cnimble_netlink::link::Link;
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{IfPresent as _, Netlink, addr, sysctl};
use cnimble_plugin::interface::pod;

use super::interface::Interface;
use crate::held::{self, Held};

/// [`Netlink::routes`] lists the routes of all links by it.
const ANY_LINK: u32 = 0;

/// Returns the routes of a lease in the form in which the plugins install them.
pub(super) fn routes(interface: &Interface, lease: &Held, priority: Option<u32>) -> Vec<NewRoute> {
    pod::routes(interface.index, &held::result(std::slice::from_ref(lease), priority))
}

/// Addresses and routes in both leases, and those from other sources, stay, so connections survive. Returns the first
/// route or old address that the kernel refused to change, after all others. Fails if nothing was changed.
pub(super) fn apply(
    interface: &Interface,
    priority: Option<u32>,
    old: Option<&Held>,
    new: Option<&Held>,
) -> Result<Option<Error>, Error> {
    let (mut inside, link) = interface.inside()?;
    let (old_net, new_net) = (old.map(Held::net), new.map(Held::net));
    let of = |lease: Option<&Held>| lease.map_or_else(Vec::new, |lease| routes(interface, lease, priority));
    let (before, after) = (of(old), of(new));
    let present = inside.routes(ANY_LINK, None)?;
    if let Some(net) = new_net.filter(|net| Some(*net) != old_net) {
        // The client has probed the link already.
        tolerant(inside.execute(addr::add(link.index, &link.name, net)))?;
    }
    let mut refused = None;
    let mut note = |outcome: cnimble_netlink::Result<()>| {
        if let Err(err) = tolerant(outcome) {
            refused.get_or_insert(err);
        }
    };
    for wanted in after.iter().filter(|route| !before.contains(route)) {
        let rival = present.iter().find(|now| (now.dst, metric(now)) == (wanted.dst, metric(wanted)));
        let request = match rival {
            // The route is without effect, as before.
            Some(rival) if !before.iter().any(|route| is_of(rival, route)) => {
                route::append_of(wanted, &link.name, libc::RTPROT_BOOT)
            }
            _ => route::prepend(wanted, &link.name),
        };
        note(inside.execute(request));
    }
    // On-link routes lead to gateways: they come first and are deleted last.
    for unwanted in before.iter().rev().filter(|route| !after.contains(route)) {
        let found =
            present.iter().filter(|now| is_of(now, unwanted)).max_by_key(|now| now.mtu == unwanted.mtu);
        found.into_iter().for_each(|now| note(inside.execute(route::del(&exact(now), &link.name))));
    }
    if let Some(net) = old_net.filter(|net| Some(*net) != new_net) {
        note(take_off(interface, &mut inside, &link, net));
        // Without promotion, the new address went with the old one.
        if let Some(net) = new_net
            && inside.execute(addr::add(link.index, &link.name, net)).is_ok()
        {
            after.iter().for_each(|wanted| note(inside.execute(route::prepend(wanted, &link.name))));
        }
    }
    Ok(refused)
}

/// The Go plugins install routes without an MTU.
fn is_of(now: &NewRoute, installed: &NewRoute) -> bool {
    let key = |route: &NewRoute| (route.dst, route.via, route.index, route.src, metric(route));
    key(now) == key(installed) && (now.mtu.is_none() || now.mtu == installed.mtu)
}

/// The kernel uses 0 for no metric.
fn metric(route: &NewRoute) -> u32 {
    route.priority.unwrap_or(0)
}

/// Returns the route for its deletion. A deletion without an MTU would match a route with any.
fn exact(route: &NewRoute) -> NewRoute {
    let (mtu, advmss) = (route.mtu.or(Some(0)), route.advmss.or(Some(0)));
    NewRoute { mtu, advmss, ..route.clone() }
}

/// Without `promote_secondaries` the kernel would also delete the other addresses of the network, and with the last
/// address all routes of the link.
fn take_off(
    interface: &Interface,
    inside: &mut Netlink,
    link: &Link,
    net: IpNetwork,
) -> cnimble_netlink::Result<()> {
    let key = format!("net/ipv4/conf/{}/promote_secondaries", link.name);
    // Fails where /proc/sys is read-only.
    let before = match net {
        IpNetwork::V4(_) => {
            interface.netns.enter(|| sysctl::ensure(&key, "1")).ok().and_then(Result::ok).flatten()
        }
        IpNetwork::V6(_) => None,
    };
    let outcome = inside.execute(addr::del(link.index, &link.name, net));
    if let Some(before) = before {
        let _ = interface.netns.enter(|| sysctl::write(&key, &before));
    }
    outcome
}

/// An existing or missing object is no error.
fn tolerant(outcome: cnimble_netlink::Result<()>) -> Result<(), Error> {
    outcome.default_for(&[Errno::EEXIST]).if_present()?;
    Ok(())
}
