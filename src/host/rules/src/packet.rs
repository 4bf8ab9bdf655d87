//! Networks in the names of sets.

use ipnetwork::IpNetwork;

/// Returns a network as it stands in the name of a set: `10.1.0.0/16`. The `nft` command takes no colon in a name, so
/// IPv6 has dashes: `fd00-1--/64`.
pub(super) fn network_name(net: &IpNetwork) -> String {
    format!("{}/{}", net.network(), net.prefix()).replace(':', "-")
}

/// Reads what [`network_name`] returns. `None` for any other text.
pub(super) fn network_named(name: &str) -> Option<IpNetwork> {
    name.replace('-', ":").parse().ok()
}
