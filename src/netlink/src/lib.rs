//! The kernel's network configuration over netlink, synchronously.
//!
//! A plugin holds one [`Netlink`] for the host and one per target namespace; the second
//! is opened by entering the namespace just for that moment ([`Netlink::open_in`]), so
//! the process stays where it is.
//!
//! Changes are [`Request`]s, made by functions that read like the `ip` command
//! ([`link::add_veth`], [`addr::add`], [`route::add`] …) and carried out by
//! [`Netlink::execute`], alone or many in one message. Look-ups are methods of `Netlink`.
//!
//! Everything has a time limit and every error carries the kernel's own words (extended
//! ack). Requests are encoded by rtnetlink and netlink-packet-route; answers are read by
//! a small reader of our own, which takes any bytes.
//!
//! The types of the netlink crates don't leave this module.

pub mod addr;
pub mod conntrack;
mod error;
mod exchange;
pub mod fdb;
pub mod filter;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod htb;
pub mod ifb;
pub mod kind;
pub mod link;
mod link_read;
mod mac;
pub mod neigh;
mod netconf;
pub mod netns;
pub mod nft;
pub mod port;
mod procfs;
pub mod qdisc;
mod request;
pub mod route;
mod route_read;
mod settle;
mod socket;
pub mod sort;
pub mod sysctl;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use error::Error;
pub use netns::NetNs;
pub use request::Request;
pub use socket::Netlink;

/// The result of a kernel request.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
