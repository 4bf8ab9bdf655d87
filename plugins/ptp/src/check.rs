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
    let pod = check::find(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
    check_routers(call, &mut inside)?;
    let end = check::host_end(call, &mut host, &netns, &pod, &prev)?;
    config.mtu.follow(call, &mut host, &mut inside, &prev, end.as_ref())?;
    let addrs: Vec<IpNetwork> = paths.iter().map(|path| path.address).collect();
    if let Some(end) = &end {
        hosts_end(call, &mut host, end, &prev, &paths)?;
        host::forwards(call, &mut host, end, &addrs)?;
    }
    if config.masquerade.wanted {
        let masqueraded = config.masquerade.of(addrs.iter().copied());
        let verify = |nft: &mut Nft| masqueraded.check(nft, &call.owner());
        let put_back = |nft: &mut Nft| {
            // The configured exceptions may have changed since ADD, so the old elements are removed first.
            masquerade::remove(nft, &call.owner(), masqueraded.sources())?;
            crate::masquerade(call, nft, config, &addrs)
        };
        call.wants(Place::Rules, &mut Nft::new(), verify, put_back)?;
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
    let verify = |host: &mut Netlink| check::host_end_is_up(&check::host_end_again(host, end)?);
    call.wants(Place::Host, host, verify, |host| check::switch_on(host, end))?;
    let now = check::host_end_again(host, end);
    call.expects(Place::Host, now.and_then(|now| check::host_end_mac(&now, prev)))?;
    // The ends of the Go plugin have no alias and keep the host's default of `accept_ra`, so they are not compared.
    if call.is_examined() && call.owner().owns(&end.alias) {
        let verify = |host: &mut Netlink| match host.link_at(end.index)?.accept_ra {
            None | Some(0) => Ok(()),
            Some(now) => Err(Error::check(format!("{} has accept_ra {now}, expected 0", end.name))),
        };
        let put_back =
            |host: &mut Netlink| host::ignore_router_advertisements_on_new(&host.link_at(end.index)?);
        call.wants(Place::Host, host, verify, put_back)?;
    }
    let verify = |host: &mut Netlink| {
        let present = host.addrs(end.index)?;
        let lacks = |wanted: &IpNetwork| !present.iter().any(|addr| addr.net == *wanted);
        match path::host_addresses(paths).into_iter().find(lacks) {
            Some(wanted) => Err(Error::check(format!("{} lacks the gateway address {wanted}", end.name))),
            None => Ok(()),
        }
    };
    let put_back = |host: &mut Netlink| check::put_addresses(host, end, path::host_addresses(paths));
    call.wants(Place::Host, host, verify, put_back)?;
    let routes = path::to_pod(paths, end.index);
    let verify = |host: &mut Netlink| check::routes(host, end, &routes, "on the host");
    let put_back =
        |host: &mut Netlink| check::put_all(host, routes.iter().map(|wanted| route::add(wanted, &end.name)));
    call.wants(Place::Host, host, verify, put_back)
}
