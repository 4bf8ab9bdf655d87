//! Processes that go on by one system call at a time, in an order that the test chooses.
//!
//! Between two calls a process changes nothing but its own memory. So what several processes can do to each other
//! is told by the order of their calls, and a test that has all orders has seen everything.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::machine::entered;
use super::names::name;
use super::{begin, go_on};

/// A process that stands before one of its calls that concern others, or waits for a lock, or has ended.
///
/// The thread that started it must be the one that leads it on: ptrace(2) knows threads. Its children are not led.
#[derive(Debug)]
pub struct Stepped {
    child: Child,
    pid: Pid,
    places: Places,
    /// It has come to the first of them.
    arrived: bool,
    state: State,
    /// The call that it stands before.
    call: String,
}

/// The calls that a process is led to.
#[derive(Debug, Clone)]
pub enum Places {
    /// Those about files, from the first about one in this directory on.
    Files(PathBuf),
    /// Those, and what is told to the kernel by netlink, from the reading of stdin on.
    Messages,
}

/// The next step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It stands before a call.
    Ready,
    /// It waits for flock(2).
    Blocked,
    /// It has come to its end.
    Ended(ExitStatus),
}

/// The calls that tell a process something of others' files, or others something of its own. Calls that concern
/// the process itself (memory, signals, closing) are no place to stop.
const SHARED: &[&str] = &[
    "open",
    "openat",
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "statx",
    "getdents64",
    "getdents",
    "read",
    "write",
    "pread64",
    "pwrite64",
    "flock",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
    "utimensat",
    "fsetxattr",
    "fgetxattr",
    "fchmod",
    "ftruncate",
];

/// Calls that send a message to the kernel.
const MESSAGES: &[&str] = &["sendto", "sendmsg"];

impl Stepped {
    /// Starts `command` and leads it to the first of its places.
    ///
    /// # Panics
    /// If it can't be started or traced.
    pub fn start(command: &mut Command, stdin: &[u8], places: Places) -> Self {
        let (child, pid) = begin(command, stdin);
        match waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => panic!("not stopped at its start: {other:?}"),
        }
        ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).unwrap();
        let mut new =
            Stepped { child, pid, places, arrived: false, state: State::Ready, call: String::new() };
        new.step();
        new
    }

    /// Lets it make its call, and leads it to the next. Where it waits for a lock, or has ended, nothing happens.
    pub fn step(&mut self) -> State {
        if self.state == State::Ready {
            go_on(self.pid, None);
            self.state = self.follow();
        }
        self.state
    }

    /// Its state now. A blocked process may have got its lock.
    pub fn look(&mut self) -> State {
        if self.state == State::Blocked {
            self.state = self.follow();
        }
        self.state
    }

    /// Kills it before the call that it stands before.
    pub fn kill(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        while !matches!(self.state, State::Ended(_)) {
            self.state = self.follow();
        }
    }

    /// The call that it stands before, or waits in.
    pub fn call(&self) -> &str {
        &self.call
    }

    /// Its output. Kills it if it has not ended.
    pub fn finish(mut self) -> Output {
        self.kill();
        let State::Ended(status) = self.state else { unreachable!() };
        let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
        self.child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
        output
    }

    fn follow(&mut self) -> State {
        loop {
            // Nothing but flock(2) waits for another process here.
            let may_wait = self.call == "flock";
            let flags =
                if may_wait { WaitPidFlag::__WALL | WaitPidFlag::WNOHANG } else { WaitPidFlag::__WALL };
            match waitpid(self.pid, Some(flags)) {
                Ok(WaitStatus::StillAlive) if self.sleeps() => return State::Blocked,
                Ok(WaitStatus::StillAlive) => std::thread::yield_now(),
                Ok(WaitStatus::Exited(_, code)) => return State::Ended(ExitStatus::from_raw(code << 8)),
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    return State::Ended(ExitStatus::from_raw(signal as i32));
                }
                Ok(WaitStatus::PtraceSyscall(_)) => {
                    self.call.clear();
                    if let Some((number, args)) = entered(self.pid)
                        && self.is_shared(&name(number), &args)
                    {
                        self.call = name(number);
                        return State::Ready;
                    }
                    go_on(self.pid, None);
                }
                Ok(WaitStatus::Stopped(_, signal)) => {
                    go_on(self.pid, (signal != Signal::SIGTRAP).then_some(signal));
                }
                Ok(_) => go_on(self.pid, None),
                Err(Errno::EINTR) => {}
                Err(err) => panic!("waitpid: {err}"),
            }
        }
    }

    fn is_shared(&mut self, name: &str, args: &[u64; 6]) -> bool {
        let is_message = matches!(self.places, Places::Messages) && MESSAGES.contains(&name);
        if !is_message && !SHARED.contains(&name) {
            return false;
        }
        self.arrived |= match &self.places {
            Places::Files(within) => {
                let at =
                    if name.ends_with("at") && name != "stat" || name == "statx" { args[1] } else { args[0] };
                let takes_a_path = !matches!(name, "read" | "write" | "fstat" | "getdents64" | "flock");
                takes_a_path && self.text(at).starts_with(within)
            }
            Places::Messages => name == "read" && args[0] == 0,
        };
        self.arrived
    }

    /// The path at this address of its memory.
    fn text(&self, at: u64) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let mut bytes = [0; 512];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid));
        let length = memory.and_then(|memory| memory.read_at(&mut bytes, at)).unwrap_or(0);
        let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
        std::ffi::OsStr::from_bytes(text).into()
    }

    /// Whether it sleeps in its call. A process that is stopped by ptrace(2) doesn't (`t`), nor one that has just been
    /// woken (`R`): the kernel says so before the call that has woken it returns.
    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.kill();
    }
}
