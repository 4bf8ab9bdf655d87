//! A plugin under the hands of ptrace(2): killed before its n-th system call, or told that one
//! has failed.
//!
//! strace can do both, but takes longer to start than a plugin takes to run, and can't count
//! "the n-th, whichever it is".

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::LIMIT;

mod machine;
mod names;
mod steps;

use machine::{answer, entered, replace, returned};
pub use names::name;
pub use steps::{Places, State, Stepped};

/// The fate of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Nothing; its calls are listed.
    Watched,
    /// It is killed, with all that it has started, when it is about to make call number `n`
    /// (from 0): everything before has happened, this call has not.
    KilledAt(usize),
    /// Only the process that is about to make call number `n` is killed: the plugin or its child.
    KilledAloneAt(usize),
    /// The `nth` call (from 0) of this number isn't made, and returns this error.
    Told {
        /// The system call's number.
        call: u64,
        /// The number of the call, from 0.
        nth: usize,
        /// The error that it returns.
        error: Errno,
    },
    /// The `nth` answer (from 0) of the kind NLMSG_ERROR is lost. The call that reads it returns ENOBUFS, as without memory
    /// in the kernel (netlink_ack() in af_netlink.c).
    Unanswered {
        /// The number of the call, from 0.
        nth: usize,
    },
    /// The `nth` allocation (from 1) that the kernel makes for the plugin itself fails, its start left out. Where the kernel
    /// has CONFIG_FAULT_INJECTION only (`/proc/PID/fail-nth`).
    Starved {
        /// The number of the call, from 0.
        nth: u32,
    },
}

/// A system call, at its entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syscall {
    /// Its number on this machine.
    pub number: u64,
    /// The arguments of the call.
    pub args: [u64; 6],
    /// How many of its number came before.
    pub nth: usize,
    /// Whether a child of the plugin makes it.
    pub by_child: bool,
}

/// The outcome of a traced process.
#[derive(Debug)]
pub struct Traced {
    /// Exit status and output.
    pub output: Output,
    /// The calls, until its end.
    pub calls: Vec<Syscall>,
    /// Whether the fate has come over it; otherwise it made fewer calls.
    pub met: bool,
    /// Of [`Fate::Starved`]: how many allocations were left until it would have come.
    pub unmet: u32,
    /// Of the same: the call that it came in, or right behind.
    pub starved: Option<Syscall>,
    /// For [`Fate::Unanswered`]: how many answers of that kind it has read.
    pub answers: usize,
    /// /proc/PID/status of the plugin when it was about to end; empty if it was killed.
    pub status: String,
    /// It took too long, and was killed for that.
    pub hung: bool,
}

/// Why system calls can't be watched here, if they can't.
pub fn untraceable() -> Option<String> {
    if !machine::IS_KNOWN {
        return Some("system calls are watched on x86_64 with the GNU C library and on aarch64 only".into());
    }
    let traced = std::panic::catch_unwind(|| run(&mut Command::new("true"), b"", &Fate::Watched, LIMIT));
    traced.is_err().then(|| "ptrace is not allowed here".to_owned())
}

/// Runs `command` to the end that `fate` has for it, which comes after `limit` at the latest.
///
/// # Panics
/// If the process can't be started or traced.
pub fn run(command: &mut Command, stdin: &[u8], fate: &Fate, limit: Duration) -> Traced {
    // A thread of its own has no other children that could be mixed up with this one.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| trace(command, stdin, fate, limit));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Starts a process that stands before its first instruction, for this thread to trace.
#[allow(clippy::zombie_processes)] // the tracer waits for it
fn begin(command: &mut Command, stdin: &[u8]) -> (Child, Pid) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: ptrace(2) is a plain system call, safe between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(ptrace::traceme()?));
    }
    let mut child = command.spawn().unwrap_or_else(|err| panic!("starting {command:?}: {err}"));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    // The pipe holds a configuration.
    let mut pipe = child.stdin.take().unwrap();
    assert!(stdin.len() < 60_000, "more than fits into a pipe");
    pipe.write_all(stdin).unwrap();
    drop(pipe);
    (child, pid)
}

fn trace(command: &mut Command, stdin: &[u8], fate: &Fate, limit: Duration) -> Traced {
    let (mut child, pid) = begin(command, stdin);
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            let _ = kill(pid, Signal::SIGKILL);
        }
        late
    });
    let mut tracer = Tracer::new(fate, pid);
    let status = tracer.follow();
    let _ = done.send(());
    let hung = watchdog.join().unwrap();
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
    let Tracer { calls, met, unmet, starved, answers, proc_status: status, .. } = tracer;
    Traced { output, calls, met, unmet, starved, answers, status, hung }
}

struct Tracer<'f> {
    fate: &'f Fate,
    main: Pid,
    calls: Vec<Syscall>,
    counts: BTreeMap<u64, usize>,
    met: bool,
    unmet: u32,
    starved: Option<Syscall>,
    answers: usize,
    proc_status: String,
}

impl<'f> Tracer<'f> {
    fn new(fate: &'f Fate, main: Pid) -> Self {
        Tracer {
            fate,
            main,
            calls: Vec::new(),
            counts: BTreeMap::new(),
            met: false,
            unmet: 0,
            starved: None,
            answers: 0,
            proc_status: String::new(),
        }
    }

    /// Until the plugin and all its children have ended; how the plugin did.
    fn follow(&mut self) -> ExitStatus {
        use std::os::unix::process::ExitStatusExt;
        let mut end = None;
        let mut living = BTreeSet::from([self.main]);
        // Whose call has been suppressed, and is to return an error.
        let mut failing = None;
        match waitpid(self.main, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => panic!("not stopped at its start: {other:?}"),
        }
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_EXITKILL
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC;
        ptrace::setoptions(self.main, options).unwrap();
        if let Fate::Starved { nth } = self.fate {
            std::fs::write(fail_nth(self.main), nth.to_string()).unwrap();
        }
        go_on(self.main, None);
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            let pid = match waitpid(Pid::from_raw(-1), Some(flags)) {
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => continue,
                Err(err) => panic!("waitpid: {err}"),
                Ok(WaitStatus::Exited(pid, code)) => {
                    living.remove(&pid);
                    if pid == self.main {
                        end = Some(ExitStatus::from_raw(code << 8));
                    }
                    continue;
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    living.remove(&pid);
                    if pid == self.main {
                        end = Some(ExitStatus::from_raw(signal as i32));
                    }
                    continue;
                }
                Ok(WaitStatus::PtraceSyscall(pid)) => pid,
                Ok(WaitStatus::PtraceEvent(pid, _, _)) => {
                    go_on(pid, None);
                    continue;
                }
                Ok(WaitStatus::Stopped(pid, signal)) => {
                    // A new child stops before it does anything.
                    let new = living.insert(pid) && signal == Signal::SIGSTOP;
                    go_on(pid, (!new && signal != Signal::SIGTRAP).then_some(signal));
                    continue;
                }
                Ok(_) => continue,
            };
            living.insert(pid);
            if matches!(self.fate, Fate::Starved { .. }) && pid == self.main && !self.met {
                self.unmet = unmet(pid).unwrap_or(self.unmet);
                self.met = self.unmet == 0;
                self.starved = self.calls.last().filter(|_| self.met).cloned();
            }
            // It may have been killed by now, by the watchdog or by us.
            match entered(pid) {
                Some(call) => {
                    let call = self.note(pid, call);
                    match self.fate {
                        Fate::KilledAt(n) if self.calls.len() == n + 1 => {
                            self.met = true;
                            for pid in &living {
                                let _ = kill(*pid, Signal::SIGKILL);
                            }
                            continue;
                        }
                        Fate::KilledAloneAt(n) if self.calls.len() == n + 1 => {
                            self.met = true;
                            let _ = kill(pid, Signal::SIGKILL);
                            continue;
                        }
                        Fate::Told { call: number, nth, .. }
                            if call.number == *number && call.nth == *nth =>
                        {
                            self.met = true;
                            failing = Some(pid);
                            replace(pid, -1);
                        }
                        _ => {}
                    }
                }
                None if failing == Some(pid) => {
                    failing = None;
                    if let Fate::Told { error, .. } = self.fate {
                        answer(pid, *error);
                    }
                }
                None => self.hear(pid),
            }
            go_on(pid, None);
        }
        end.unwrap_or_default()
    }

    /// A call has returned: counts it if it has read how a request went.
    fn hear(&mut self, pid: Pid) {
        let Fate::Unanswered { nth } = self.fate else { return };
        let Some(call) = self.calls.iter().rfind(|call| call.by_child == (pid != self.main)) else { return };
        if call.name() != "recvfrom" || !says_how_it_went(pid, call.args[1]) {
            return;
        }
        if self.answers == *nth {
            self.met = true;
            answer(pid, Errno::ENOBUFS);
        }
        self.answers += 1;
    }

    fn note(&mut self, pid: Pid, (number, args): (u64, [u64; 6])) -> Syscall {
        let count = self.counts.entry(number).or_default();
        let call = Syscall { number, args, nth: *count, by_child: pid != self.main };
        if number == libc::SYS_exit_group.cast_unsigned() && !call.by_child {
            self.proc_status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        }
        *count += 1;
        self.calls.push(call.clone());
        call
    }
}

/// Returns true if and only if the call has brought a message of the kind NLMSG_ERROR to this address of the process.
fn says_how_it_went(pid: Pid, at: u64) -> bool {
    let brought = returned(pid).is_some_and(|length| length >= 16);
    // struct nlmsghdr: the length, and the kind in two bytes behind it.
    let header = ptrace::read(pid, at as ptrace::AddressType).unwrap_or_default();
    brought && header.to_ne_bytes()[4..6] == (libc::NLMSG_ERROR as u16).to_ne_bytes()
}

fn fail_nth(pid: Pid) -> String {
    format!("/proc/{pid}/fail-nth")
}

/// After how many allocations more one fails; 0 if it has.
fn unmet(pid: Pid) -> Option<u32> {
    std::fs::read_to_string(fail_nth(pid)).ok()?.trim().parse().ok()
}

/// A process that is gone needn't go on.
fn go_on(pid: Pid, signal: Option<Signal>) {
    match ptrace::syscall(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(err) => panic!("PTRACE_SYSCALL: {err}"),
    }
}
