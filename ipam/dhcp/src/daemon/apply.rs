//! Applies a new, changed or lost lease to the interface.

use nix::errno::Errno;

use ipnetwork::IpNetwork;

use cnimble_cni::Error;
use cnimble_netlink::link::Link;
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{IfPresent as _, Netlink, addr, sysctl};
use cnimble_plugin::interface::pod;

use super::interface::Interface;
use crate::held::{self, AnyLease};

/// The index by which [`Netlink::routes`] lists the routes of all links.
const ANY_LINK: u32 = 0;

/// Returns the routes of a lease in the form in which the plugins install them.
pub(super) fn routes(interface: &Interface, lease: &AnyLease, priority: Option<u32>) -> Vec<NewRoute> {
    pod::routes(interface.index, &held::result(std::slice::from_ref(lease), priority))
}

/// Changes the addresses and routes of the interface from those of the `old` lease to those of the `new` one. What is
/// in both leases stays, and so does what other programs have made, so connections survive.
///
/// Returns the first refusal of the kernel to change a route or to remove the old address, after everything was tried.
/// Fails if nothing was changed: without the interface (code 3), or if the new address cannot be added.
pub(super) fn apply(
    interface: &Interface,
    priority: Option<u32>,
    old: Option<&AnyLease>,
    new: Option<&AnyLease>,
) -> Result<Option<Error>, Error> {
    let (mut inside, link) = interface.inside()?;
    let (old_net, new_net) = (old.map(AnyLease::net), new.map(AnyLease::net));
    let before = old.map_or_else(Vec::new, |lease| routes(interface, lease, priority));
    let after = new.map_or_else(Vec::new, |lease| routes(interface, lease, priority));
    let present = inside.routes(ANY_LINK, None)?;
    if let Some(net) = new_net.filter(|net| Some(*net) != old_net) {
        // The client has probed the link already, so the kernel need not.
        tolerant(inside.execute(addr::add(link.index, &link.name, net)))?;
    }
    let mut refused = None;
    for wanted in after.iter().filter(|route| !before.contains(route)) {
        let rival = present.iter().find(|now| (now.dst, metric(now)) == (wanted.dst, metric(wanted)));
        let request = match rival {
            // Another program's route to this destination stays in front, so that the new one is without effect, as the
            // old one was.
            Some(rival) if !before.iter().any(|route| is_of(rival, route)) => {
                route::append_of(wanted, &link.name, libc::RTPROT_BOOT)
            }
            _ => route::prepend(wanted, &link.name),
        };
        keep_first(&mut refused, inside.execute(request));
    }
    // On-link routes lead to gateways. They come first in a lease, and are deleted last.
    for unwanted in before.iter().rev().filter(|route| !after.contains(route)) {
        let found =
            present.iter().filter(|now| is_of(now, unwanted)).max_by_key(|now| now.mtu == unwanted.mtu);
        if let Some(now) = found {
            keep_first(&mut refused, inside.execute(route::del(&exact(now), &link.name)));
        }
    }
    if let Some(net) = old_net.filter(|net| Some(*net) != new_net) {
        keep_first(&mut refused, take_off(interface, &mut inside, &link, net));
        // If addresses were not promoted, the kernel has removed the new address and its routes with the old one.
        if let Some(net) = new_net
            && inside.execute(addr::add(link.index, &link.name, net)).is_ok()
        {
            for wanted in &after {
                keep_first(&mut refused, inside.execute(route::prepend(wanted, &link.name)));
            }
        }
    }
    Ok(refused)
}

/// Returns true if the present route `now` is the one that was `installed`. The Go plugins install routes without an
/// MTU.
fn is_of(now: &NewRoute, installed: &NewRoute) -> bool {
    (now.dst, now.via, now.index) == (installed.dst, installed.via, installed.index)
        && (now.src, metric(now)) == (installed.src, metric(installed))
        && (now.mtu.is_none() || now.mtu == installed.mtu)
}

/// Returns the metric of a route. The kernel uses 0 for none.
fn metric(route: &NewRoute) -> u32 {
    route.priority.unwrap_or(0)
}

/// Returns the route in the form for its deletion. A deletion without an MTU would match a route with any.
fn exact(route: &NewRoute) -> NewRoute {
    let (mtu, advmss) = (route.mtu.or(Some(0)), route.advmss.or(Some(0)));
    NewRoute { mtu, advmss, ..route.clone() }
}

/// Removes an address. For IPv4, switches `promote_secondaries` on meanwhile. Without it the kernel would also delete
/// the other addresses of the network, and with the last address all routes of the link.
fn take_off(
    interface: &Interface,
    inside: &mut Netlink,
    link: &Link,
    net: IpNetwork,
) -> cnimble_netlink::Result<()> {
    let key = format!("net/ipv4/conf/{}/promote_secondaries", link.name);
    // This fails where /proc/sys is read-only, and the address is removed all the same.
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

/// Keeps the error of a change as the first refusal, unless there is an earlier one.
fn keep_first(refused: &mut Option<Error>, outcome: cnimble_netlink::Result<()>) {
    if let Err(err) = tolerant(outcome) {
        refused.get_or_insert(err);
    }
}

/// Accepts an object that exists already, or that is missing.
fn tolerant(outcome: cnimble_netlink::Result<()>) -> Result<(), Error> {
    outcome.default_for(&[Errno::EEXIST]).if_present()?;
    Ok(())
}
