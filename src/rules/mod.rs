//! Packet rules that several plugins share, on top of [`crate::net::nft`].

pub mod masquerade;
mod owner;
pub mod spoof;

pub use owner::{Owner, hash16};
