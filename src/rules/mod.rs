//! Packet rules that several plugins share, on top of [`crate::net::nft`].

pub mod masquerade;
pub mod spoof;

use crate::spec::Attachment;

/// Whose rules they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Network name.
    pub network: String,
    /// Container and interface.
    pub attachment: Attachment,
}
