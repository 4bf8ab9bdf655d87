//! Lets a child wait for the kernel, where the child cannot become a zombie.
//!
//! The removal of a link is announced after a millisecond, but its request returns 15 to 25 ms later, after the
//! kernel's grace periods. So does the close of a NETLINK_NETFILTER socket after a deletion of nf_tables objects. A
//! plugin has nothing else to do then, and its caller waits for its end.
//!
//! So a child sends the request, and holds copies of these sockets until the plugin has ended: the child's are the
//! last, and wait for the kernel. It keeps no other descriptor and no directory, makes a handful of system calls, and
//! allocates nothing.
//!
//! The child outlives the plugin, which can't reap it. There is one only where it needs no reaping (CLONE_AUTOREAP,
//! Linux 7.1), or where process 1 is known to reap (`reaper`). Otherwise the plugin waits itself.
//!
//! It is for a process that is about to end: [`allow`] says so.

mod child;
mod reaper;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

/// The environment variable by which a user decides. With `1` there is never a child. With `0` process 1 is taken to
/// reap, and isn't looked at.
const SETTING: &str = "CNIMBLE_DEL_WAIT";

/// [`allow`] was called, and the user has nothing against it.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// The way that was found. It holds until the process ends.
static WAY: OnceLock<WaitMode> = OnceLock::new();
static HELD: Mutex<OpenSockets> =
    Mutex::new(OpenSockets { sockets: Vec::new(), by_a_child: 0, pipes: Vec::new() });

/// The sockets that stay open until the process ends.
struct OpenSockets {
    sockets: Vec<OwnedFd>,
    /// The number of sockets at the front of the list that a child holds, too.
    by_a_child: usize,
    /// The write ends of pipes. They close when the plugin ends, which the children see in the read ends.
    pipes: Vec<OwnedFd>,
}

/// How the kernel is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitMode {
    /// There can be no child, so the plugin waits.
    Ourselves,
    /// A child that the kernel reaps (CLONE_AUTOREAP).
    Autoreaped,
    /// A child that process 1 reaps.
    Reaped,
}

/// Tells that the process is about to end. From now on a child may wait in its place, unless CNIMBLE_DEL_WAIT is `1`.
pub fn allow() {
    ALLOWED.store(setting() != Some(true), Ordering::Relaxed);
}

/// Returns true if and only if a child may wait, as far as is known.
pub(crate) fn is_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed) && WAY.get() != Some(&WaitMode::Ourselves)
}

/// Keeps a copy of `socket` open until the process ends, so that a child can be the last to close it. It does nothing
/// if no child may wait. If the copy fails, closing `socket` waits as it would without a child.
pub(crate) fn keep_socket_open(socket: BorrowedFd<'_>) {
    if is_allowed() {
        // Without a copy, it is closed as it would be.
        held().sockets.extend(socket.try_clone_to_owned());
    }
}

/// Starts a child for those kept sockets that no child holds yet. This must be called last: a socket that is kept later
/// would make the end of the process wait.
pub fn finish() {
    if is_allowed() && has_unheld() {
        drop(start(None));
    }
}

/// Returns whether a socket is kept that no child holds.
fn has_unheld() -> bool {
    let held = held();
    held.sockets.len() > held.by_a_child
}

/// Starts a child that sends the request by the socket, and holds the kept sockets until the plugin ends. Returns
/// `None` if there can't be one. Then the request has not been sent.
pub(crate) fn start(request: Option<(BorrowedFd<'_>, &[u8])>) -> Option<Waiter> {
    if !is_allowed() {
        return None;
    }
    let (theirs, ours) = pipe2(OFlag::O_CLOEXEC).ok()?;
    let mut held = held();
    let mut holds: Vec<RawFd> = held.sockets.iter().map(AsRawFd::as_raw_fd).collect();
    holds.extend(request.map(|(socket, _)| socket.as_raw_fd()));
    holds.push(theirs.as_raw_fd());
    holds.sort_unstable();
    let request = request.map(|(socket, bytes)| (socket.as_raw_fd(), bytes));
    let task = child::Task { holds: &holds, request, until: theirs.as_raw_fd() };
    if let Err(errno) = start_by_the_way(&task) {
        if errno != Errno::ECHILD {
            log::info!("no child waits for the kernel: {}", errno.desc());
        }
        return None;
    }
    held.by_a_child = held.sockets.len();
    Some(Waiter { pipe: Some(ours) })
}

/// Starts a child in the way that was found, or finds a way first. Fails with ECHILD if none is possible.
fn start_by_the_way(task: &child::Task<'_>) -> Result<(), Errno> {
    let errno = match WAY.get() {
        Some(WaitMode::Ourselves) => return Err(Errno::ECHILD),
        Some(WaitMode::Autoreaped) => return child::start_autoreaped(task),
        Some(WaitMode::Reaped) => return child::start(task),
        None => match child::start_autoreaped(task) {
            Ok(()) => {
                note_way(WaitMode::Autoreaped, "it needs no reaping");
                return Ok(());
            }
            Err(errno) => errno,
        },
    };
    // There can be no process at all, or no memory. That says nothing about the way, so the next call tries again.
    if matches!(errno, Errno::EAGAIN | Errno::ENOMEM) {
        return Err(errno);
    }
    if setting() == Some(false) {
        note_way(WaitMode::Reaped, "CNIMBLE_DEL_WAIT says that process 1 reaps");
    } else {
        match reaper::reaps() {
            Ok(()) => note_way(WaitMode::Reaped, "process 1 reaps"),
            Err(why) => {
                note_way(WaitMode::Ourselves, why);
                return Err(Errno::ECHILD);
            }
        }
    }
    child::start(task)
}

/// Logs the way and the reason for it, and remembers it.
fn note_way(way: WaitMode, why: &str) {
    log::info!(
        "removals are waited for by {}: {why}",
        if way == WaitMode::Ourselves { "us" } else { "a child" }
    );
    let _ = WAY.set(way);
}

/// Returns whether CNIMBLE_DEL_WAIT is `1`: `Some(true)` for `1`, `Some(false)` for `0`. `None` is for anything else.
fn setting() -> Option<bool> {
    match std::env::var_os(SETTING)?.to_str()? {
        "1" => Some(true),
        "0" => Some(false),
        "" => None,
        other => {
            log::warn!("{SETTING}={other} is neither 0 nor 1; ignored");
            None
        }
    }
}

fn held() -> MutexGuard<'static, OpenSockets> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plugin's end of a child. Dropping it does not end the child, which lives until the plugin ends.
pub(crate) struct Waiter {
    /// The write end of the pipe that the child reads. poll(2) reports an error for it when the child has ended.
    pipe: Option<OwnedFd>,
}

/// The event for which [`Waiter::wait`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is something to read from the socket.
    Readable,
    /// The child has ended before the plugin. It may not have sent the request.
    Ended,
    /// Neither has happened in time.
    Late,
}

impl Waiter {
    /// Waits until there is something to read from `socket`, or the child has ended, but not longer than until `end`.
    /// It looks at the socket first.
    pub(crate) fn wait(&self, socket: BorrowedFd<'_>, end: Instant) -> Result<Event, Errno> {
        loop {
            let time = end.saturating_duration_since(Instant::now());
            let mut waited = vec![PollFd::new(socket, PollFlags::POLLIN)];
            let pipe = self.pipe.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::empty()));
            waited.extend(pipe);
            // Rounded up: 0 would not wait.
            let timeout = PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut waited, timeout) {
                Ok(0) if time.is_zero() => return Ok(Event::Late),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) if waited.first().and_then(PollFd::any) == Some(true) => return Ok(Event::Readable),
                Ok(_) => return Ok(Event::Ended),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        held().pipes.extend(self.pipe.take());
    }
}
