//! Packet rules that several plugins share, on top of [`cnimble_netlink::nft`]. Each attachment has *elements in sets*
//! under common rules. An element's comment names its owner ([`cnimble_cni::Owner`]). docs/NFTABLES.md shows it all.
//!
//! | module | task |
//! |---|---|
//! | [`masquerade`], [`portmap`], [`forward`] | NAT, published ports, the plugin firewall |
//! | [`spoof`], [`isolation`] | the MAC check and isolated pods of a bridge |
//! | `elements` | finds, creates and removes elements for all of them |
//! | `backend` | chooses nf_tables or iptables |
//! | [`nat`] | rules of others that decide about packets of pods |
//! | [`hand_over`] | the same rules in the form of the Go plugins |
//! | [`objects`], [`survey`], [`listing`] | kinds of objects, and a look at all rules of a host |
//!
//! All functions take the caller's [`Nft`](cnimble_netlink::nft::Nft), a socket of the current namespace, where
//! iptables would run. DEL can close it last (see there for why).

mod backend;
mod command;
pub mod drops;
mod elements;
mod failures;
mod filter_rule;
pub mod filters;
pub mod forward;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod go_chains;
pub mod hand_over;
pub mod isolation;
mod listed;
pub mod listing;
pub mod masquerade;
pub mod nat;
pub mod objects;
mod packet;
pub mod portmap;
mod protocol;
pub mod records;
mod reference_spoof;
mod retry;
pub mod spoof;
pub mod survey;
mod undo;
pub mod whose;
mod xtables;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
