//! Lets a started lease daemon leave the runtime's control group, which may be killed as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use cnimble_os::dbus::{Arguments, Bus, Method, Value};

use crate::ask::SYSTEMD;

/// Moves this process out of the runtime's control group. If systemd is PID 1, it makes a transient scope
/// (systemd.scope(5)). Otherwise, or without a message bus, the process moves to the root of the hierarchies that
/// process managers kill services by. systemd moves the process a moment after this returns. Fails with the reason why
/// it stays.
pub(super) fn leave() -> Result<(), String> {
    let mut why = String::new();
    if Path::new(SYSTEMD).exists() {
        match scope() {
            Ok(()) => return Ok(()),
            Err(err) => why = format!("asking systemd for a scope: {err}; "),
        }
    }
    to_roots().map_err(|err| format!("{why}moving to another control group: {err}"))
}

/// Asks systemd to make a scope for this process, `cnimble-dhcp-PID.scope`. Does not wait until the process is in it.
fn scope() -> Result<(), cnimble_os::dbus::Error> {
    let start = Method {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
    };
    let properties = [
        ("Description", Value::Text("Lease daemon of the CNI plugin dhcp")),
        // The number 0 means the sender, even in another PID namespace.
        ("PIDs", Value::Numbers(&[0])),
        ("CollectMode", Value::Text("inactive-or-failed")),
    ];
    let name = format!("cnimble-dhcp-{}.scope", std::process::id());
    let arguments = Arguments::texts(&[&name, "fail"]).properties(&properties).empty("(sa(sv))");
    Bus::system()?.call_with(&start, &arguments).map(drop)
}

/// Moves the process to the roots of version 2 and of version 1's named hierarchies (cgroups(7)). Limits of version 1's
/// controllers stay. Every root is tried before the first failure is returned.
fn to_roots() -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let moved: Vec<io::Result<()>> = mounts.lines().filter_map(root).map(move_to).collect();
    moved.into_iter().collect()
}

/// Moves this process to the control group at `root`.
fn move_to(root: &str) -> io::Result<()> {
    // The number 0 means the writing process.
    File::options().write(true).open(Path::new(root).join("cgroup.procs"))?.write_all(b"0")
}

/// Returns the mount point in a line of mountinfo (proc(5)), if it is the root of a hierarchy by which processes are
/// killed.
fn root(line: &str) -> Option<&str> {
    let (front, back) = line.split_once(" - ")?;
    let [_, _, _, "/", point, ..] = front.split(' ').collect::<Vec<_>>()[..] else { return None };
    let tracks = match back.split(' ').collect::<Vec<_>>()[..] {
        ["cgroup2", ..] => true,
        ["cgroup", _, options] => options.split(',').any(|option| option.starts_with("name=")),
        _ => false,
    };
    tracks.then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roots_that_managers_kill_by_are_found() {
        for (line, found) in [
            (
                "26 19 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate",
                Some("/sys/fs/cgroup"),
            ),
            ("26 19 0:23 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw", None),
            (
                "30 25 0:26 / /sys/fs/cgroup/openrc rw - cgroup openrc rw,name=openrc",
                Some("/sys/fs/cgroup/openrc"),
            ),
            ("31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", None),
            ("20 1 8:1 / / rw - ext4 /dev/sda1 rw", None),
            ("", None),
        ] {
            assert_eq!(root(line), found, "{line}");
        }
    }
}
