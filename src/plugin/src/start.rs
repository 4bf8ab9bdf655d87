//! What a plugin needs of the standard library's start, which it skips (see the package
//! cnimble-plugins): three open descriptors, and no death by SIGPIPE.

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigHandler, Signal, signal};

/// To be called first.
pub(super) fn prepare() {
    // A caller may have closed one. The next file that is opened would get its number, and an
    // answer meant for stdout would be written into a lease.
    fill(std::io::stdin());
    fill(std::io::stdout());
    fill(std::io::stderr());
    // Nobody reads our answer, or a delegate doesn't read its configuration: an error like
    // any other, and an ADD has to be taken back.
    // SAFETY: no handler is installed, so none can do anything unsafe.
    if let Err(err) = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) } {
        log::warn!("can't ignore SIGPIPE: {err}");
    }
}

/// Opens /dev/null in place of a closed descriptor: a new one has the lowest free number, and
/// those below are open by now.
fn fill(descriptor: impl AsFd) {
    if fcntl(descriptor, FcntlArg::F_GETFD) == Err(Errno::EBADF)
        && let Ok(null) = File::options().read(true).write(true).open("/dev/null")
    {
        // For the rest of the process's life.
        std::mem::forget(null);
    }
}
