//! Whether process 1, which inherits a child that outlives its parent, reaps it. In a container it is often a program
//! that was never written for this. These facts show that it reaps:
//!
//! - it ignores SIGCHLD: then the kernel reaps; or
//! - it receives SIGCHLD one at a time. It blocks the signal and has a signalfd(2) for it, as systemd and catatonit do,
//!   or it waits in sigtimedwait(2), as tini and dumb-init do. No SIGCHLD is pending. It has reaped before, which the
//!   page faults of reaped children show, and none of its youngest children is a zombie.
//!
//! A process that handles SIGCHLD, or lets it be, may reap or not (shells do, Go programs don't). A process in between
//! may have asked to inherit instead (PR_SET_CHILD_SUBREAPER, which can't be seen from outside), as shims and service
//! managers do. Such a process reaps.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;

/// SIGCHLD in the masks of proc(5).
const SIGCHLD: u64 = 1 << (libc::SIGCHLD - 1);

/// The number of children of process 1 that are looked at.
const YOUNGEST: usize = 8;
/// The number of descriptors to look at. A service manager has its signalfd among the first, unless it was executed
/// anew.
const DESCRIPTORS: usize = 1024;

/// The number of looks at a process 1 that is busy, perhaps with taking a SIGCHLD. If process 1 never takes it, the
/// pauses between them delay every plugin that could have a child.
const LOOKS: usize = 4;
/// The pause between two looks.
const BETWEEN: Duration = Duration::from_micros(300);

/// Why process 1 isn't known to reap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// Another look may say something else.
    Busy(&'static str),
    /// Another look would say the same.
    Lasting(&'static str),
}
use Doubt::{Busy, Lasting};

type Known<T> = Result<T, Doubt>;

const UNTOLD: Doubt = Lasting("/proc doesn't tell who reaps");
const AT_WORK: Doubt = Busy("process 1 isn't known to reap, and is at work");

/// The way in which process 1 handles SIGCHLD.
#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Ignored,
    Blocked,
    /// Neither: it may sit in sigtimedwait(2), which unblocks the signals that it waits for.
    Open,
}

/// Returns `Ok` if process 1 is known to reap. The error says why it isn't.
pub(super) fn reaps() -> Result<(), &'static str> {
    for _ in 1..LOOKS {
        match look_at_init() {
            Err(Busy(_)) => thread::sleep(BETWEEN),
            Ok(()) => return Ok(()),
            Err(Lasting(why)) => return Err(why),
        }
    }
    look_at_init().map_err(|(Busy(why) | Lasting(why))| why)
}

/// Looks at process 1 once.
fn look_at_init() -> Known<()> {
    // A procfs of another PID namespace would tell of another process 1.
    if !is_of_our_namespace(&read("/proc/self/status")?) {
        return Err(Lasting("/proc isn't that of our PID namespace"));
    }
    let takes = match signal(&read("/proc/1/status")?)? {
        Signal::Ignored => return Ok(()),
        Signal::Blocked => has_signalfd()?,
        Signal::Open => waits_for_it()?,
    };
    if !takes {
        return Err(Lasting("process 1 isn't known to reap"));
    }
    if !has_reaped(&read("/proc/1/stat")?) {
        return Err(Lasting("process 1 has reaped no child yet"));
    }
    none_is_a_zombie(&read("/proc/1/task/1/children")?)
}

fn read(path: &str) -> Known<String> {
    fs::read_to_string(path).map_err(|_| UNTOLD)
}

/// Returns true if and only if /proc/self/status gives us one number: our own namespace's.
fn is_of_our_namespace(status: &str) -> bool {
    field(status, "NSpid").is_some_and(|pids| pids.split_whitespace().count() == 1)
}

/// Reads from /proc/1/status how process 1 handles SIGCHLD. Fails with [`Busy`] while one is pending.
fn signal(status: &str) -> Known<Signal> {
    let masks = ["SigIgn", "SigBlk", "SigPnd", "ShdPnd"];
    match masks.map(|name| field(status, name).and_then(in_mask)) {
        [Some(true), ..] => Ok(Signal::Ignored),
        [Some(_), Some(true), Some(false), Some(false)] => Ok(Signal::Blocked),
        [Some(_), Some(false), Some(false), Some(false)] => Ok(Signal::Open),
        [Some(_), Some(_), Some(_), Some(_)] => Err(Busy("process 1 has a SIGCHLD that it doesn't take")),
        _ => Err(UNTOLD),
    }
}

/// Returns true if and only if process 1 has a signalfd(2) for SIGCHLD.
fn has_signalfd() -> Known<bool> {
    const WHY: Doubt = Lasting("process 1's descriptors can't be read");
    for entry in fs::read_dir("/proc/1/fd").map_err(|_| WHY)?.take(DESCRIPTORS) {
        let path = entry.map_err(|_| WHY)?.path();
        // One that was closed meanwhile isn't it.
        if !fs::read_link(&path).is_ok_and(|target| target == Path::new("anon_inode:[signalfd]")) {
            continue;
        }
        let number = path.file_name().unwrap_or_default();
        let info = fs::read_to_string(Path::new("/proc/1/fdinfo").join(number)).map_err(|_| WHY)?;
        if field(&info, "sigmask").and_then(in_mask) == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if and only if process 1 is in rt_sigtimedwait(2), and SIGCHLD is in the set that it waits for. Fails
/// with [`Busy`] if it is running, or has gone on meanwhile.
fn waits_for_it() -> Known<bool> {
    const WHY: Doubt = Lasting("process 1 isn't known to reap, and its system call can't be read");
    let before = fs::read_to_string("/proc/1/syscall").map_err(|_| WHY)?;
    if before.trim() == "running" {
        return Err(AT_WORK);
    }
    let Some(address) = awaited(&before) else { return Ok(false) };
    let mut set = [0; 8];
    let memory = File::open("/proc/1/mem").map_err(|_| WHY)?;
    memory.read_exact_at(&mut set, address).map_err(|_| WHY)?;
    // It may have gone on meanwhile, and the memory serve another purpose.
    if fs::read_to_string("/proc/1/syscall").map_err(|_| WHY)? != before {
        return Err(AT_WORK);
    }
    Ok(u64::from_ne_bytes(set) & SIGCHLD != 0)
}

/// Returns the address of the awaited set of signals from proc_pid_syscall(5). `None` is for any other system call.
fn awaited(call: &str) -> Option<u64> {
    let mut words = call.split_whitespace();
    if words.next()?.parse() != Ok(libc::SYS_rt_sigtimedwait) {
        return None;
    }
    u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

/// Returns true if and only if `cminflt` of proc_pid_stat(5) is above 0. The kernel adds to it the page faults of
/// reaped children.
fn has_reaped(stat: &str) -> bool {
    let faults = behind_the_name(stat).and_then(|mut fields| fields.nth(8)?.parse::<u64>().ok());
    faults.is_some_and(|count| count > 0)
}

/// Returns `Ok` if none of the youngest of these children of process 1 is a zombie. A child that is gone is none.
fn none_is_a_zombie(children: &str) -> Known<()> {
    for child in children.split_whitespace().rev().take(YOUNGEST) {
        match fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) if behind_the_name(&stat).and_then(|mut fields| fields.next()) == Some("Z") => {
                return Err(Busy("process 1 has a child that it hasn't reaped"));
            }
            Ok(_) => {}
            Err(err) if is_gone(&err) => {}
            Err(_) => return Err(UNTOLD),
        }
    }
    Ok(())
}

fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// The fields of proc_pid_stat(5) from the state on. The name before it may contain anything.
fn behind_the_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

/// Returns whether SIGCHLD is in a mask of proc(5), or `None` if it is no hexadecimal number.
fn in_mask(mask: &str) -> Option<bool> {
    Some(u64::from_str_radix(mask, 16).ok()? & SIGCHLD != 0)
}

/// Returns the value of a line `NAME: VALUE` in a file of /proc.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "1 (a) b) S 0 1 1 0 -1 4194560 10263 6540061 96 2431 41 210";
    const FRESH: &str = "1 (sleep) S 0 1 1 0 -1 4194560 10263 0 96 0 41 210";

    fn masks(pending: &str, shared: &str, blocked: &str, ignored: &str) -> String {
        format!(
            "Name:\tx\nNSpid:\t1\nSigQ:\t0/9\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
        )
    }

    #[test]
    fn what_process_1_does_about_the_signal() {
        let (none, child, other) = ("0000000000000000", "0000000000010000", "7be3c0fe28084a03");
        for (status, expected) in [
            (masks(none, none, none, child), Some(Signal::Ignored)),
            (masks(none, none, child, none), Some(Signal::Blocked)),
            (masks(none, none, "fffffffe3ffbfa07", none), Some(Signal::Blocked)),
            (masks(none, none, none, none), Some(Signal::Open)),
            (masks(none, none, other, none), Some(Signal::Open)),
            (masks(none, child, child, none), None),
            (masks(child, none, child, none), None),
            (masks(none, child, none, none), None),
            (masks(none, none, "what", none), None),
            (String::new(), None),
        ] {
            assert_eq!(signal(&status).ok(), expected, "{status}");
        }
    }

    #[test]
    fn one_that_has_taken_leave_of_a_child_has_reaped() {
        assert!(has_reaped(STAT));
        for stat in [FRESH, "1 sleep", ""] {
            assert!(!has_reaped(stat), "{stat}");
        }
    }

    #[test]
    fn the_set_that_is_waited_for_is_found() {
        let call = libc::SYS_rt_sigtimedwait;
        assert_eq!(
            awaited(&format!("{call} 0x7ffdc892b570 0x0 0x0 0x8 0x7 0x5 0x7 0x7")),
            Some(0x7ffd_c892_b570)
        );
        for other in
            [format!("{} 0x7ffdc892b570", call + 1), format!("{call}"), "running".into(), String::new()]
        {
            assert_eq!(awaited(&other), None, "{other}");
        }
    }

    #[test]
    fn a_zombie_is_seen_and_what_is_gone_is_not() {
        let mut child =
            std::process::Command::new("true").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while behind_the_name(&state()).unwrap().next() != Some("Z") {
            std::thread::yield_now();
        }
        assert!(none_is_a_zombie(&format!("{pid} ")).is_err());
        // The oldest of nine.
        let we = std::process::id().to_string();
        assert!(none_is_a_zombie(&format!("{pid} {}", vec![we.clone(); YOUNGEST].join(" "))).is_ok());
        child.wait().unwrap();
        assert!(none_is_a_zombie(&format!("{we} {pid} ")).is_ok());
        assert!(none_is_a_zombie("").is_ok());
    }

    #[test]
    fn a_procfs_of_another_namespace_is_told() {
        assert!(is_of_our_namespace("Name:\tx\nNSpid:\t7\n"));
        assert!(!is_of_our_namespace("Name:\tx\nNSpid:\t4711\t7\n"));
        assert!(!is_of_our_namespace("Name:\tx\n"));
    }
}
