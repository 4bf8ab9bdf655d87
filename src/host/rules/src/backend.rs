//! Chooses between nf_tables in our own table and the iptables command with the chains of the Go reference plugins.

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
    Nftables,
    Iptables,
    /// The variant in which rules of others exempt packets ([`nat`](super::nat)).
    IptablesIn(Variant),
    /// nf_tables, or iptables if the kernel's nf_tables can't do it. A trial beforehand would cost more than the ADD.
    Auto,
}

#[derive(Debug)]
pub(super) enum Refused {
    Kernel(netlink::Error),
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
    /// The variant of iptables that gets the rules; `None` for nf_tables in our own table.
    pub(super) fn variant(self) -> Option<Variant> {
        match self {
            Backend::Nftables | Backend::Auto => None,
            Backend::Iptables => Some(Variant::Usual),
            Backend::IptablesIn(variant) => Some(variant),
        }
    }

    /// The backend that honours the rules of others, if there is a choice.
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

    /// Tries the backend; `what` is for people. If iptables fails after nf_tables, the error names both.
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

    /// Fails with code 50 if nf_tables cannot be used.
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
