//! Checks that a pod reaches the next hops of its routes.

use cnimble_cni::reach::{self, Gateways};
use cnimble_cni::{IpConfig, Route, cidr};

use super::addresses;
use crate::entry::PluginEntry;
use crate::page::{Role, page};
use crate::{Findings, Node, Rule};

/// The addresses that the pod gets, with the place of each gateway that the file has.
struct Given<'a> {
    ips: Vec<IpConfig>,
    gateways: Vec<Option<&'a Node>>,
}

/// The routes of the pod. Those that the plugin adds come last, and have no place.
struct Planned<'a> {
    routes: Vec<Route>,
    places: Vec<&'a Node>,
}

/// Checks the next hops of an entry, if the file has the pod's addresses.
pub(super) fn check(entry: &PluginEntry<'_>, found: &mut Findings) {
    let is_main = page(entry.plugin).is_some_and(|page| page.role == Role::Main);
    let Some(Given { ips, gateways }) = given(entry).filter(|_| is_main) else { return };
    let Some(Planned { routes, places }) = planned(entry, &ips) else { return };
    let reached = if entry.plugin == "ptp" { Gateways::All } else { Gateways::InNetworks };
    let at_gateway = |via| {
        let of_ip = ips.iter().zip(&gateways).find(|(ip, _)| ip.gateway == Some(via));
        of_ip.and_then(|(_, node)| *node).map_or(entry.place.clone(), |node| node.range.clone())
    };
    let is_gateway = entry.node.is_true("isGateway") || entry.node.is_true("isDefaultGateway");
    if entry.plugin == "bridge" && is_gateway {
        let alone = ips.iter().find(|ip| {
            let is_routed = routes.iter().any(|route| route.dst.is_ipv4() == ip.address.is_ipv4());
            is_routed
                && ip.gateway.is_some_and(|via| reach::is_on_link(via, std::slice::from_ref(*ip), &routes))
        });
        if let Some(ip) = alone {
            let via = ip.gateway.unwrap_or(ip.address.ip());
            let message =
                format!("gateway: the bridge can't be the gateway {via} of {}: use ptp", ip.address);
            found.warning(Rule::Conflict, &at_gateway(via), message);
            return;
        }
    }
    let Some((n, via)) = reach::unreachable(&ips, &routes, reached) else { return };
    match places.get(n).and_then(|route| route.get("gw")) {
        Some(gw) => {
            let message =
                format!("ipam.routes[{n}].gw: {via} is in no network of the pod: ADD can't add the route");
            found.error(Rule::InvalidValue, &gw.range, message);
        }
        None => {
            let message =
                format!("gateway: {via} is in no network of the pod: {} can't route to it", entry.plugin);
            found.warning(Rule::InvalidValue, &at_gateway(via), message);
        }
    }
}

/// Returns `None` if the file does not say which addresses the pod gets, or if one of them is invalid.
fn given<'a>(entry: &PluginEntry<'a>) -> Option<Given<'a>> {
    let given = match entry.ipam? {
        "static" if !addresses::is_replaced(entry) => of_static(entry)?,
        "host-local" | "cluster-local" if !entry.declares("ipRanges") => of_ranges(entry)?,
        _ => return None,
    };
    (!given.ips.is_empty()).then_some(given)
}

fn of_static<'a>(entry: &PluginEntry<'a>) -> Option<Given<'a>> {
    let (mut ips, mut gateways) = (Vec::new(), Vec::new());
    for item in entry.node.path(&["ipam", "addresses"]).map(Node::elements).unwrap_or_default() {
        let at = item.get("gateway").filter(|at| at.text().is_some());
        let gateway = match at {
            Some(at) => Some(at.text().and_then(cidr::parse_ip)?),
            None => None,
        };
        ips.push(IpConfig::new(item.text_of("address").and_then(cidr::parse_cidr)?, gateway));
        gateways.push(at);
    }
    Some(Given { ips, gateways })
}

/// Returns one address of each range, although the pod gets only one of each set. It returns `None` if the file doesn't
/// tell them.
fn of_ranges<'a>(entry: &PluginEntry<'a>) -> Option<Given<'a>> {
    let ipam = entry.node.get("ipam")?;
    // Pods of pools have other ranges. Routed pods reach their gateways by routes of their own.
    if ipam.get("pools").is_some() || ipam.is_true("routed") {
        return None;
    }
    let (mut ips, mut gateways) = (Vec::new(), Vec::new());
    for (range, pool) in addresses::ranges(entry)? {
        ips.push(IpConfig::new(pool.subnet, Some(pool.gateway)));
        gateways.push(range.get("gateway"));
    }
    Some(Given { ips, gateways })
}

/// Returns the routes of the pod. It returns `None` if one is invalid.
fn planned<'a>(entry: &PluginEntry<'a>, ips: &[IpConfig]) -> Option<Planned<'a>> {
    let (mut routes, mut places) = (Vec::new(), Vec::new());
    for item in entry.node.path(&["ipam", "routes"]).map(Node::elements).unwrap_or_default() {
        let gw = match item.get("gw").and_then(Node::text) {
            Some(text) => Some(cidr::parse_ip(text)?),
            None => None,
        };
        routes.push(Route::new(item.text_of("dst").and_then(cidr::parse_cidr)?, gw));
        places.push(item);
    }
    if entry.plugin == "bridge" && entry.node.is_true("isDefaultGateway") {
        for ip in ips {
            let gateway = ip.gateway.unwrap_or_else(|| cidr::first_address(ip.address));
            routes.push(Route::new(cidr::everywhere(ip.address), Some(gateway)));
        }
    }
    Some(Planned { routes, places })
}
