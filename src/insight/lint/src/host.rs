//! Finds conflicts between a network and the routes and addresses of the host.

use cnimble_cni::cidr::overlap;
use ipnetwork::IpNetwork;

use super::subnets::{gateway, of_host};
use super::{Document, Finding, Findings, Rule};

/// What the caller knows of the host.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// The routes of the table main.
    pub routes: Vec<Route>,
    /// The links with their networks' addresses, by name.
    pub bridges: Vec<(String, Vec<IpNetwork>)>,
}

/// A route of the host.
#[derive(Debug, Clone)]
pub struct Route {
    pub to: IpNetwork,
    pub link: String,
    /// Whether it has a gateway.
    pub via: bool,
    /// Whether the link belongs to a pod, or to a network plugin.
    pub pods: bool,
}

/// Returns warnings about the subnets of a network that the host routes. The caller has read `host`.
pub fn on_host(document: &Document, host: &Host) -> Vec<Finding> {
    let mut found = Findings::default();
    for (entry, pools) in of_host(document) {
        let bridge = (entry.plugin == "bridge").then(|| entry.node.text_of("bridge").unwrap_or("cni0"));
        let own = |link: &str| bridge.is_some_and(|bridge| link == bridge || is_vlan_of(link, bridge));
        for pool in pools {
            // Most networks are part of a wider route through a router. Such a route is no conflict.
            let route = host.routes.iter().find(|route| {
                let inside = !route.via || pool.subnet.prefix() <= route.to.prefix();
                let other = !own(&route.link) && !route.pods && route.to.prefix() > 0;
                other && inside && overlap(route.to, pool.subnet)
            });
            if let Some(route) = route {
                let message = format!(
                    "subnet: {} overlaps the host's route to {} by {}",
                    pool.subnet, route.to, route.link
                );
                found.warning(Rule::Overlap, &pool.place, message);
            }
            let force = entry.node.is_true("forceAddress");
            let vlan = entry.node.get("vlan").and_then(super::Node::integer).filter(|vlan| *vlan > 0);
            let Some(bridge) = bridge.filter(|_| !force) else { continue };
            let link = vlan.map_or(bridge.to_owned(), |vlan| format!("{bridge}.{vlan}"));
            let addresses = host.bridges.iter().filter(|(name, _)| *name == link).flat_map(|(_, all)| all);
            let Some(wanted) = gateway(&pool) else { continue };
            let mut others = addresses.filter(|has| overlap(**has, wanted) && **has != wanted);
            if let Some(has) = others.next() {
                let message = format!(
                    "subnet: {link} has the address {has}, and {wanted} would be added: the same network twice; use another bridge, as forceAddress takes the gateway from living pods"
                );
                found.warning(Rule::Overlap, &pool.place, message);
            }
        }
    }
    found.0
}

/// Returns whether `link` is named as a VLAN's gateway interface of the bridge.
fn is_vlan_of(link: &str, bridge: &str) -> bool {
    link.strip_prefix(bridge)
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|id| id.parse::<u16>().is_ok())
}
