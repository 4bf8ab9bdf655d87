//! DHCPv6 (RFC 8415): one address for an interface, by IA_NA. `client` and `answers` have the steps to a lease.

mod answers;
pub(crate) mod client;
pub(crate) mod lease;
pub(crate) mod message;
mod pause;
pub(crate) mod socket;

/// "For ever" (RFC 8415, section 7.7).
const FOR_EVER: u32 = u32::MAX;
