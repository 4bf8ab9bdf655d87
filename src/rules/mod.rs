//! Packet rules that several plugins share, on top of [`crate::net::nft`].
//!
//! Each attachment has *elements in sets*; the rules over them are the same however many
//! attachments there are. An element's comment says whose it is ([`Owner`]).
//! docs/NFTABLES.md shows it all as an operator sees it.
//!
//! All functions take the caller's [`Nft`](crate::net::nft::Nft), so that one socket serves
//! masquerade and spoof check, and so that DEL can close it last (see there for why).
//! It must be a socket of the current namespace: that is where iptables would run.

mod backend;
mod command;
mod elements;
mod failures;
pub mod forward;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod listing;
pub mod masquerade;
mod owner;
mod packet;
pub mod portmap;
mod reference_spoof;
pub mod spoof;
pub mod survey;
mod xtables;

pub use owner::{Owner, hash16};
