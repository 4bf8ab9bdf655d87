use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

/// How the kernel refuses what it wasn't built with. ENOENT is for an unknown kind of chain or expression.
pub(super) const UNSUPPORTED: [Errno; 5] =
    [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::ENOENT];

/// Explains an error of a rule in a bridge's table. `need` says what the rule takes.
pub(super) fn explain(err: netlink::Error, key: &str, need: &str) -> Error {
    match err.errno {
        Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT => {
            Error::new(Code::KERNEL, format!("{key}: this kernel has no nf_tables for bridges"))
                .details(err.to_string())
                .details(need)
        }
        _ => err.into(),
    }
}

pub(super) fn not_available(err: Error) -> Error {
    Error::new(Code::NOT_AVAILABLE, err.msg).details(err.details)
}

/// Whether there can be anything in nf_tables: a kernel without it has nothing to remove.
pub(super) fn has_nf_tables(nft: &mut Nft, failures: &mut Failures) -> bool {
    failures.value(nft.is_supported()).unwrap_or(false)
}

/// The first failure is reported, with the others as details.
#[derive(Default)]
pub(super) struct Failures(Option<Error>);

impl Failures {
    pub(super) fn note<E: Into<Error>>(&mut self, outcome: Result<(), E>) {
        if let Err(err) = outcome {
            let err = err.into();
            self.0 = Some(match self.0.take() {
                None => err,
                Some(first) => first.details(err.to_string()),
            });
        }
    }

    pub(super) fn value<T, E: Into<Error>>(&mut self, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(err) => {
                self.note::<Error>(Err(err.into()));
                None
            }
        }
    }

    pub(super) fn outcome(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
