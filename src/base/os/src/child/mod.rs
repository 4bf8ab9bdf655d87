//! Other programs that a plugin runs, delegates and iptables, and the signals that end both.
//!
//! [`run`] talks to a program on all of its pipes at once, without a thread. The program may answer before it has read
//! everything, or never read at all. When a signal tells the plugin to stop, the program gets SIGTERM, so that it can
//! undo its work. [`GRACE`] later it gets SIGKILL and is reaped. Programs that run after that, to undo, have until
//! [`signal::deadline`]. A program stays in the plugin's process group, so a kill of the group includes it.

mod pipes;
pub mod signal;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;

use cnimble_cni::Error;
use pipes::Pipes;

/// The time between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_millis(200);
/// The time for which a pipe is read after the program has exited, if another process keeps it open.
const DRAIN: Duration = Duration::from_secs(1);

/// How much a program may print.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// More bytes than this on stdout are a failure.
    pub stdout: usize,
    /// The number of bytes of stderr that are kept, the first ones. With `None` the child has our own stderr.
    pub stderr: Option<usize>,
}

/// The output of a program that ended by itself.
#[derive(Debug)]
pub struct Output {
    /// The exit status.
    pub status: ExitStatus,
    /// The bytes on stdout.
    pub stdout: Vec<u8>,
    /// The bytes on stderr. Empty if the program inherited stderr.
    pub stderr: Vec<u8>,
}

/// Why there is no [`Output`]. The program has ended in any case, and is reaped.
#[derive(Debug)]
pub enum Failure {
    /// The program can't be started.
    Start(io::Error),
    /// The program can't be talked to or waited for.
    Talk(io::Error),
    /// The program printed more than this many bytes.
    TooMuch(usize),
    /// A signal came first, or the time after one is over.
    Stopped(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Start(err) => write!(f, "it can't be started: {err}"),
            Failure::Talk(err) => write!(f, "it can't be talked to: {err}"),
            Failure::TooMuch(limit) => write!(f, "more than {limit} bytes on stdout"),
            Failure::Stopped(err) => err.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs `command` with `input` on stdin to its end. An exit status other than 0 is no error.
///
/// # Errors
/// See [`Failure`].
pub fn run(command: &mut Command, input: &[u8], limits: Limits) -> Result<Output, Failure> {
    // A program would have to be stopped as soon as it is started.
    stop_now(signal::deadline()).map_err(Failure::Stopped)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if limits.stderr.is_some() {
        command.stderr(Stdio::piped());
    }
    let child = command.spawn().map_err(Failure::Start)?;
    let mut running = Running::new(child);
    let mut pipes = Pipes::new(&mut running.child, input, limits).map_err(Failure::Talk)?;
    let status = match converse(&mut running, &mut pipes) {
        Ok(()) => running.child.wait().map_err(Failure::Talk)?,
        Err(failure) => {
            // It may be waiting for us to read on.
            drop(pipes);
            let stopped = matches!(failure, Failure::Stopped(_));
            if stopped {
                signal::cut();
            }
            running.end(stopped);
            return Err(failure);
        }
    };
    let (stdout, stderr) = pipes.kept();
    Ok(Output { status, stdout, stderr })
}

/// Fails with code 11 if a termination signal has come, or if the time after one is over.
fn stop_now(deadline: Option<Instant>) -> Result<(), Error> {
    signal::check()?;
    match deadline {
        Some(end) if end <= Instant::now() => Err(signal::too_late()),
        _ => Ok(()),
    }
}

/// Talks until the program has exited and its pipes are at their end.
fn converse(running: &mut Running, pipes: &mut Pipes<'_>) -> Result<(), Failure> {
    // Signals come while `ppoll` waits, and only then: none is missed between asking and waiting.
    let outside = Blocked::new().map_err(Failure::Talk)?;
    let deadline = signal::deadline();
    let mut drained: Option<Instant> = None;
    loop {
        stop_now(deadline).map_err(Failure::Stopped)?;
        pipes.talk()?;
        if drained.is_none() && running.has_exited()? {
            drained = Some(Instant::now() + DRAIN);
        }
        if let Some(end) = drained
            && (pipes.are_done() || end <= Instant::now())
        {
            return Ok(());
        }
        // Without a descriptor of the process, the end of its pipes is taken for its end.
        if running.pidfd.is_none() && pipes.are_done() {
            return Ok(());
        }
        let mut waited = pipes.waited();
        if let Some(pidfd) = running.pidfd.as_ref().filter(|_| drained.is_none()) {
            waited.push(PollFd::new(pidfd.as_fd(), PollFlags::POLLIN));
        }
        let end = deadline.into_iter().chain(drained).min();
        let timeout = end.map(|end| TimeSpec::from(end.saturating_duration_since(Instant::now())));
        match ppoll(&mut waited, timeout, Some(outside.mask)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Talk(errno.into())),
        }
    }
}

/// A program that has not been reaped yet.
struct Running {
    child: Child,
    /// A descriptor of the process. `None` if a sandbox refuses one.
    pidfd: Option<OwnedFd>,
}

impl Running {
    fn new(child: Child) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let no_flags = rustix::process::PidfdFlags::empty();
        let pidfd = pid.and_then(|pid| match rustix::process::pidfd_open(pid, no_flags) {
            Ok(pidfd) => Some(pidfd),
            Err(err) => {
                log::debug!("no descriptor of process {}: {err}", child.id());
                None
            }
        });
        Running { child, pidfd }
    }

    fn has_exited(&mut self) -> Result<bool, Failure> {
        self.child.try_wait().map(|status| status.is_some()).map_err(Failure::Talk)
    }

    /// Kills the program and reaps it. With `in_order` it first gets SIGTERM and [`GRACE`] to take something back.
    fn end(&mut self, in_order: bool) {
        if in_order && let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let end = Instant::now() + GRACE;
            while matches!(self.has_exited(), Ok(false)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // Does nothing to one that has been reaped.
        let _ = self.child.kill();
        if let Err(err) = self.child.wait() {
            log::warn!("can't reap process {}: {err}", self.child.id());
        }
    }
}

/// Holds back the signals that tell us to stop, until it is dropped.
struct Blocked {
    mask: SigSet,
}

impl Blocked {
    fn new() -> io::Result<Self> {
        let signals: SigSet = signal::STOPPING.into_iter().collect();
        Ok(Blocked { mask: signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)? })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Err(err) = self.mask.thread_set_mask() {
            log::warn!("can't let signals through again: {err}");
        }
    }
}
