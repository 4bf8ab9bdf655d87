//! The error of a refused kernel request: operation, object, errno, and the kernel's own words.

use std::fmt;

use nix::errno::Errno;

use cnimble_cni::{self as cni, Code};

/// A failed kernel request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The request and its object: `add veth vethab12cd34`.
    pub what: String,
    /// The error number of the kernel.
    pub errno: Errno,
    /// The kernel's explanation (extended ack), or ours; may be empty.
    pub reason: String,
    explained: bool,
    pointed: Option<u32>,
}

impl Error {
    /// Returns an error without an explanation.
    pub fn new(what: impl Into<String>, errno: Errno) -> Self {
        Error { what: what.into(), errno, reason: String::new(), explained: false, pointed: None }
    }

    /// Returns the error of a system call. Without an errno it is EIO, with the text as the reason.
    pub fn io(what: impl Into<String>, err: &std::io::Error) -> Self {
        match err.raw_os_error() {
            Some(errno) => Error::new(what, Errno::from_raw(errno)),
            None => Error::new(what, Errno::EIO).reason(err.to_string()),
        }
    }

    /// Adds an explanation to the error.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Explains the error by a sentence, which replaces the errno's words in texts.
    #[must_use]
    pub(crate) fn explained(self, sentence: impl Into<String>) -> Self {
        Error { explained: true, ..self.reason(sentence) }
    }

    /// Adds the byte of the request that the kernel objects to.
    #[must_use]
    pub(crate) fn pointed(self, pointed: Option<u32>) -> Self {
        Error { pointed, ..self }
    }

    /// Whether the kernel answered with an errno and no explanation.
    pub(crate) fn is_bare(&self) -> bool {
        self.reason.is_empty() && self.pointed.is_none()
    }

    /// Whether the kernel answered `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        self.errno == errno
    }

    /// Whether the object doesn't exist (ENODEV, ENOENT, ESRCH, EADDRNOTAVAIL).
    pub fn is_missing(&self) -> bool {
        MISSING.contains(&self.errno)
    }
}

/// The kernel's errors for an object that doesn't exist.
const MISSING: [Errno; 4] = [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL];

/// Requests about objects that may not exist.
pub trait IfPresent<T> {
    /// Returns `None` if the object doesn't exist ([`Error::is_missing`]).
    ///
    /// # Errors
    /// Fails with any error but that of a missing object.
    fn if_present(self) -> Result<Option<T>, Error>;

    /// Returns the default value in place of one of these errors, for example an empty list if there is nothing to
    /// list.
    ///
    /// # Errors
    /// Fails with any other error.
    fn default_for(self, errnos: &[Errno]) -> Result<T, Error>
    where
        T: Default;
}

impl<T> IfPresent<T> for Result<T, Error> {
    fn if_present(self) -> Result<Option<T>, Error> {
        self.map(Some).default_for(&MISSING)
    }

    fn default_for(self, errnos: &[Errno]) -> Result<T, Error>
    where
        T: Default,
    {
        match self {
            Err(err) if errnos.contains(&err.errno) => Ok(T::default()),
            outcome => outcome,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.explained {
            return write!(f, "{}: {}", self.what, self.reason);
        }
        write!(f, "{}: {}", self.what, self.errno.desc())?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.errno)
    }
}

impl From<Error> for cni::Error {
    fn from(err: Error) -> Self {
        let code = match err.errno {
            Errno::EINTR => Code::TRY_AGAIN_LATER,
            _ => Code::KERNEL,
        };
        let reason = match (err.explained, err.reason.as_str()) {
            (true, sentence) => format!("{sentence} ({:?})", err.errno),
            (false, "") => format!("{} ({:?})", err.errno.desc(), err.errno),
            (false, reason) => format!("{} ({:?}): {reason}", err.errno.desc(), err.errno),
        };
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
    fn a_sentence_replaces_the_words_of_the_errno() {
        let refused = Error::new("ask for nf_tables", Errno::EINVAL);
        assert!(refused.is_bare() && !refused.clone().pointed(Some(20)).is_bare());
        let err = refused.explained("the kernel has no nf_tables");
        assert_eq!(err.to_string(), "ask for nf_tables: the kernel has no nf_tables");
        assert!(err.is(Errno::EINVAL) && !err.is_bare());
        let cni = cni::Error::from(err);
        assert_eq!(cni.details, "the kernel has no nf_tables (EINVAL)");
    }

    #[test]
    fn the_source_is_the_errno() {
        let err = Error::new("x", Errno::EPERM);
        let source = std::error::Error::source(&err).and_then(|source| source.downcast_ref::<Errno>());
        assert_eq!(source, Some(&Errno::EPERM));
    }

    #[test]
    fn a_signal_means_try_again() {
        let code = |errno| cni::Error::from(Error::new("x", errno)).code;
        assert_eq!(code(Errno::EINTR), Code::TRY_AGAIN_LATER);
        assert_eq!(code(Errno::EEXIST), Code::KERNEL);
    }

    #[test]
    fn a_missing_object_is_no_error_where_it_may_be_missing() {
        assert_eq!(Ok::<_, Error>(1).if_present(), Ok(Some(1)));
        assert_eq!(Err::<(), _>(Error::new("x", Errno::ENODEV)).if_present(), Ok(None));
        let refused = Error::new("x", Errno::EPERM);
        assert_eq!(Err::<(), _>(refused.clone()).if_present(), Err(refused));
    }

    #[test]
    fn some_errors_mean_the_default() {
        let outcome =
            |errno| Err::<Vec<u8>, _>(Error::new("x", errno)).default_for(&[Errno::ENOENT, Errno::EBUSY]);
        assert_eq!(outcome(Errno::EBUSY), Ok(Vec::new()));
        assert!(outcome(Errno::EPERM).unwrap_err().is(Errno::EPERM));
        assert_eq!(Ok::<_, Error>(1).default_for(&[]), Ok(1));
    }

    #[test]
    fn what_is_not_there() {
        for errno in [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL] {
            assert!(Error::new("x", errno).is_missing(), "{errno}");
        }
        assert!(!Error::new("x", Errno::EPERM).is_missing());
    }
}
