//! Checks the MTU of an interface against what later plugins of the chain do with it.

use cnimble_cni::mtu;

use super::addresses;
use crate::entry::PluginEntry;
use crate::{Findings, Node, Rule};

/// The MTU of a veth pair unless a key sets another.
const DEFAULT_MTU: u32 = 1500;

/// The keys of the limits of bandwidth, in bits.
const LIMITS: [(&str, &str); 2] = [("ingressRate", "ingressBurst"), ("egressRate", "egressBurst")];

/// Returns why the value of a key `mtu` is too small for IPv6. It returns `None` if it is large enough, or is no
/// positive number.
pub(super) fn ipv6_problem(node: &Node) -> Option<String> {
    let mtu = node.integer().filter(|mtu| *mtu > 0)?;
    mtu::ipv6_problem(u32::try_from(mtu).ok()?)
}

/// Checks the MTU that tuning sets on an interface with IPv6 addresses.
pub(super) fn tuning(entry: &PluginEntry<'_>, before: &[PluginEntry<'_>], found: &mut Findings) {
    let Some(node) = entry.node.get("mtu") else { return };
    let Some(problem) = ipv6_problem(node).filter(|_| before.iter().any(addresses::has_ipv6)) else { return };
    let message = format!("mtu: {problem}: the kernel takes the IPv6 addresses off the interface");
    found.warning(Rule::Conflict, &node.range, message);
}

/// Checks that bursts of bandwidth can hold a packet of the pair's MTU.
pub(super) fn bandwidth(entry: &PluginEntry<'_>, before: &[PluginEntry<'_>], found: &mut Findings) {
    let Some(mtu) = before.iter().find_map(mtu_of_pair) else { return };
    for keys in [Some(entry.node), entry.node.path(&["runtimeConfig", "bandwidth"])].into_iter().flatten() {
        for (rate_key, burst_key) in LIMITS {
            let (Some(rate), Some(burst)) = (bytes(keys, rate_key), bytes(keys, burst_key)) else { continue };
            let held = mtu::bytes(rate, mtu::ticks(rate, burst));
            let problem = mtu::burst_problem(rate, held, mtu);
            if let (Some(problem), Some(node)) = (problem, keys.get(burst_key)) {
                found.warning(Rule::Conflict, &node.range, format!("{burst_key}: {problem}"));
            }
        }
    }
}

/// Returns the bytes of a limit that is written in bits. A limit below a byte is another finding.
fn bytes(keys: &Node, key: &str) -> Option<u64> {
    let bits = keys.get(key).and_then(Node::integer).and_then(|bits| u64::try_from(bits).ok());
    bits.map(|bits| bits / 8).filter(|bytes| *bytes > 0)
}

/// Returns the MTU of the veth pair that a plugin makes. It returns `None` if it makes none, or chooses the MTU itself.
fn mtu_of_pair(entry: &PluginEntry<'_>) -> Option<u32> {
    if !["bridge", "ptp"].contains(&entry.plugin) || entry.node.is_true("mtuAuto") {
        return None;
    }
    let written = entry.node.get("mtu").and_then(Node::integer).filter(|mtu| *mtu > 0);
    written.map_or(Some(DEFAULT_MTU), |mtu| u32::try_from(mtu).ok())
}
