//! Chooses between nf_tables, with our own table, and iptables, with the chains of the Go plugins.

use cnimble_cni::Error;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

use super::command;
use super::failures::{UNSUPPORTED, not_available};
use super::nat;
use super::xtables::Variant;

/// The packet filter that gets the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Our own table of nf_tables.
    Nftables,
    /// The variant of the command `iptables`.
    Iptables,
    /// A certain variant of iptables, because rules of others there exempt packets ([`nat`](super::nat)).
    IptablesIn(Variant),
    /// nf_tables, or iptables if the kernel's nf_tables lacks something. The ADD itself is the trial: one beforehand
    /// would cost more.
    Auto,
}

/// Why a backend did not make the rules.
#[derive(Debug)]
pub(super) enum Refused {
    /// The kernel refused. [`Backend::add`] may try iptables then.
    Kernel(netlink::Error),
    /// Something that no other backend would change, such as a port that belongs to another container.
    Taken(Error),
}

impl From<netlink::Error> for Refused {
    fn from(err: netlink::Error) -> Self {
        Refused::Kernel(err)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Kernel(err) => err.into(),
            Refused::Taken(err) => err,
        }
    }
}

impl Backend {
    /// Returns the variant of iptables that gets the rules, or `None` if nf_tables gets them or is tried first.
    pub(super) fn variant(self) -> Option<Variant> {
        match self {
            Backend::Nftables | Backend::Auto => None,
            Backend::Iptables => Some(Variant::Usual),
            Backend::IptablesIn(variant) => Some(variant),
        }
    }

    /// Returns the backend in which rules of others keep their effect. Only [`Backend::Auto`] leaves a choice. If a
    /// rule of others may exempt some of the traffic, returns the variant of iptables that has it, and the rule. If
    /// that variant's commands are missing, logs a warning and leaves the backend.
    pub(super) fn honouring(
        self,
        nft: &mut Nft,
        traffic: &[nat::Traffic],
    ) -> Result<(Self, Option<nat::Decision>), Error> {
        if self != Backend::Auto {
            return Ok((self, None));
        }
        for traffic in traffic {
            let Some(rule) = nat::exempting(nft, traffic)? else { continue };
            if rule.variant.is_installed() {
                log::info!("iptables gets the rules: {rule} may exempt packets");
                return Ok((Backend::IptablesIn(rule.variant), Some(rule)));
            }
            log::warn!("{rule} exempts no packets of pods: its variant of iptables is not installed");
        }
        Ok((self, None))
    }

    /// Makes the rules by one of the two functions. With [`Backend::Auto`], iptables follows if the kernel's nf_tables
    /// lacks something and iptables is installed. If that fails, too, the error names both. `what` names the rules in
    /// the log.
    pub(super) fn add<T, E: Into<Refused>>(
        self,
        what: &str,
        nft: &mut Nft,
        nftables: impl FnOnce(&mut Nft) -> Result<T, E>,
        iptables: impl FnOnce(&mut Nft) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.variant().is_some() {
            return iptables(nft);
        }
        match nftables(nft).map_err(Into::into) {
            Ok(made) => Ok(made),
            Err(Refused::Kernel(err))
                if self == Backend::Auto && UNSUPPORTED.contains(&err.errno) && command::installed() =>
            {
                log::info!("{what} with iptables, as nf_tables can't: {err}");
                iptables(nft)
                    .map_err(|second| Error::from(err).details(format!("and with iptables: {second}")))
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Fails with code 50 if the backend can't be used. With [`Backend::Auto`] one usable backend is enough.
    pub(super) fn status(
        self,
        nftables: impl FnOnce() -> netlink::Result<()>,
        iptables: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let outcome = match self {
            Backend::Iptables | Backend::IptablesIn(_) => iptables(),
            Backend::Nftables => nftables().map_err(Error::from),
            Backend::Auto => match nftables() {
                Err(_) if command::installed() => iptables(),
                outcome => outcome.map_err(Error::from),
            },
        };
        outcome.map_err(not_available)
    }
}
