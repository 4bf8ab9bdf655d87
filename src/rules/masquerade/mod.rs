//! Source NAT for what leaves the pod network (`ipMasq`).
//!
//! Two backends: nf_tables in a table of our own ([`nftables`]), and the iptables command
//! with the chains of the Go reference plugins ([`iptables`]), for hosts that need it.
//! Whatever the backend, removal also looks for what the Go plugins made ([`reference`]):
//! a node switches in the middle of its pods' lives.

pub(in crate::rules) mod iptables;
pub(super) mod nftables;
pub(super) mod reference;

use ipnetwork::IpNetwork;

use super::Owner;
use super::failures::{Failures, has_nf_tables, is_unsupported};
use super::listing::Listed;
use crate::net::nft::Nft;
use crate::spec::{Attachment, Code, Error};

/// Who does it (`ipMasqBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables by netlink, in our own table.
    Nftables,
    /// The iptables command, with the reference's chains.
    Iptables,
    /// nf_tables, or iptables where the kernel's nf_tables can't masquerade. That shows when
    /// it is told to: trying it out beforehand would cost the first pod more than the rest
    /// of its ADD.
    Auto,
}

impl Backend {
    /// The configured backend; for `None` nf_tables where it works and iptables elsewhere.
    ///
    /// # Errors
    /// Code 7 for another name.
    pub fn choose(configured: Option<&str>, nft: &mut Nft) -> Result<Self, Error> {
        match configured {
            Some("nftables") => Ok(Backend::Nftables),
            Some("iptables") => Ok(Backend::Iptables),
            Some(other) => Err(Error::config(format!("ipMasqBackend: unknown backend \"{other}\""))
                .details("allowed are \"nftables\" and \"iptables\"")),
            // An error about nf_tables says more than one about a command that isn't there.
            None if nft.probe().is_err() && iptables::installed() => Ok(Backend::Iptables),
            None => Ok(Backend::Auto),
        }
    }
}

/// Masquerades what the owner's `addrs` (address with the prefix length of its network)
/// send out of their network, except multicast. Idempotent. Takes back what it did if it
/// fails half-way.
///
/// # Errors
/// The kernel's, or what iptables printed.
pub fn add(backend: Backend, nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<Undo, Error> {
    let refused = match backend {
        Backend::Iptables => return Ok(Undo(Made::Iptables(iptables::add(nft, owner, addrs)?))),
        Backend::Nftables | Backend::Auto => match nftables::add(nft, owner, addrs) {
            Ok(changes) => return Ok(Undo(Made::Nftables(changes))),
            Err(err) => err,
        },
    };
    if backend == Backend::Auto && is_unsupported(refused.errno) && iptables::installed() {
        log::info!("masquerading with iptables, as nf_tables can't: {refused}");
        return match iptables::add(nft, owner, addrs) {
            Ok(made) => Ok(Undo(Made::Iptables(made))),
            Err(err) => Err(Error::from(refused).details(format!("and with iptables: {err}"))),
        };
    }
    Err(refused.into())
}

/// What [`add`] did, to be taken back exactly (also the table, if it was made and nobody
/// else uses it by now).
#[derive(Debug)]
pub struct Undo(Made);

#[derive(Debug)]
enum Made {
    Nftables(super::elements::Changes),
    Iptables(iptables::Made),
}

impl Undo {
    /// Takes it back. Opens its own socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(self) -> Result<(), Error> {
        let mut nft = Nft::new();
        match self.0 {
            Made::Nftables(changes) => nftables::revert(&mut nft, &changes),
            Made::Iptables(made) => iptables::revert(&mut nft, &made),
        }
    }
}

/// Removes all masquerading of the owner: ours, and what the Go plugins left with either
/// backend, older chain forms included. `addrs` are a hint (from prevResult) that saves
/// listing; they may be stale or missing.
///
/// # Errors
/// What could not be removed. Everything has been tried.
pub fn remove(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(nftables::remove(nft, owner, addrs));
        failures.note(reference::remove_nf_tables(nft, owner, addrs));
    }
    failures.note(reference::remove_legacy(owner, addrs));
    failures.outcome()
}

/// The owner's masquerading is in place for all `addrs`; also accepts the Go plugins' objects.
///
/// # Errors
/// Code 103 with what is missing.
pub fn check(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    for addr in addrs {
        let missing = match nftables::check(nft, owner, *addr) {
            Ok(None) => continue,
            Ok(Some(missing)) => missing,
            Err(err) => err.to_string(),
        };
        if !reference::is_masqueraded(nft, owner, addr.ip())? {
            let what = format!("masquerade of {} is missing", addr.ip());
            return Err(Error::check(what).details(missing));
        }
    }
    Ok(())
}

/// Whether the reference's objects are there for all `addrs`.
fn check_reference(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<bool, Error> {
    for addr in addrs {
        if !reference::is_masqueraded(nft, owner, addr.ip())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the masquerading of all attachments of `network` that aren't in `valid`.
///
/// # Errors
/// What could not be removed. Everything has been tried.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(nftables::gc(nft, network, valid));
        failures.note(reference::gc_nf_tables(nft, network, valid));
    }
    failures.note(reference::gc_legacy(network, valid));
    failures.outcome()
}

/// Whether `backend` can be used now.
///
/// # Errors
/// Code 50.
pub fn status(backend: Backend, nft: &mut Nft) -> Result<(), Error> {
    let outcome = match backend {
        Backend::Nftables => nftables::usable(nft),
        Backend::Iptables => iptables::usable(),
        Backend::Auto => match nftables::usable(nft) {
            Err(_) if iptables::installed() => iptables::usable(),
            outcome => outcome,
        },
    };
    outcome.map_err(|err| Error::new(Code::NOT_AVAILABLE, err.msg).details(err.details))
}

/// All elements, for [`super::listing`].
pub(super) fn list(nft: &mut Nft) -> crate::net::Result<Vec<Listed>> {
    nftables::list(nft)
}
