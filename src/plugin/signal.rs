//! SIGTERM, SIGINT and SIGHUP end a verb like any other error: undo, one JSON error.
//!
//! The handler only notes the signal and is installed without SA_RESTART, so that a
//! blocking call returns EINTR; [`check`] turns the note into an error at the next step.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::spec::{Code, Error};

static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

/// Installs the handlers.
pub(super) fn install() {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
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
