//! The wanted state of an attachment: CHECK verifies it, and a repair restores it.

use ipnetwork::IpNetwork;

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::Nft;
use cnimble_netlink::{Netlink, route};
use cnimble_plugin::interface::pod::check_routers;
use cnimble_plugin::interface::{check, host};
use cnimble_plugin::{Call, Place};
use cnimble_rules::masquerade;

use crate::config::Config;
use crate::path::{self, Path};
use crate::pod;

/// Compares an attachment with its result and configuration.
///
/// For CHECK the first difference is the error, with code 103. If the doctor or guard calls, differences are noted or
/// put back ([`Call::wants`]). Without a proven host's end, only the pod and the rules are compared.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let prev = check::of_this_interface(call, prev);
    let paths = path::paths(&prev, &config.ipam).map_err(|err| err.context("prevResult"))?;
    let netns = call.open_netns()?;
    let mut host = Netlink::open()?;
    let mut inside = call.look_inside(&netns)?;

    call.expects(Place::Pod, check::pod(call, &mut inside, &prev, "veth", false).map(drop))?;
    let pod = check::find_link(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
    check_routers(call, &mut inside)?;
    let end = check::host_end(call, &mut host, &netns, &pod, &prev)?;
    config.mtu.follow(call, &mut host, &mut inside, &prev, end.as_ref())?;
    let addrs: Vec<IpNetwork> = paths.iter().map(|path| path.address).collect();
    if let Some(end) = &end {
        hosts_end(call, &mut host, end, &prev, &paths)?;
        host::forwards(call, &mut host, end, &addrs)?;
    }
    if config.masquerade.wanted {
        let masqueraded = config.masquerade.for_addresses(addrs.iter().copied());
        call.wants(
            Place::Rules,
            &mut Nft::new(),
            |nft| masqueraded.check(nft, &call.owner()),
            |nft| {
                // The configured exceptions may have changed since ADD, so the old elements are removed first.
                masquerade::remove(nft, &call.owner(), masqueraded.sources())?;
                crate::masquerade(call, nft, config, &addrs)
            },
        )?;
    }
    check::inside_pod(call, &mut inside, &pod, &prev, &pod::routes(&prev, &paths, pod.index))
}

/// Verifies that the host's end is up, and has the gateways' addresses and a route to each address of the pod.
fn hosts_end(
    call: &Call,
    host: &mut Netlink,
    end: &Link,
    prev: &CniResult,
    paths: &[Path],
) -> Result<(), Error> {
    call.wants(
        Place::Host,
        host,
        |host| check::host_end_is_up(&check::host_end_again(host, end)?),
        |host| check::switch_on(host, end),
    )?;
    call.expects(Place::Host, check::host_end_mac(end, prev))?;
    // The ends of the Go plugin have no alias and keep the host's default of `accept_ra`, so they are not compared.
    if call.is_examined() && call.owner().owns(&end.alias) {
        call.wants(
            Place::Host,
            host,
            |host| check_accept_ra(host, end),
            |host| host::ignore_router_advertisements_on_new(&host.link_at(end.index)?),
        )?;
    }
    call.wants(
        Place::Host,
        host,
        |host| check_gateways(host, end, paths),
        |host| check::put_addresses(host, end, path::host_addresses(paths)),
    )?;
    let routes = path::to_pod(paths, end.index);
    call.wants(
        Place::Host,
        host,
        |host| check::routes(host, end, &routes, "on the host"),
        |host| check::put_all(host, routes.iter().map(|wanted| route::add(wanted, &end.name))),
    )
}

/// Fails with code 103 if the host's end accepts router advertisements.
fn check_accept_ra(host: &mut Netlink, end: &Link) -> Result<(), Error> {
    match host.link_at(end.index)?.accept_ra {
        None | Some(0) => Ok(()),
        Some(now) => Err(Error::check(format!("{} has accept_ra {now}, expected 0", end.name))),
    }
}

/// Fails with code 103 if the host's end lacks the address of a gateway.
fn check_gateways(host: &mut Netlink, end: &Link, paths: &[Path]) -> Result<(), Error> {
    let present = host.addrs(end.index)?;
    for wanted in path::host_addresses(paths) {
        if !present.iter().any(|addr| addr.net == wanted) {
            return Err(Error::check(format!("{} lacks the gateway address {wanted}", end.name)));
        }
    }
    Ok(())
}
