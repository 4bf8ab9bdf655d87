//! Addresses of pods whose lifetime ends with their lease.

const PLUGINS: [&str; 1] = ["dhcp"];

/// Returns whether the addresses of the IPAM plugin `ipam` have the lifetime of their lease.
#[must_use]
pub fn ends(ipam: &str) -> bool {
    PLUGINS.contains(&ipam)
}
