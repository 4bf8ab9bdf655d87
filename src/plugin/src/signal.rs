//! SIGTERM, SIGINT, SIGHUP and SIGXCPU (a limit on processor time) end a verb like any other error: undo, one JSON error.
//!
//! The handler only notes the signal and is installed without SA_RESTART, so that a
//! blocking call returns EINTR; [`check`] turns the note into an error at the next step.
//!
//! SIGXFSZ would kill for a file that grows past a limit. The write fails with EFBIG as well,
//! which is enough. A handler that does nothing, unlike ignoring it, ends with the program that
//! a child becomes.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use cnimble_cni::{Code, Error};

static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

extern "C" fn pass(_: i32) {}

/// Installs the handlers.
pub(super) fn install() {
    let handlers = [
        (Signal::SIGTERM, note as extern "C" fn(i32)),
        (Signal::SIGINT, note),
        (Signal::SIGHUP, note),
        (Signal::SIGXCPU, note),
        (Signal::SIGXFSZ, pass),
    ];
    for (signal, handler) in handlers {
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
        // SAFETY: a handler only stores to an atomic, if anything, which is async-signal-safe.
        if let Err(err) = unsafe { sigaction(signal, &action) } {
            log::warn!("can't handle {signal}: {err}");
        }
    }
}

/// Whether the process was told to stop.
///
/// # Errors
/// Code 11 with the signal's name.
pub fn check() -> Result<(), Error> {
    match RECEIVED.load(Ordering::Relaxed) {
        0 => Ok(()),
        number => {
            let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
            Err(Error::new(Code::TRY_AGAIN_LATER, format!("stopped by {name} before the verb was done")))
        }
    }
}

/// From now on [`check`] succeeds again: undo and cleaning must not be cut short.
pub(super) fn forget() {
    RECEIVED.store(0, Ordering::Relaxed);
}
