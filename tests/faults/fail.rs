//! Makes every system call fail, one at a time, with the errors that it can return.

use nix::errno::Errno;

use cnimble_tests::sample_size;
use cnimble_tests::trace::{Fate, Syscall};

use crate::kinds::{Kind, others, picky};
use crate::points::{Chance, FEWEST, at_each_point, verbs_inside};
use crate::site::{Disturbed, Site, Verb};

/// Not tried: memory, which Linux grants and reclaims by killing, and calls that cannot fail or return.
pub const LEFT_OUT: &[&str] = &[
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "arch_prctl",
    "execve",
    "exit_group",
    "exit",
    "rt_sigreturn",
    "sigaltstack",
    // For the monotonic clock. In the virtual machine it is a system call.
    "clock_gettime",
];

/// The errors that a call can return. The causes are full or broken disks, a lack of memory or descriptors, signals, a
/// foreign lock, or a security module.
fn errors(call: &str) -> &'static [Errno] {
    use Errno::{EBUSY, EINTR, EIO, EMFILE, ENOBUFS, ENOLCK, ENOMEM, ENOSPC, ENOSYS, EPERM};
    match call {
        "open" | "openat" => &[EIO, EMFILE, ENOMEM, EINTR, ENOSPC, EPERM],
        "read" | "pread64" => &[EIO, EINTR, ENOMEM],
        "write" | "pwrite64" | "ftruncate" => &[EIO, ENOSPC, EINTR],
        "close" => &[EIO, EINTR],
        "getdents64" | "statx" | "fstat" | "newfstatat" | "stat" | "lstat" | "statfs" | "fstatfs" => {
            &[EIO, ENOMEM]
        }
        "mkdir" | "mkdirat" | "link" | "linkat" | "rename" | "renameat" | "renameat2" => {
            &[EIO, ENOSPC, ENOMEM, EPERM]
        }
        "unlink" | "unlinkat" | "rmdir" => &[EIO, EBUSY, EPERM],
        "fsetxattr" | "fgetxattr" | "utimensat" | "fchmod" => &[EIO, ENOSPC, EPERM],
        "flock" => &[EINTR, ENOLCK, ENOMEM],
        "socket" => &[EMFILE, ENOMEM, EPERM],
        "sendto" | "sendmsg" => &[ENOMEM, ENOBUFS, EINTR, EPERM],
        "recvfrom" | "recvmsg" => &[ENOMEM, ENOBUFS, EINTR],
        "setns" => &[EPERM, ENOMEM],
        "getrandom" => &[EINTR, ENOSYS],
        "poll" | "ppoll" | "clock_nanosleep" => &[EINTR, ENOMEM],
        _ => &[EIO, ENOMEM, EPERM],
    }
}

/// A system call of a verb, and the error that it returns.
#[derive(Debug, Clone)]
struct Point {
    verb: Verb,
    /// The index of the plugin in the chain.
    at: usize,
    call: Syscall,
    error: Errno,
    manner: Manner,
}

/// The effects that are allowed when a call of a verb fails.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// The plugin may end without an answer. Before it reads its configuration, the C library and Rust's runtime are at
    /// work.
    pub start_up: bool,
    /// The process aborts instead of continuing in the pod's namespace. DEL has to clean up.
    pub way_home: bool,
}

impl Manner {
    /// Returns the effects that are allowed when this call fails.
    pub fn of(call: &Syscall, start_up: bool) -> Self {
        Manner { start_up, way_home: call.name() == "setns" && call.nth % 2 == 1 }
    }
}

/// Returns true if this call reads the configuration.
pub fn reads_stdin(call: &Syscall) -> bool {
    call.name() == "read" && call.args[0] == 0
}

/// Returns the failures that a verb of this network can see: all, or one for each call and at most `most`.
fn points(kind: &Kind, verb: Verb, most: usize, chance: &mut Chance) -> Vec<Point> {
    let mut points = Vec::new();
    for at in 0..Site::new(kind).length() {
        let mut start_up = true;
        for call in Site::usual_calls(kind, verb, at) {
            let name = call.name();
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            start_up &= !reads_stdin(&call);
            let manner = Manner::of(&call, start_up);
            let errors = errors(&name);
            let errors = if most == usize::MAX { errors } else { &errors[chance.below(errors.len())..][..1] };
            for error in errors {
                points.push(Point { verb, at, call: call.clone(), error: *error, manner });
            }
        }
    }
    chance.some(points, most)
}

/// Makes one call fail. Returns whether the call was reached.
fn fail(site: &mut Site, point: &Point) -> Result<bool, String> {
    let fate = Fate::Told { call: point.call.number, nth: point.call.nth, error: point.error };
    let run = site.disturbed(point.verb, point.at, &fate)?;
    settle(site, point.verb, point.at, &run, point.manner)?;
    Ok(run.traced.met)
}

/// Returns the differences without the empty lock file of host-device's device, which stays if the system refuses to
/// remove it. The DEL that follows removes it.
fn without_lock(left: &str) -> String {
    let lock = |line: &&str| line.starts_with("  leases + host-device/.lock-") && line.ends_with(" \"\"");
    left.lines().filter(|line| !lock(line)).map(|line| format!("{line}\n")).collect()
}

/// Checks the state after a verb of plugin `at` in which a call failed, and calls DEL.
pub fn settle(site: &Site, verb: Verb, at: usize, run: &Disturbed, manner: Manner) -> Result<(), String> {
    let said = || run.outcome.describe();
    let succeeded = answered(verb, run, manner)?;
    let known = (verb != Verb::Add).then_some(run.last.as_ref()).flatten();
    match (verb, succeeded) {
        (Verb::Add, false) if !manner.way_home => {
            let left = without_lock(&site.left_by(run));
            if !left.is_empty() {
                return Err(format!("left after the failure:\n{left}\n{}", said()));
            }
        }
        // A runtime does not repeat a DEL that succeeded.
        (Verb::Del, true) => {
            site.del_some(&site.attachment(), known, at)?;
            let left = without_lock(&site.diff()) + &site.pod_diff();
            if !left.is_empty() {
                return Err(format!("left after success:\n{left}\n{}", said()));
            }
        }
        (Verb::Gc, true) => {
            site.gc_from(at + 1)?;
            let left = without_lock(&site.diff());
            if !left.is_empty() {
                return Err(format!("left after success:\n{left}\n{}", said()));
            }
        }
        (Verb::Gc, false) => site.gc_from(0)?,
        _ => {}
    }
    site.del(&site.attachment(), known)?;
    let left = site.diff();
    if !left.is_empty() {
        return Err(format!("left after DEL:\n{left}\n{}", said()));
    }
    if verb != Verb::Gc {
        let left = site.pod_diff();
        if !left.is_empty() {
            return Err(format!("left in the pod after DEL:\n{left}\n{}", said()));
        }
    }
    site.neighbour_lives().map_err(|why| format!("the neighbour suffers: {why}"))
}

/// Returns whether the verb succeeded. Fails if it gave no valid answer.
fn answered(verb: Verb, run: &Disturbed, manner: Manner) -> Result<bool, String> {
    let outcome = &run.outcome;
    if run.traced.hung {
        return Err(format!("it hung: {}", outcome.describe()));
    }
    if outcome.text().contains("panicked") || outcome.stderr.contains("panicked") {
        return Err(format!("it panicked: {}", outcome.describe()));
    }
    if outcome.status == 0 {
        if verb == Verb::Add {
            outcome.try_result()?;
        } else if !outcome.stdout.is_empty() {
            return Err(format!("it talks: {}", outcome.describe()));
        }
        return Ok(true);
    }
    if !manner.start_up && !manner.way_home {
        outcome.try_error()?;
    }
    Ok(false)
}

/// Makes all calls of a network's verbs fail, each in turn.
pub fn failures(kind: &str, verbs: &[Verb], otherwise: usize) {
    let points = |kind: &Kind, verb, seed| points(kind, verb, sample_size(otherwise), &mut Chance::new(seed));
    at_each_point("errors", kind, verbs, points, fail, |site, point| {
        format!("{} {} of {point:?}", site.plugin(point.at), point.call.name())
    });
}

const ALL: &[Verb] = &[Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

#[test]
fn errors_in_bridge() {
    failures("bridge", ALL, 24);
}

#[test]
fn errors_in_the_first_bridge() {
    failures("first bridge", &[Verb::Add], 20);
}

#[test]
fn errors_in_the_first_published_port() {
    for key in ["", " with services"] {
        failures(&format!("first bridge and portmap{key}"), &[Verb::Add, Verb::Del], 16);
    }
}

#[test]
fn errors_in_ptp() {
    failures("ptp", ALL, 14);
}

#[test]
fn errors_in_a_chain() {
    failures("chain", ALL, 8);
}

#[test]
fn errors_among_many_leases() {
    failures("many leases", ALL, 12);
}

#[test]
fn errors_in_every_other_plugin() {
    for sample in others().filter(|sample| sample.missing().is_none()) {
        failures(&sample.plugin, ALL, FEWEST);
    }
}

/// For plugins that need kinds of interfaces which many kernels lack.
pub fn failures_of_the_picky() {
    for (number, network) in picky().enumerate() {
        failures(&network, verbs_inside(number == 0, ALL, &[Verb::Add, Verb::Del]), FEWEST);
    }
}
