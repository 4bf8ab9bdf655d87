//! Only the pod's own MAC may enter the bridge from its port (`macspoofchk`).

use super::Owner;
use crate::net::link::Mac;
use crate::net::nft::Nft;
use crate::spec::{Attachment, Error};

/// Drops frames that come in at `port` with another source than `mac`.
///
/// # Errors
/// The kernel's.
pub fn add(_nft: &mut Nft, _owner: &Owner, _port: &str, _mac: Mac) -> Result<Undo, Error> {
    todo!()
}

/// What [`add`] did, to be taken back exactly.
#[derive(Debug)]
pub struct Undo {}

impl Undo {
    /// Takes it back. Opens its own socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(self) -> Result<(), Error> {
        todo!()
    }
}

/// Removes the owner's rules, ours and the Go plugins'. `port` is a hint.
///
/// # Errors
/// What could not be removed.
pub fn remove(_nft: &mut Nft, _owner: &Owner, _port: Option<&str>) -> Result<(), Error> {
    todo!()
}

/// The owner's rules are in place (ours or the Go plugins').
///
/// # Errors
/// Code 103 with what is missing.
pub fn check(_nft: &mut Nft, _owner: &Owner, _port: &str, _mac: Mac) -> Result<(), Error> {
    todo!()
}

/// Removes the rules of all attachments of `network` that aren't in `valid`.
///
/// # Errors
/// What could not be removed.
pub fn gc(_nft: &mut Nft, _network: &str, _valid: &[Attachment]) -> Result<(), Error> {
    todo!()
}
