//! DHCPv4 (RFC 2131): one address for an interface.
//!
//! | | |
//! |---|---|
//! | `message` | messages as bytes |
//! | `frame` | the headers of IPv4 and UDP around a message |
//! | `lease` | the content of a lease |
//! | `client` | the steps to a lease, and the messages |

pub(crate) mod client;
pub(crate) mod frame;
pub(crate) mod lease;
pub(crate) mod message;
