//! Why the kernel refused: operation, object, errno, and its own words.

use std::fmt;

use nix::errno::Errno;

use cnimble_cni::{self as cni, Code};

/// A failed kernel request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What was asked, with the object: `add veth vethab12cd34`.
    pub what: String,
    /// The kernel's answer.
    pub errno: Errno,
    /// The kernel's explanation (extended ack), or ours; may be empty.
    pub reason: String,
}

impl Error {
    /// An error without explanation.
    pub fn new(what: impl Into<String>, errno: Errno) -> Self {
        Error { what: what.into(), errno, reason: String::new() }
    }

    /// The error of a system call.
    pub fn io(what: impl Into<String>, err: &std::io::Error) -> Self {
        match err.raw_os_error() {
            Some(errno) => Error::new(what, Errno::from_raw(errno)),
            None => Error::new(what, Errno::EIO).reason(err.to_string()),
        }
    }

    /// The same with an explanation.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Whether the kernel answered `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        self.errno == errno
    }

    /// Whether the object just isn't there (ENODEV, ENOENT, ESRCH, EADDRNOTAVAIL).
    pub fn is_missing(&self) -> bool {
        matches!(self.errno, Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno.desc())?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Error> for cni::Error {
    fn from(err: Error) -> Self {
        let code = match err.errno {
            Errno::EINTR => Code::TRY_AGAIN_LATER,
            _ => Code::KERNEL,
        };
        let mut reason = format!("{} ({:?})", err.errno.desc(), err.errno);
        if !err.reason.is_empty() {
            reason = format!("{reason}: {}", err.reason);
        }
        cni::Error::new(code, err.what).details(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_and_why() {
        let plain = Error::new("add veth v0", Errno::EEXIST);
        assert_eq!(plain.to_string(), "add veth v0: File exists");
        let explained = Error::new("set link v0 mtu 10", Errno::EINVAL).reason("mtu too small");
        assert_eq!(explained.to_string(), "set link v0 mtu 10: Invalid argument (mtu too small)");
        let io = Error::io("x", &std::io::Error::other("strange"));
        assert_eq!(io, Error::new("x", Errno::EIO).reason("strange"));
    }

    #[test]
    fn a_signal_means_try_again() {
        let code = |errno| cni::Error::from(Error::new("x", errno)).code;
        assert_eq!(code(Errno::EINTR), Code::TRY_AGAIN_LATER);
        assert_eq!(code(Errno::EEXIST), Code::KERNEL);
    }

    #[test]
    fn what_is_not_there() {
        for errno in [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL] {
            assert!(Error::new("x", errno).is_missing(), "{errno}");
        }
        assert!(!Error::new("x", Errno::EPERM).is_missing());
    }
}
