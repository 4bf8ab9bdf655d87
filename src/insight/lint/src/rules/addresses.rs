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
    /// The gateway. Without the key it is the subnet's first address.
    pub(crate) gateway: IpAddr,
    /// The addresses that `exclude` leaves, as numbers, both ends included.
    spans: Vec<(u128, u128)>,
    pub(crate) place: Range<usize>,
}

impl Pool {
    fn contains(&self, ip: IpAddr) -> bool {
        let number = cidr::number(ip);
        ip.is_ipv4() == self.subnet.is_ipv4()
            && self.spans.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// Returns whether both ranges have an address that can be given.
    pub(crate) fn overlaps(&self, other: &Pool) -> bool {
        let mut pairs = self.spans.iter().flat_map(|one| other.spans.iter().map(move |of| (one, of)));
        self.subnet.is_ipv4() == other.subnet.is_ipv4()
            && pairs.any(|((start, end), of)| *start <= of.1 && of.0 <= *end)
    }
}

/// Returns all ranges as they are written, or `None` if one of them is invalid.
pub(super) fn ranges<'a>(entry: &PluginEntry<'a>) -> Option<Vec<(&'a Node, Pool)>> {
    let all = written(entry).into_iter().flatten();
    all.map(|node| Some((node, pool(node).ok()?))).collect()
}

/// Returns the ranges of each set, without invalid ones.
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

/// Returns the finding about a value of a range.
fn invalid(node: &Node, message: String) -> Option<Finding> {
    Some(Finding::error(Rule::InvalidValue, node.range.clone(), message))
}

/// Reads a range. Fails with the finding about it. Fails with `None` for an invalid address, which another finding
/// reports.
fn pool(range: &Node) -> Result<Pool, Option<Finding>> {
    let node = range.get("subnet").ok_or(None)?;
    let subnet = node.text().and_then(cidr::parse_cidr).ok_or(None)?;
    let bits = if subnet.is_ipv4() { 32 } else { 128 };
    if subnet.ip() != subnet.network() {
        let right = format!("{}/{}", subnet.network(), subnet.prefix());
        return Err(invalid(node, format!("subnet: {subnet} has host bits set: did you mean {right}?")));
    }
    if subnet.prefix() > bits - 1 {
        return Err(invalid(node, format!("subnet: {subnet} is too small to give addresses of")));
    }
    let mut ends = [subnet.network(), subnet.broadcast()];
    for (key, end) in ["rangeStart", "rangeEnd"].into_iter().zip(&mut ends) {
        let Some(node) = range.get(key) else { continue };
        let Some(ip) = node.text().and_then(cidr::parse_ip) else { continue };
        if !subnet.contains(ip) {
            return Err(invalid(node, format!("{key}: {ip} is not in {subnet}")));
        }
        *end = ip;
    }
    let [start, end] = ends;
    if end < start {
        let at = range.get("rangeEnd").unwrap_or(node);
        return Err(invalid(at, format!("rangeEnd: {end} is before rangeStart, {start}")));
    }
    let [first, last] = ends.map(cidr::number);
    let (mut spans, mut excluded) = (vec![(first, last)], Vec::new());
    for at in range.get("exclude").map(Node::elements).unwrap_or_default() {
        let Some((ip, length)) = at.text().and_then(cidr::parse_ip_or_cidr) else { continue };
        if !subnet.contains(ip) {
            return Err(invalid(at, format!("exclude: {ip} is not in {subnet}")));
        }
        excluded.push(IpNetwork::new(ip, length.unwrap_or(bits)).unwrap_or(ip.into()));
        spans = cidr::without(first, last, &excluded);
        if spans.is_empty() {
            return Err(invalid(at, format!("exclude: no address of {subnet} is left")));
        }
    }
    let mut gateway = cidr::first_address(subnet);
    if let Some(at) = range.get("gateway")
        && let Some(written) = at.text().and_then(cidr::parse_ip)
    {
        if written.is_ipv4() != subnet.is_ipv4() {
            return Err(invalid(at, format!("gateway: {written} is not of the family of {subnet}")));
        }
        gateway = written;
    }
    Ok(Pool { subnet, gateway, spans, place: node.range.clone() })
}

/// Returns whether the network certainly gives the pod an IPv6 address. It returns false if the file doesn't say.
pub(super) fn has_ipv6(entry: &PluginEntry<'_>) -> bool {
    match entry.ipam {
        Some("host-local" | "cluster-local") => {
            sets(entry).iter().flatten().any(|pool| pool.subnet.is_ipv6())
        }
        Some("static") if !is_replaced(entry) => {
            let addresses = entry.node.path(&["ipam", "addresses"]).map(Node::elements).unwrap_or_default();
            let mut written =
                addresses.iter().filter_map(|item| item.text_of("address").and_then(cidr::parse_cidr));
            written.any(|net| net.is_ipv6())
        }
        Some("dhcp") => {
            let families = entry.node.path(&["ipam", "families"]).map(Node::elements).unwrap_or_default();
            families.iter().any(|family| family.text() == Some("ipv6"))
        }
        _ => false,
    }
}

/// Returns whether other addresses replace `ipam.addresses` of static.
pub(super) fn is_replaced(entry: &PluginEntry<'_>) -> bool {
    entry.declares("ips") || !requested(entry).is_empty()
}

/// Returns the elements of the keys that request addresses.
fn requested<'a>(entry: &PluginEntry<'a>) -> Vec<&'a Node> {
    let keys = [["args", "cni", "ips"].as_slice(), &["runtimeConfig", "ips"]];
    keys.into_iter().filter_map(|path| entry.node.path(path)).flat_map(Node::elements).collect()
}

/// Returns the address of a text with or without a prefix length. It returns `None` if it is invalid.
fn parsed(node: &Node) -> Option<IpAddr> {
    node.text().and_then(cidr::parse_ip_or_cidr).map(|(ip, _)| ip)
}

/// Checks that the ranges have the requested addresses. A runtime may give more ranges.
fn asked(entry: &PluginEntry<'_>, found: &mut Findings) {
    let has_pools = entry.node.path(&["ipam", "pools"]).is_some();
    let sets = sets(entry);
    if entry.declares("ipRanges") || has_pools || sets.len() != written(entry).len() {
        return;
    }
    let mut wanted: Vec<IpAddr> = Vec::new();
    for ip in requested(entry).into_iter().filter_map(parsed) {
        if !wanted.contains(&ip) {
            wanted.push(ip);
        }
    }
    let (_, left) = cidr::assign(&sets, &wanted, |set, ip| set.iter().any(|pool| pool.contains(ip)));
    for ip in left {
        let node = requested(entry).into_iter().find(|node| parsed(node) == Some(ip));
        let is_known = sets.iter().flatten().any(|pool| pool.contains(ip));
        let why = if is_known { "the second address of its set of ranges" } else { "in no range of ipam" };
        let place = node.map_or(&entry.place, |node| &node.range);
        found.error(Rule::Conflict, place, format!("{ip} is {why}: ADD can't give it"));
    }
}

/// Checks the ranges of host-local: that there are some, and that they are valid and do not overlap.
pub(super) fn host_local(entry: &PluginEntry<'_>, found: &mut Findings) {
    let sets = written(entry);
    let told = entry.declares("ipRanges");
    if sets.is_empty() && !told {
        let place = entry.node.path(&["ipam", "type"]).map_or(entry.place.clone(), |node| node.range.clone());
        let plugin = entry.ipam.unwrap_or("host-local");
        let message = format!("{plugin} has no addresses: give ipam.ranges, or the capability ipRanges");
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
    asked(entry, found);
    for set in entry.node.path(&["ipam", "ranges"]).map(Node::elements).unwrap_or_default() {
        if matches!(&set.data, crate::Data::List(list) if list.is_empty()) {
            found.error(Rule::MissingKey, &set.range, "ipam.ranges: a set without ranges");
        }
    }
}

/// Checks the addresses of static and their gateways.
pub(super) fn fixed(entry: &PluginEntry<'_>, found: &mut Findings) {
    let list = entry.node.path(&["ipam", "addresses"]).map(Node::elements).unwrap_or_default();
    if list.is_empty() && !is_replaced(entry) {
        let place = entry.node.path(&["ipam", "type"]).map_or(&entry.place, |node| &node.range);
        let message =
            "static has no addresses: ADD works only with IP in CNI_ARGS, or with the capability ips";
        found.note(Rule::MissingKey, place, message);
    }
    let mut seen: Vec<IpAddr> = Vec::new();
    for item in list {
        let Some(node) = item.get("address") else { continue };
        let Some(address) = node.text().and_then(cidr::parse_cidr) else { continue };
        if seen.contains(&address.ip()) {
            let message = format!("ipam.addresses: {} is listed twice", address.ip());
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
