//! Explains errors of the kernel, and collects the failures of steps that are all tried.

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::Nft;

/// The kernel's errors for what it wasn't built with. ENOENT stands for an unknown kind of chain or expression.
pub(super) const UNSUPPORTED: [Errno; 5] =
    [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::ENOENT];

/// Explains the kernel's error for a rule in a table of bridges. `key` is the key of the configuration, and `need` says
/// what the rule needs. The error has code 100 if the kernel has no such tables. Any other error stays as it is.
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

/// Returns the same error with code 50, for STATUS.
pub(super) fn not_available(err: Error) -> Error {
    Error::new(Code::NOT_AVAILABLE, err.msg).details(err.details)
}

/// Returns whether nf_tables may have something to remove. False on a kernel without it, and if the question fails,
/// which is noted.
pub(super) fn has_nf_tables(nft: &mut Nft, failures: &mut Failures) -> bool {
    failures.value(nft.is_supported()).unwrap_or(false)
}

/// Collects the failures of steps that are all tried. The first one is reported, with the others as its details.
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

    /// Returns the value, or `None` for a failure, which is noted.
    pub(super) fn value<T, E: Into<Error>>(&mut self, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(err) => {
                self.note::<Error>(Err(err.into()));
                None
            }
        }
    }

    /// Returns the noted failures, if there are any.
    pub(super) fn outcome(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
