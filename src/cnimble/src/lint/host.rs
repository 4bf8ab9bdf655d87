//! Reads the host's routes, and the addresses of its bridges and VLANs.

use std::collections::BTreeMap;

use cnimble_lint::{Host, Route};
use cnimble_netlink::link::Filter;
use cnimble_netlink::{Netlink, Result};

use crate::report::{Exit, Report};

/// Reads the host, and names `--offline` in the report if that fails.
pub(crate) fn read() -> std::result::Result<Host, Report> {
    read_host().map_err(|err| {
        Report::because(Exit::Files, "can't read the host's routes", err)
            .hint("--offline checks the file alone")
    })
}

/// Reads the host. Routes to links of pods are marked as such, because they are no conflict.
fn read_host() -> Result<Host> {
    let mut netlink = Netlink::open()?;
    let links = netlink.links(&Filter { master: None, kind: None })?;
    let mut bridges = Vec::new();
    for link in links.iter().filter(|link| link.kind == "bridge" || link.kind == "vlan") {
        let addresses = netlink.addrs(link.index)?.into_iter().map(|addr| addr.net).collect();
        bridges.push((link.name.clone(), addresses));
    }
    let links: BTreeMap<u32, _> = links.into_iter().map(|link| (link.index, link)).collect();
    let mut routes = Vec::new();
    for route in netlink.routes(0, None)? {
        let Some(link) = links.get(&route.index) else { continue };
        let local = matches!(route.dst.ip(), std::net::IpAddr::V6(ip) if ip.is_unicast_link_local());
        routes.push(Route {
            to: route.dst,
            link: link.name.clone(),
            via: route.via.is_some(),
            pods: local || link.kind == "veth",
        });
    }
    Ok(Host { routes, bridges })
}
