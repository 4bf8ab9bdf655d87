//! Whether process 1, which inherits a child that outlives its parent, reaps it.
//!
//! Not every process 1 does: that of a container is often a program that was never written for it. The
//! kernel tells enough to know one that does:
//!
//! - it ignores SIGCHLD: then the kernel reaps; or
//! - it blocks SIGCHLD, which is for who waits for signals in a loop (signalfd, sigwait), as systemd, tini,
//!   dumb-init and catatonit do; none is pending, so it takes them; and it has reaped before, whence the
//!   faults of children of which it has taken leave.
//!
//! One that handles SIGCHLD, or lets it be, may reap or not (shells do, Go programs don't).
//!
//! A process in between may have asked to inherit instead (PR_SET_CHILD_SUBREAPER, which can't be seen from
//! outside): shims and service managers. Who asks for it means to reap.

use std::fs;

/// SIGCHLD in the masks of proc(5).
const SIGCHLD: u64 = 1 << (libc::SIGCHLD - 1);

/// # Errors
/// Why it isn't known to reap.
pub(super) fn reaps() -> Result<(), &'static str> {
    let read = |path: &str| fs::read_to_string(path).map_err(|_| "/proc doesn't tell who reaps");
    // A procfs of another PID namespace would tell of another process 1.
    if !is_of_our_namespace(&read("/proc/self/status")?) {
        return Err("/proc isn't that of our PID namespace");
    }
    judge(&read("/proc/1/status")?, &read("/proc/1/stat")?)
}

/// Whether /proc/self/status gives us one number: our own namespace's.
fn is_of_our_namespace(status: &str) -> bool {
    field(status, "NSpid").is_some_and(|pids| pids.split_whitespace().count() == 1)
}

fn judge(status: &str, stat: &str) -> Result<(), &'static str> {
    let has = |name| {
        let mask = field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.map(|mask| mask & SIGCHLD != 0)
    };
    match (has("SigIgn"), has("SigBlk"), has("SigPnd"), has("ShdPnd")) {
        (Some(true), ..) => Ok(()),
        (_, Some(true), Some(false), Some(false)) if has_reaped(stat) => Ok(()),
        (_, Some(true), Some(false), Some(false)) => Err("process 1 has reaped no child yet"),
        (_, Some(true), ..) => Err("process 1 has a SIGCHLD that it doesn't take"),
        _ => Err("process 1 isn't known to reap"),
    }
}

/// Whether `cminflt` of proc_pid_stat(5) is above 0.
fn has_reaped(stat: &str) -> bool {
    // Behind the name, which may have anything in it.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let faults = fields.split_whitespace().nth(8).and_then(|count| count.parse::<u64>().ok());
    faults.is_some_and(|count| count > 0)
}

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
    fn who_blocks_or_ignores_the_signal_reaps() {
        let (none, child, other) = ("0000000000000000", "0000000000010000", "7be3c0fe28004a03");
        assert_eq!(judge(&masks(none, none, none, child), FRESH), Ok(()));
        assert_eq!(judge(&masks(none, none, child, none), STAT), Ok(()));
        // All signals blocked, as tini has it.
        assert_eq!(judge(&masks(none, none, "fffffffe7ffbfeff", none), STAT), Ok(()));
        for (status, stat) in [
            (masks(none, none, none, none), STAT),
            (masks(none, none, &other.replace('a', "8"), none), STAT),
            (masks(none, child, child, none), STAT),
            (masks(child, none, child, none), STAT),
            (masks(none, none, child, none), FRESH),
            (masks(none, none, "what", none), STAT),
            (String::new(), STAT),
            (masks(none, none, child, none), "1 sleep"),
        ] {
            assert!(judge(&status, stat).is_err(), "{status}{stat}");
        }
    }

    #[test]
    fn a_procfs_of_another_namespace_is_told() {
        assert!(is_of_our_namespace("Name:\tx\nNSpid:\t7\n"));
        assert!(!is_of_our_namespace("Name:\tx\nNSpid:\t4711\t7\n"));
        assert!(!is_of_our_namespace("Name:\tx\n"));
    }
}
