//! Closes packet sockets in a thread of their own. close(2) waits until no processor uses the socket (`synchronize_net`
//! in net/packet/af_packet.c), which takes 15 ms on Linux 6.18. The lease daemon has only one thread for all pods.
//!
//! pthread_create(3) makes the thread. `std::thread` has thread-local values, which cost each plugin a page and a
//! system call.

use std::ffi::c_void;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

use nix::sys::signal::{SigSet, SigmaskHow};

/// The pipe to the thread, for the numbers of descriptors. `None` if the thread could not be started.
static CLOSER: OnceLock<Option<PipeWriter>> = OnceLock::new();

/// Closes a socket in the other thread. Closes it at once if there is no such thread.
pub(crate) fn close(socket: OwnedFd) {
    let Some(mut closer) = CLOSER.get_or_init(start).as_ref() else { return };
    let number = socket.into_raw_fd();
    if closer.write_all(&number.to_ne_bytes()).is_err() {
        // SAFETY: the number comes from `into_raw_fd`, and the thread did not receive it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

/// Starts the thread, which lives as long as the process. `None` if that fails.
fn start() -> Option<PipeWriter> {
    let (reader, writer) = pipe().ok()?;
    let reader = Box::into_raw(Box::new(reader));
    // The main thread handles signals. The new thread inherits the blocked set, so it gets none.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let mut thread = std::mem::MaybeUninit::uninit();
    // SAFETY: the thread's number has room, the function has the required type, and its argument lives until the thread
    // takes it.
    let failed = unsafe { libc::pthread_create(thread.as_mut_ptr(), ptr::null(), close_all, reader.cast()) };
    // This cannot fail, because the kernel has just returned this mask.
    let _ = before.thread_set_mask();
    if failed == 0 {
        return Some(writer);
    }
    // SAFETY: no thread was started that could have taken it.
    drop(unsafe { Box::from_raw(reader) });
    None
}

/// Closes the descriptors whose numbers arrive, until the pipe is closed.
extern "C" fn close_all(reader: *mut c_void) -> *mut c_void {
    // SAFETY: `start` has made the pointer from such a box, for this thread alone.
    let mut reader = unsafe { Box::from_raw(reader.cast::<PipeReader>()) };
    let mut number = [0; size_of::<RawFd>()];
    while reader.read_exact(&mut number).is_ok() {
        // SAFETY: `close` has given the descriptor away, and only once.
        drop(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(number)) });
    }
    ptr::null_mut()
}
