//! Checks the ranges of host-local and the addresses of static.

use std::net::IpAddr;
use std::ops::Range;

use cnimble_cni::cidr;
use ipnetwork::IpNetwork;

use crate::entry::PluginEntry;
use crate::{Finding, Findings, Node, Rule};

/// A range of addresses for host-local.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) subnet: IpNetwork,
    /// The addresses that `exclude` leaves, as numbers, both ends included.
    spans: Vec<(u128, u128)>,
    pub(crate) place: Range<usize>,
}

impl Pool {
    pub(crate) fn overlaps(&self, other: &Pool) -> bool {
        let meet = |(start, end): &(u128, u128)| other.spans.iter().any(|of| *start <= of.1 && of.0 <= *end);
        self.subnet.is_ipv4() == other.subnet.is_ipv4() && self.spans.iter().any(meet)
    }
}

/// Leaves out invalid ranges.
pub(crate) fn sets(entry: &PluginEntry<'_>) -> Vec<Vec<Pool>> {
    written(entry)
        .into_iter()
        .map(|set| set.into_iter().filter_map(|node| pool(node).ok()).collect())
        .collect()
}

/// Returns the ranges of each set as they are written.
fn written<'a>(entry: &PluginEntry<'a>) -> Vec<Vec<&'a Node>> {
    let Some(ipam) = entry.node.get("ipam") else { return Vec::new() };
    let oldest = ipam.text_of("subnet").map(|_| vec![ipam]);
    let sets = ipam.get("ranges").map(Node::elements).unwrap_or_default();
    let sets = sets.iter().map(|set| set.elements().iter().collect());
    let runtime = entry.node.path(&["runtimeConfig", "ipRanges"]).map(Node::elements).unwrap_or_default();
    let runtime = runtime.iter().map(|set| set.elements().iter().collect());
    runtime.chain(oldest).chain(sets).collect()
}

/// An invalid address is neither a range nor a finding, because another finding reports it.
fn pool(range: &Node) -> Result<Pool, Option<Finding>> {
    let error = |node: &Node, message: String| {
        Err(Some(Finding::error(Rule::InvalidValue, node.range.clone(), message)))
    };
    let node = range.get("subnet").ok_or(None)?;
    let subnet = node.text().and_then(cidr::parse_cidr).ok_or(None)?;
    let bits = if subnet.is_ipv4() { 32 } else { 128 };
    if subnet.ip() != subnet.network() {
        let right = format!("{}/{}", subnet.network(), subnet.prefix());
        return error(node, format!("subnet: {subnet} has host bits set: did you mean {right}?"));
    }
    if subnet.prefix() > bits - 1 {
        return error(node, format!("subnet: {subnet} is too small to give addresses of"));
    }
    let mut ends = [subnet.network(), subnet.broadcast()];
    for (key, end) in ["rangeStart", "rangeEnd"].into_iter().zip(&mut ends) {
        let Some(node) = range.get(key) else { continue };
        let Some(ip) = node.text().and_then(cidr::parse_ip) else { continue };
        if !subnet.contains(ip) {
            return error(node, format!("{key}: {ip} is not in {subnet}"));
        }
        *end = ip;
    }
    let [start, end] = ends;
    if end < start {
        let at = range.get("rangeEnd").unwrap_or(node);
        return error(at, format!("rangeEnd: {end} is before rangeStart, {start}"));
    }
    let [first, last] = ends.map(cidr::number);
    let (mut spans, mut excluded) = (vec![(first, last)], Vec::new());
    for at in range.get("exclude").map(Node::elements).unwrap_or_default() {
        let Some((ip, length)) = at.text().and_then(cidr::parse_ip_or_cidr) else { continue };
        if !subnet.contains(ip) {
            return error(at, format!("exclude: {ip} is not in {subnet}"));
        }
        excluded.push(IpNetwork::new(ip, length.unwrap_or(bits)).unwrap_or(ip.into()));
        spans = cidr::without(first, last, &excluded);
        if spans.is_empty() {
            return error(at, format!("exclude: no address of {subnet} is left"));
        }
    }
    if let Some(at) = range.get("gateway")
        && let Some(gateway) = at.text().and_then(cidr::parse_ip)
    {
        if gateway.is_ipv4() != subnet.is_ipv4() {
            return error(at, format!("gateway: {gateway} is not of the family of {subnet}"));
        }
        let outside = !subnet.contains(gateway) && !is_link_local(gateway);
        if outside {
            let message = format!("gateway: {gateway} is not in {subnet}: pods can't reach it");
            return Err(Some(Finding::warning(Rule::InvalidValue, at.range.clone(), message)));
        }
    }
    Ok(Pool { subnet, spans, place: node.range.clone() })
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

pub(super) fn host_local(entry: &PluginEntry<'_>, found: &mut Findings) {
    let sets = written(entry);
    let told = entry.declares("ipRanges");
    if sets.is_empty() && !told {
        let place = entry.node.path(&["ipam", "type"]).map_or(entry.place.clone(), |node| node.range.clone());
        let message = "host-local has no addresses: give ipam.ranges, or the capability ipRanges";
        found.error(Rule::MissingKey, &place, message);
    }
    let mut before: Vec<Pool> = Vec::new();
    for set in sets {
        let mut family = None;
        for node in set {
            let pool = match pool(node) {
                Ok(pool) => pool,
                Err(problem) => {
                    found.0.extend(problem);
                    continue;
                }
            };
            let is_ipv4 = pool.subnet.is_ipv4();
            if *family.get_or_insert(is_ipv4) != is_ipv4 {
                let message =
                    format!("subnet: {} is of another family than the set's first range", pool.subnet);
                found.error(Rule::Conflict, &pool.place, message);
            }
            if let Some(other) = before.iter().find(|other| other.overlaps(&pool)) {
                let message =
                    format!("subnet: {} overlaps {}, in the same network", pool.subnet, other.subnet);
                found.error(Rule::Overlap, &pool.place, message);
            }
            before.push(pool);
        }
    }
    for set in entry.node.path(&["ipam", "ranges"]).map(Node::elements).unwrap_or_default() {
        if matches!(&set.data, crate::Data::List(list) if list.is_empty()) {
            found.error(Rule::MissingKey, &set.range, "ipam.ranges: a set without ranges");
        }
    }
}

/// Checks the addresses of static and their gateways.
pub(super) fn fixed(entry: &PluginEntry<'_>, found: &mut Findings) {
    let list = entry.node.path(&["ipam", "addresses"]).map(Node::elements).unwrap_or_default();
    let mut seen: Vec<IpAddr> = Vec::new();
    for item in list {
        let Some(node) = item.get("address") else { continue };
        let Some(address) = node.text().and_then(cidr::parse_cidr) else { continue };
        if seen.contains(&address.ip()) {
            let message = format!("ipam.addresses: {} stands there twice", address.ip());
            found.error(Rule::Conflict, &node.range, message);
        }
        seen.push(address.ip());
        let Some(at) = item.get("gateway") else { continue };
        if let Some(gateway) =
            at.text().and_then(cidr::parse_ip).filter(|ip| ip.is_ipv4() != address.is_ipv4())
        {
            let message = format!("gateway: {gateway} is not of the family of {address}");
            found.error(Rule::InvalidValue, &at.range, message);
        }
    }
}
