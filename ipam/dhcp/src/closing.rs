//! Closes packet sockets behind the back of who has used them.
//!
//! Who closes a packet socket waits until no processor can be at it any more (`synchronize_net` in
//! net/packet/af_packet.c), 15 ms on Linux 6.18. The keeper has one thread for all pods: another one waits.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow};

/// Bytes; it calls close(2), and nothing else.
const STACK: usize = 64 << 10;

/// The thread that closes, if there could be one.
static CLOSER: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();

/// Closes the socket soon, or at once if there can be no thread.
pub(crate) fn close(socket: OwnedFd) {
    if let Some(closer) = CLOSER.get_or_init(start) {
        // What can't be sent comes back in the error, and is closed here.
        let _ = closer.send(socket);
    }
}

fn start() -> Option<Sender<OwnedFd>> {
    let (sender, receiver) = channel();
    // Signals are for the thread that waits for them: the new one inherits what is blocked.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let started = thread::Builder::new().stack_size(STACK).spawn(|| close_all(receiver));
    // The mask is one that the kernel has just told.
    let _ = before.thread_set_mask();
    started.ok().map(|_| sender)
}

fn close_all(sockets: Receiver<OwnedFd>) {
    sockets.into_iter().for_each(drop);
}
