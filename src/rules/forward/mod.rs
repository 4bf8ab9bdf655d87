//! What the host may forward to and from pods (the plugin `firewall`).
//!
//! Three things, whatever the backend:
//!
//! - traffic of pods is accepted: what they send, and answers to it;
//! - the administrator's own rules come first;
//! - bridges whose pods are not to be reached from other bridges ([`Policy`]).
//!
//! **nf_tables** (`nftables`) has this in our own table. An accept there ends only our own
//! chain: what another chain drops stays dropped. **iptables** (`iptables`) has the Go plugin's
//! chains, which stand *in* the chain `FORWARD` that is in the way where its policy is drop
//! (Docker, ufw). **firewalld** (`firewalld`) has a chain of its own that drops what it hasn't
//! been told of. So that is what decides where nobody has: firewalld if it is running, iptables
//! if `FORWARD` drops by policy, nf_tables everywhere else.

mod firewalld;
pub(super) mod iptables;
pub(super) mod nftables;

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;

use super::backend::{self as rules, Made};
use super::failures::{Failures, has_nf_tables};
use super::listing::Listed;
use super::{Owner, command, xtables};
use crate::net::nft::{Family, Nft, Table};
use crate::spec::{Attachment, Code, Error};

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables by netlink, in our own table.
    Nftables,
    /// The iptables command, with the reference's chains.
    Iptables,
    /// firewalld by D-Bus. Policies of bridges are in our own table.
    Firewalld,
}

/// Which pods may open connections to a pod (`ingressPolicy`). It is the bridge's: all its
/// pods share it, and the latest ADD decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// All.
    #[default]
    Open,
    /// Those on the same bridge, and those on bridges with the policy `open`.
    SameBridge,
    /// As `SameBridge`, without those on the same bridge.
    Isolated,
}

impl fmt::Display for Policy {
    /// As in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Open => "open",
            Policy::SameBridge => "same-bridge",
            Policy::Isolated => "isolated",
        })
    }
}

/// What is wanted for a pod.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    /// The pod's addresses.
    pub addrs: Vec<IpAddr>,
    /// Who may reach it.
    pub policy: Policy,
    /// The bridge that it is on; needed for any policy but `Open`.
    pub bridge: Option<String>,
    /// The administrator's chain, for iptables.
    pub admin_chain: String,
    /// The zone, for firewalld.
    pub zone: String,
}

impl Forward {
    /// The bridge, if it has a policy.
    fn policed(&self) -> Option<&str> {
        self.bridge.as_deref().filter(|_| self.policy != Policy::Open)
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.addrs.iter().copied().filter(move |ip| ip.is_ipv4() == (family == Family::Ipv4))
    }
}

/// The configured backend, or else the one that works for this host (see the module).
///
/// # Errors
/// The kernel's.
pub fn choose(configured: Option<Backend>, nft: &mut Nft) -> Result<Backend, Error> {
    if let Some(backend) = configured {
        return Ok(backend);
    }
    if nft.probe().is_err() {
        // An error about nf_tables says more than one about a command that isn't there.
        return Ok(if command::installed() { Backend::Iptables } else { Backend::Nftables });
    }
    if firewalld::is_running(nft)? {
        return Ok(Backend::Firewalld);
    }
    for family in xtables::FAMILIES {
        let dropping = nft.drops_by_policy(Table::new(family, "filter").chain("FORWARD"))?
            || iptables::legacy_drops_by_policy(family)?;
        if dropping && command::installed() {
            return Ok(Backend::Iptables);
        }
        if dropping {
            log::warn!("FORWARD of iptables drops by policy, but the command iptables-restore is missing");
        }
    }
    Ok(Backend::Nftables)
}

/// Puts everything in place. Idempotent. Takes back what it did if it fails half-way.
///
/// # Errors
/// The kernel's, or what iptables printed.
pub fn add(backend: Backend, nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<Undo, Error> {
    let socket = RefCell::new(nft);
    let rules = |backend: rules::Backend| {
        backend.add(
            "forwarding",
            || nftables::add(&mut socket.borrow_mut(), owner, forward),
            || iptables::add(&mut socket.borrow_mut(), forward),
        )
    };
    let (sources, rules) = match backend {
        Backend::Nftables => (None, Some(rules(rules::Backend::Nftables)?)),
        Backend::Iptables => (None, Some(rules(rules::Backend::Iptables)?)),
        Backend::Firewalld => {
            let made = firewalld::add(&forward.zone, &forward.addrs)?;
            match forward.policed().map(|_| rules(rules::Backend::Nftables)).transpose() {
                Ok(policy) => (Some(made), policy),
                Err(err) => {
                    return Err(match firewalld::revert(&made) {
                        Ok(()) => err,
                        Err(undo) => err.details(format!("and firewalld keeps what was added: {undo}")),
                    });
                }
            }
        }
    };
    Ok(Undo { sources, rules })
}

/// What [`add`] did.
#[derive(Debug)]
pub struct Undo {
    sources: Option<firewalld::Made>,
    rules: Option<Made<iptables::Made>>,
}

impl Undo {
    /// Takes it back. Opens its own socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(self) -> Result<(), Error> {
        let sources = self.sources.map_or(Ok(()), |made| firewalld::revert(&made));
        let rules = self
            .rules
            .map_or(Ok(()), |made| made.revert::<nftables::Part>(&mut Nft::new(), iptables::revert));
        rules.and(sources)
    }
}

/// Removes what accepts the pod's traffic: ours by its owner, and iptables' rules and firewalld's
/// sources, be they ours or the Go plugin's, by the addresses, as they name nobody. firewalld is
/// asked if it is `configured`, or nothing is and it has a table. What is for a bridge stays,
/// since other pods may be on it.
///
/// # Errors
/// What could not be removed. Everything has been tried.
pub fn remove(
    configured: Option<Backend>,
    zone: &str,
    nft: &mut Nft,
    owner: &Owner,
    addrs: &[IpAddr],
) -> Result<(), Error> {
    let mut failures = Failures::default();
    let nf_tables = has_nf_tables(nft, &mut failures);
    let concerned = match configured {
        Some(backend) => backend == Backend::Firewalld,
        None => {
            nf_tables
                && !addrs.is_empty()
                && firewalld::has_table(nft).unwrap_or_else(|err| {
                    failures.note::<Error>(Err(err));
                    false
                })
        }
    };
    if concerned {
        failures.note(firewalld::remove(zone, addrs));
    }
    if nf_tables {
        failures.note(nftables::remove(nft, owner, addrs));
        failures.note(iptables::remove_nf_tables(nft, addrs));
    }
    failures.note(iptables::remove_legacy(addrs));
    failures.outcome()
}

/// Everything is in place, with either backend.
///
/// # Errors
/// Code 103 with what is missing.
pub fn check(
    configured: Option<Backend>,
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> Result<(), Error> {
    let probed = nft.probe();
    let usual = configured.is_none() && probed.is_ok() && firewalld::is_running(nft)?;
    if usual || configured == Some(Backend::Firewalld) {
        let mut missing = firewalld::check(&forward.zone, &forward.addrs)?;
        if missing.is_none() && forward.policed().is_some() {
            missing = nftables::check(nft, owner, forward)?;
        }
        return match missing {
            None => Ok(()),
            Some(missing) => Err(Error::check("rules for forwarding are missing").details(missing)),
        };
    }
    let missing = match probed.and_then(|()| nftables::check(nft, owner, forward)) {
        Ok(None) if configured != Some(Backend::Iptables) => return Ok(()),
        Ok(None) => "nf_tables has them, but not iptables, which is configured".to_owned(),
        Ok(Some(missing)) => missing,
        Err(err) => err.to_string(),
    };
    match iptables::check(forward)? {
        None => Ok(()),
        Some(also) => Err(Error::check("rules for forwarding are missing").details(missing).details(also)),
    }
}

/// Removes the elements of all attachments of `network` that aren't in `valid`, bridges that
/// are `unused`, and in the end all that nobody uses. iptables' rules and firewalld's sources name
/// nobody and stay.
///
/// # Errors
/// What could not be removed. Everything has been tried.
pub fn gc(
    nft: &mut Nft,
    network: &str,
    valid: &[Attachment],
    unused: impl FnMut(&str) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(nftables::gc(nft, network, valid, unused));
    }
    failures.outcome()
}

/// Whether `backend` can be used now.
///
/// # Errors
/// Code 50.
pub fn status(backend: Backend, nft: &mut Nft) -> Result<(), Error> {
    let backend = match backend {
        Backend::Nftables => rules::Backend::Nftables,
        Backend::Iptables => rules::Backend::Iptables,
        Backend::Firewalld => {
            return firewalld::usable()
                .map_err(|err| Error::new(Code::NOT_AVAILABLE, err.msg).details(err.details));
        }
    };
    backend.status(|| nftables::usable(nft), || command::usable("filter", "backend"))
}

/// All elements of pods, for [`super::listing`].
pub(super) fn list(nft: &mut Nft) -> crate::net::Result<Vec<Listed>> {
    nftables::list(nft)
}

/// The policies of bridges, for [`super::listing`].
pub(super) fn policies(nft: &mut Nft) -> crate::net::Result<Vec<(String, Policy)>> {
    nftables::policies(nft)
}
