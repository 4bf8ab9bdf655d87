//! DHCPv4 (RFC 2131): one address for an interface. `client` has the steps to a lease.

pub(crate) mod client;
pub(crate) mod frame;
pub(crate) mod lease;
pub(crate) mod message;
