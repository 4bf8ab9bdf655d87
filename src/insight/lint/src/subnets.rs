//! Finds conflicts between two networks: addresses that both assign, or that the host must route for both.

use std::ops::Range;

use cnimble_cni::cidr::overlap;
use ipnetwork::IpNetwork;

use super::entry::{PluginEntry, entries};
use super::rules::addresses::{Pool, sets};
use super::{Document, Finding, Findings, Node, Rule};

/// The addresses of a network, and the link of its pods.
struct Net<'a> {
    document: &'a Document,
    name: &'a str,
    segment: Option<Segment<'a>>,
    /// Whether the host gets routes to the pods.
    routed: bool,
    pools: Vec<Pool>,
    /// The IPv4 addresses that the bridge gets, with their places. Without `forceAddress` ADD fails if the bridge has
    /// others.
    gateways: Vec<(IpNetwork, Range<usize>)>,
}

/// The link that pods of several networks may share.
#[derive(PartialEq)]
enum Segment<'a> {
    /// A bridge with a VLAN.
    Bridge(&'a str, i128),
    /// A master with a VLAN.
    Master(&'a str, i128),
}

/// Reports what a network cannot share with an earlier one: its name, and addresses. `networks` are in the order of
/// their files' names.
pub fn together<'a>(document: &'a Document, networks: &'a [Document]) -> Vec<Finding> {
    let Some(own) = net(document) else { return Vec::new() };
    let before = networks.iter().take_while(|other| other.file.path != document.file.path);
    let mut found = Findings::default();
    for other in before.filter_map(net) {
        let whose = format!("network {} ({})", other.name, other.document.file.path);
        if own.name == other.name && !own.name.is_empty() {
            let place = document.root.get("name").map_or(0..0, |node| node.range.clone());
            let message = format!("name: {whose} has the same name, and the first file counts");
            found.warning(Rule::Conflict, &place, message);
            continue;
        }
        let shared = own.segment.is_some() && own.segment == other.segment;
        let foreign = other.gateways.first().filter(|_| shared);
        for (gateway, place) in &own.gateways {
            let Some((theirs, _)) = foreign else { continue };
            if !other.gateways.iter().any(|(theirs, _)| theirs == gateway) {
                let message = format!("the bridge has {theirs} of {whose}, so ADD can't give it {gateway}");
                found.warning(Rule::Conflict, place, message);
            }
        }
        for pool in &own.pools {
            let twin = other.pools.iter().find(|twin| {
                if shared {
                    // Each network has its own leases.
                    twin.overlaps(pool)
                } else {
                    own.routed && other.routed && overlap(twin.subnet, pool.subnet)
                }
            });
            if let Some(twin) = twin {
                let message = format!("subnet: {} overlaps {} of {whose}", pool.subnet, twin.subnet);
                found.warning(Rule::Overlap, &pool.place, message);
            }
        }
    }
    found.0
}

/// Returns what matters of a network with host-local. It returns `None` without it.
fn net(document: &Document) -> Option<Net<'_>> {
    let entry = entries(document).into_iter().find(|entry| entry.ipam == Some("host-local"))?;
    let pools: Vec<Pool> = sets(&entry).into_iter().flatten().collect();
    let is_gateway = entry.plugin == "bridge" && routed(&entry) && !entry.node.is_true("forceAddress");
    let gateways = pools.iter().filter(|pool| is_gateway && pool.subnet.is_ipv4());
    let gateways = gateways.filter_map(|pool| Some((gateway(pool)?, pool.place.clone()))).collect();
    let name = document.root.text_of("name").unwrap_or_default();
    Some(Net { document, name, segment: segment(&entry), routed: routed(&entry), pools, gateways })
}

fn segment<'a>(entry: &PluginEntry<'a>) -> Option<Segment<'a>> {
    match entry.plugin {
        "bridge" => {
            Some(Segment::Bridge(entry.node.text_of("bridge").unwrap_or("cni0"), number(entry, "vlan")))
        }
        "macvlan" | "ipvlan" | "vlan" => {
            Some(Segment::Master(entry.node.text_of("master")?, number(entry, "vlanId")))
        }
        _ => None,
    }
}

/// Returns the number of a key, or 0 without one.
fn number(entry: &PluginEntry<'_>, key: &str) -> i128 {
    entry.node.get(key).and_then(Node::integer).unwrap_or(0)
}

/// Returns whether the host gets routes to the pods.
pub(crate) fn routed(entry: &PluginEntry<'_>) -> bool {
    let is_gateway = entry.node.is_true("isGateway") || entry.node.is_true("isDefaultGateway");
    entry.plugin == "ptp" || entry.plugin == "bridge" && is_gateway
}

/// Returns the subnets that the host gets routes to, and the entries of their plugins.
pub(crate) fn of_host(document: &Document) -> Vec<(PluginEntry<'_>, Vec<Pool>)> {
    let all = entries(document).into_iter().filter(|entry| entry.ipam == Some("host-local") && routed(entry));
    all.map(|entry| {
        let pools = sets(&entry).into_iter().flatten().collect();
        (entry, pools)
    })
    .collect()
}

/// Returns the bridge's address in this range.
pub(crate) fn gateway(pool: &Pool) -> Option<IpNetwork> {
    IpNetwork::new(pool.gateway, pool.subnet.prefix()).ok()
}
