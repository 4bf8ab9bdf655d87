//! Connection tracking of mapped UDP ports. Failures are only logged: the entries expire without traffic.

use std::collections::HashSet;
use std::net::IpAddr;

use cnimble_netlink::Netlink;
use cnimble_netlink::conntrack::{self, Families, Flow};

use super::{Forward, Protocol};
use crate::elements::Placed;

pub(super) type Target = (u16, IpAddr, u16);

/// Forgets what was sent to a new port on this host before, unless that went to the same destination.
pub(super) fn before(forward: &Forward) {
    let targets: HashSet<Target> = targets(forward).into_iter().collect();
    if targets.is_empty() {
        return;
    }
    let local = local_addresses();
    let ports: HashSet<(u16, Option<IpAddr>)> = forward
        .mappings
        .iter()
        .filter(|mapping| mapping.protocol == Protocol::Udp)
        .map(|mapping| (mapping.host_port, mapping.address()))
        .collect();
    flush(&targets, |flow| {
        let mapped =
            ports.contains(&(flow.port, None)) || ports.contains(&(flow.port, Some(flow.destination)));
        let here = flow.destination.is_loopback()
            || local.as_ref().is_none_or(|local| local.contains(&flow.destination));
        mapped && here && !targets.contains(&(flow.port, flow.answers_from, flow.answer_port))
    });
}

/// Forgets connections by removed mappings.
pub(super) fn after(targets: Vec<Target>) {
    if targets.is_empty() {
        return;
    }
    let targets: HashSet<Target> = targets.into_iter().collect();
    flush(&targets, |flow| {
        flow.answers_from != flow.destination
            && targets.contains(&(flow.port, flow.answers_from, flow.answer_port))
    });
}

pub(super) fn targets(forward: &Forward) -> Vec<Target> {
    forward
        .targets()
        .filter(|(mapping, _)| mapping.protocol == Protocol::Udp)
        .map(|(mapping, pod)| (mapping.host_port, pod.ip(), mapping.container_port))
        .collect()
}

pub(super) fn of_elements(elements: &[Placed]) -> impl Iterator<Item = Target> {
    elements.iter().filter_map(|placed| {
        let (_, protocol, port) = placed.element.key.as_port()?;
        let (ip, to) = placed.element.data.as_ref()?.as_service()?;
        (protocol == Protocol::Udp.number()).then_some((port, ip, to))
    })
}

fn flush(targets: &HashSet<Target>, choose: impl Fn(&Flow) -> bool) {
    let families: Families = targets.iter().map(|(_, pod, _)| *pod).collect();
    match conntrack::forget_udp(families, choose) {
        Ok(0) => {}
        Ok(count) => log::debug!("{count} UDP connections forgotten"),
        Err(err) => log::warn!("stale UDP connections could not be forgotten: {err}"),
    }
}

fn local_addresses() -> Option<HashSet<IpAddr>> {
    let listed = Netlink::open().and_then(|mut host| host.all_addrs());
    match listed {
        Ok(addrs) => Some(addrs.into_iter().map(|addr| addr.net.ip()).collect()),
        Err(err) => {
            log::warn!("{err}: taking all destinations for this host's");
            None
        }
    }
}
