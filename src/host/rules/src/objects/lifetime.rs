//! Addresses in pods that end with a lease.

const PLUGINS: [&str; 1] = ["dhcp"];

/// Returns whether the addresses of IPAM plugin `ipam` end with their lease.
#[must_use]
pub fn ends(ipam: &str) -> bool {
    PLUGINS.contains(&ipam)
}
