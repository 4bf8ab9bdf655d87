//! The child: its start, and all that it does.

use std::os::fd::RawFd;

use nix::errno::Errno;

/// What a child does. It is made before the fork, because the child allocates nothing.
pub(super) struct Task<'t> {
    /// The descriptors that the child keeps, in ascending order. Those of `request` and `until` are among them.
    pub(super) holds: &'t [RawFd],
    /// The message to send, and the socket to send it by.
    pub(super) request: Option<(RawFd, &'t [u8])>,
    /// The read end of a pipe. The child ends when all write ends are closed.
    pub(super) until: RawFd,
}

/// linux/sched.h, since Linux 7.1: the kernel reaps the child, with any parent.
const CLONE_AUTOREAP: u64 = 1 << 34;

/// `struct clone_args`, as far as Linux 5.3 has it (linux/sched.h).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Starts a child that needs no reaping. Fails with EINVAL before Linux 7.1, and with ENOSYS before 5.3.
pub(super) fn start_autoreaped(task: &Task<'_>) -> Result<(), Errno> {
    let args = CloneArgs { flags: CLONE_AUTOREAP, ..CloneArgs::default() };
    // SAFETY: without CLONE_VM, and with no stack, it is fork(2). The child makes system calls on its own copy of what
    // is there already, and ends.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) } {
        -1 => Err(Errno::last()),
        0 => run(task),
        _ => Ok(()),
    }
}

/// Starts a child that must be reaped by its parent, or by the process that inherits it.
pub(super) fn start(task: &Task<'_>) -> Result<(), Errno> {
    // SAFETY: as above; whatever another thread held is not needed.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => run(task),
        _ => Ok(()),
    }
}

/// Closes all descriptors that are not the task's, leaves the working directory, sends the request, and waits for the
/// end of the plugin. The child ends without sending if it can't close them or can't leave.
fn run(task: &Task<'_>) -> ! {
    let root = c"/";
    // SAFETY: system calls that are safe in a signal handler, on descriptors and memory of its own.
    unsafe {
        if only(task.holds).is_err() || libc::chdir(root.as_ptr()) != 0 {
            libc::_exit(1);
        }
        if let Some((socket, bytes)) = task.request {
            // An error is in the answer, which comes by this socket, too.
            while libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0) < 0 {
                if Errno::last() != Errno::EINTR {
                    libc::_exit(1);
                }
            }
        }
        let mut byte = 0_u8;
        while libc::read(task.until, (&raw mut byte).cast(), 1) < 0 && Errno::last() == Errno::EINTR {}
        libc::_exit(0)
    }
}

/// Closes all descriptors but `holds`, which must be in ascending order.
fn only(holds: &[RawFd]) -> Result<(), Errno> {
    let mut from = 0;
    for hold in holds {
        let hold = hold.cast_unsigned();
        if let Some(to) = hold.checked_sub(1).filter(|to| *to >= from) {
            close_range(from, to)?;
        }
        from = hold.saturating_add(1);
    }
    close_range(from, u32::MAX)
}

/// Closes the descriptors from `from` to `to`, both included (close_range(2), since Linux 5.9).
fn close_range(from: u32, to: u32) -> Result<(), Errno> {
    // SAFETY: the child uses none of them.
    match unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}
