//! The choice between two backends: nf_tables in our own table, and the iptables command with the chains of the Go
//! reference plugins.

use cnimble_cni::{Code, Error};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

use super::command;
use super::elements::{self, Changes, Layout};
use super::failures::is_unsupported;

/// The packet filter that gets the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables by netlink, in our own table.
    Nftables,
    /// The iptables command, with the reference's chains.
    Iptables,
    /// nf_tables, or iptables where the kernel's nf_tables can't do it. That shows when it is
    /// told to: trying it out beforehand would cost the first pod more than the rest of its ADD.
    Auto,
}

/// The changes that an ADD made, by backend.
#[derive(Debug)]
pub(super) enum Made<I> {
    Nftables(Box<Changes>),
    Iptables(I),
}

impl<I> Made<I> {
    /// Takes the changes back. `L` is the part of nf_tables.
    ///
    /// # Errors
    /// Fails if the backend fails.
    pub(super) fn revert<L: Layout>(
        &self,
        nft: &mut Nft,
        iptables: impl FnOnce(&mut Nft, &I) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Made::Nftables(changes) => Ok(elements::revert::<L>(nft, changes)?),
            Made::Iptables(made) => iptables(nft, made),
        }
    }
}

/// Why nf_tables didn't do it.
#[derive(Debug)]
pub(super) enum Refused {
    /// The kernel refused the request.
    Kernel(netlink::Error),
    /// Another owner has the place, in whichever backend.
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
    /// Has the backend do it; `what` is for people.
    ///
    /// # Errors
    /// Fails if the backend fails. If iptables was tried for nf_tables and failed as well, both.
    pub(super) fn add<I, E: Into<Refused>>(
        self,
        what: &str,
        nftables: impl FnOnce() -> Result<Changes, E>,
        iptables: impl FnOnce() -> Result<I, Error>,
    ) -> Result<Made<I>, Error> {
        if self == Backend::Iptables {
            return Ok(Made::Iptables(iptables()?));
        }
        match nftables().map_err(Into::into) {
            Ok(changes) => Ok(Made::Nftables(Box::new(changes))),
            Err(Refused::Kernel(err))
                if self == Backend::Auto && is_unsupported(err.errno) && command::installed() =>
            {
                log::info!("{what} with iptables, as nf_tables can't: {err}");
                match iptables() {
                    Ok(made) => Ok(Made::Iptables(made)),
                    Err(second) => Err(Error::from(err).details(format!("and with iptables: {second}"))),
                }
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Whether the backend can be used now.
    ///
    /// # Errors
    /// Fails with code 50 if nf_tables cannot be used.
    pub(super) fn status(
        self,
        nftables: impl FnOnce() -> netlink::Result<()>,
        iptables: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let outcome = match self {
            Backend::Iptables => iptables(),
            Backend::Nftables => nftables().map_err(Error::from),
            Backend::Auto => match nftables() {
                Err(_) if command::installed() => iptables(),
                outcome => outcome.map_err(Error::from),
            },
        };
        outcome.map_err(|err| Error::new(Code::NOT_AVAILABLE, err.msg).details(err.details))
    }
}
