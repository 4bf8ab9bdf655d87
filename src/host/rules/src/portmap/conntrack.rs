//! Makes the kernel forget tracked flows of published UDP and SCTP ports.
//!
//! Both sides of such a flow may go on with the same ports after the pod has gone. The kernel would send their packets
//! to the first destination. TCP needs no help: the client gets a reset and then connects from another port. Failures
//! are only logged, because the entries expire without traffic.

use std::collections::HashSet;
use std::net::IpAddr;

use cnimble_netlink::Netlink;
use cnimble_netlink::conntrack::{self, Families, Flow};

use super::{Forward, Protocol};
use crate::elements::Placed;

/// The port of a pod to which a published port leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Target {
    /// The number of the protocol.
    protocol: u8,
    host_port: u16,
    pod: IpAddr,
    container_port: u16,
}

impl Target {
    /// Returns where the kernel sends a tracked flow: its answers come from there.
    fn from_flow(flow: &Flow) -> Self {
        Target {
            protocol: flow.protocol,
            host_port: flow.port,
            pod: flow.answers_from,
            container_port: flow.answer_port,
        }
    }
}

/// Returns whether clients of the protocol may go on with the same ports after the pod has gone.
fn keeps_its_ports(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Udp | Protocol::Sctp)
}

/// Forgets the flows to the published ports of this host that have another destination than the mapping's. Call this
/// once the mappings are in place.
pub(super) fn before(forward: &Forward) {
    let targets: HashSet<Target> = targets(forward).into_iter().collect();
    if targets.is_empty() {
        return;
    }
    let local = local_addresses();
    let listed = forward.mappings.iter().filter(|mapping| keeps_its_ports(mapping.protocol));
    let ports: HashSet<(u8, u16, Option<IpAddr>)> =
        listed.map(|mapping| (mapping.protocol.number(), mapping.host_port, mapping.address())).collect();
    flush(&targets, |flow| {
        let here = flow.destination.is_loopback()
            || local.as_ref().is_none_or(|local| local.contains(&flow.destination));
        let mapped = [None, Some(flow.destination)]
            .into_iter()
            .any(|destination| ports.contains(&(flow.protocol, flow.port, destination)));
        mapped && here && !targets.contains(&Target::from_flow(flow))
    });
}

/// Forgets the flows that removed mappings have translated.
pub(super) fn after(targets: Vec<Target>) {
    if targets.is_empty() {
        return;
    }
    let targets: HashSet<Target> = targets.into_iter().collect();
    flush(&targets, |flow| {
        flow.answers_from != flow.destination && targets.contains(&Target::from_flow(flow))
    });
}

/// Returns the targets of all mappings of UDP and SCTP.
pub(super) fn targets(forward: &Forward) -> Vec<Target> {
    let all = forward.targets().filter(|(mapping, _)| keeps_its_ports(mapping.protocol));
    let targets = all.map(|(mapping, pod)| Target {
        protocol: mapping.protocol.number(),
        host_port: mapping.host_port,
        pod: pod.ip(),
        container_port: mapping.container_port,
    });
    targets.collect()
}

/// Returns the targets in elements of nf_tables maps, of UDP and SCTP alone. Other elements are skipped.
pub(super) fn of_elements(elements: &[Placed]) -> impl Iterator<Item = Target> {
    elements.iter().filter_map(|placed| {
        let (_, protocol, host_port) = placed.element.key.as_port()?;
        let (pod, container_port) = placed.element.data.as_ref()?.as_service()?;
        let target = Target { protocol, host_port, pod, container_port };
        Protocol::numbered(protocol).is_some_and(keeps_its_ports).then_some(target)
    })
}

/// Forgets the chosen flows among those with the families and protocols of `targets`.
fn flush(targets: &HashSet<Target>, choose: impl Fn(&Flow) -> bool) {
    let families: Families = targets.iter().map(|target| target.pod).collect();
    let protocols: HashSet<u8> = targets.iter().map(|target| target.protocol).collect();
    let protocols: Vec<u8> = protocols.into_iter().collect();
    match conntrack::forget(families, &protocols, choose) {
        Ok(0) => {}
        Ok(count) => log::debug!("{count} tracked connections forgotten"),
        Err(err) => log::warn!("stale tracked connections could not be forgotten: {err}"),
    }
}

/// Returns the host's addresses. If they can't be listed, returns `None` and logs a warning.
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
