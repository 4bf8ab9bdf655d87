//! The kernel's network configuration over netlink, synchronously.
//!
//! A plugin holds one [`Netlink`] for the host and one per target namespace. [`Netlink::open_in`] enters the namespace
//! just for that moment, so the process stays where it is.
//!
//! Functions that read like the `ip` command ([`link::add_veth`], [`addr::add`] …) make changes ([`Request`]).
//! [`Netlink::execute`] carries them out, alone or many in one message. Look-ups are methods of `Netlink`. Everything
//! has a time limit, and every error carries the kernel's own words (extended ack).
//!
//! [`Netlink`] speaks NETLINK_ROUTE, [`nft::Nft`] and [`conntrack`] NETLINK_NETFILTER, and [`listeners`]
//! NETLINK_SOCK_DIAG. The types of rtnetlink and netlink-packet-route, which encode some requests, don't leave this
//! crate. [`Request::from_payload`] makes a change for which there is no function.
//!
//! A function that talks to the kernel fails if the kernel refuses the request. Its section "Errors" names only other
//! reasons.

// One socket (`socket`) with one way to ask and to list (`exchange`) and one reader of attributes (`wire`) serve all
// families of netlink.

#![warn(missing_docs)]

pub mod addr;
pub mod arp;
pub mod conntrack;
pub mod counters;
mod dad;
pub mod deferred_close;
pub mod disturbance;
mod error;
mod exchange;
pub mod fdb;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod legacy;
pub mod link;
pub mod listeners;
pub mod lookup;
pub mod monitor;
pub mod neigh;
mod netconf;
mod netlink;
pub mod netns;
pub mod next_hop;
pub mod nft;
pub mod packet;
pub mod policy;
pub mod port_state;
mod procfs;
pub mod raw;
mod request;
pub mod route;
mod route_read;
pub mod rule;
mod socket;
pub mod sysctl;
pub mod sysfs;
pub mod tc;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod uapi;
mod wire;
pub mod xfrm;

pub use error::{Error, IfPresent};
pub use link::kind::{self, tap};
pub use link::{details, port};
pub use netlink::Netlink;
pub use netns::NetNs;
// The type of an error's reason.
pub use nix::errno::Errno;
pub use request::Request;

/// The result of a kernel request.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
