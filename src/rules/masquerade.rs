//! Source NAT for what leaves the pod network (`ipMasq`).

use ipnetwork::IpNetwork;

use super::Owner;
use crate::net::nft::Nft;
use crate::spec::{Attachment, Error};

/// Who does it (`ipMasqBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables by netlink, in our own table.
    Nftables,
    /// The iptables command, with the reference's chains.
    Iptables,
}

impl Backend {
    /// The configured backend, or for `None` nf_tables where it works and iptables elsewhere.
    ///
    /// # Errors
    /// Code 7 for another name.
    pub fn choose(_configured: Option<&str>, _nft: &mut Nft) -> Result<Self, Error> {
        todo!()
    }
}

/// Masquerades what the owner's `addrs` (address with the prefix length of its network)
/// send out of their network, except multicast. Idempotent. Takes back what it did if it
/// fails half-way.
///
/// # Errors
/// The kernel's, or what iptables printed.
pub fn add(_backend: Backend, _nft: &mut Nft, _owner: &Owner, _addrs: &[IpNetwork]) -> Result<Undo, Error> {
    todo!()
}

/// What [`add`] did, to be taken back exactly (also the table, if it was made and nobody
/// else uses it by now).
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

/// Removes all masquerading of the owner: ours, and what the Go plugins left with either
/// backend, older chain forms included. `addrs` are a hint (from prevResult) that saves
/// listing; they may be stale or missing.
///
/// # Errors
/// What could not be removed.
pub fn remove(_nft: &mut Nft, _owner: &Owner, _addrs: &[IpNetwork]) -> Result<(), Error> {
    todo!()
}

/// The owner's masquerading is in place for all `addrs`; also accepts the Go plugins' objects.
///
/// # Errors
/// Code 103 with what is missing.
pub fn check(_nft: &mut Nft, _owner: &Owner, _addrs: &[IpNetwork]) -> Result<(), Error> {
    todo!()
}

/// Removes the masquerading of all attachments of `network` that aren't in `valid`.
///
/// # Errors
/// What could not be removed.
pub fn gc(_nft: &mut Nft, _network: &str, _valid: &[Attachment]) -> Result<(), Error> {
    todo!()
}

/// Whether `backend` can be used now.
///
/// # Errors
/// Code 50.
pub fn status(_backend: Backend, _nft: &mut Nft) -> Result<(), Error> {
    todo!()
}
