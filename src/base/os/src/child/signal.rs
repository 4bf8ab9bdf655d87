//! SIGTERM, SIGINT, SIGHUP and SIGXCPU (a limit on processor time) end a verb like any other error: undo, one JSON
//! error.
//!
//! The handler only notes the signal and is installed without SA_RESTART, so that a blocking call returns EINTR;
//! [`check`] turns the note into an error at the next step. SIGXFSZ would kill for a file that grows past a limit. The
//! write fails with EFBIG as well, which is enough. A handler that does nothing, unlike ignoring it, ends with
//! execve(2) of a child.
//!
//! Where the signal has cut short a program or an answer of firewalld, they may be as slow in the undo. So that has an
//! end of its own, [`deadline`]: a verb that is told to stop while others hang is over within a second.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use cnimble_cni::{Code, Error};

/// The time after a signal for the program that it cut short, and for all steps of the undo.
const UNDO: Duration = Duration::from_millis(500);

/// The signals that stop a plugin.
pub(super) const STOPPING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGXCPU];

static RECEIVED: AtomicI32 = AtomicI32::new(0);
static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

extern "C" fn note_signal(signal: i32) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

extern "C" fn pass(_: i32) {}

/// Installs handlers for the signals that stop a plugin.
pub fn install() {
    let noted = STOPPING.map(|signal| (signal, note_signal as extern "C" fn(i32)));
    for (signal, handler) in noted.into_iter().chain([(Signal::SIGXFSZ, pass as extern "C" fn(i32))]) {
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
        // SAFETY: a handler only stores to an atomic, if anything, which is async-signal-safe.
        if let Err(err) = unsafe { sigaction(signal, &action) } {
            log::warn!("can't handle {signal}: {err}");
        }
    }
}

/// Succeeds unless the process was told to stop.
///
/// # Errors
/// Fails with code 11 and the signal's name.
pub fn check() -> Result<(), Error> {
    match RECEIVED.load(Ordering::Relaxed) {
        0 => Ok(()),
        number => {
            let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
            Err(Error::new(Code::TRY_AGAIN_LATER, format!("stopped by {name} before the verb was done")))
        }
    }
}

/// Makes [`check`] succeed again, because undo and cleaning must not be cut short.
pub fn forget() {
    RECEIVED.store(0, Ordering::Relaxed);
}

/// Notes that a signal has cut short what another program does. From now on other programs may work until [`deadline`].
pub fn cut() {
    if let Ok(mut deadline) = DEADLINE.lock() {
        deadline.get_or_insert_with(|| Instant::now() + UNDO);
    }
}

/// Returns the time until which other programs may work. `None` is no limit.
pub fn deadline() -> Option<Instant> {
    DEADLINE.lock().ok().and_then(|deadline| *deadline)
}

/// Returns the error of a step for which no time is left (code 11).
pub fn too_late() -> Error {
    Error::new(Code::TRY_AGAIN_LATER, "no time left after a signal to stop")
}
