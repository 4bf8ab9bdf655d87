//! The holders of a lock, from /proc/locks (proc_locks(5)).

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;

use nix::sys::stat::{major, minor};

/// How many characters of a command line are shown.
const COMMAND_LIMIT: usize = 120;

/// Returns the text about the processes that hold a flock(2) lock on this file. Several share a shared lock.
///
/// On some file systems the device in the list differs from that of stat(2). If no line has both the device and the inode,
/// those with the inode alone may be about this file, and the text says so.
pub(super) fn list_holders(file: &Metadata) -> String {
    // The list is read in pieces larger than a page, the unit of the kernel. Between two reads it counts the lines
    // anew, and skips one if an earlier lock is gone.
    let lines = File::open("/proc/locks").map(|list| BufReader::new(list).lines());
    let lines = lines.into_iter().flatten().map_while(Result::ok);
    let (mut sure, mut possible) = (BTreeSet::new(), BTreeSet::new());
    for line in lines {
        match holder(&line, file.dev(), file.ino()) {
            Some(Holder { pid, is_sure: true }) => sure.insert(pid),
            Some(Holder { pid, is_sure: false }) => possible.insert(pid),
            None => false,
        };
    }
    let described =
        |pids: &BTreeSet<u32>| pids.iter().map(|pid| describe(*pid)).collect::<Vec<_>>().join(", ");
    match (sure.is_empty(), possible.is_empty()) {
        (false, _) => described(&sure),
        (true, false) => format!("another process, perhaps {}", described(&possible)),
        (true, true) => "a process that /proc/locks doesn't show".to_owned(),
    }
}

/// A process of the list that has a lock on a file with the wanted inode.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// The device is the wanted one, too.
    is_sure: bool,
}

/// Returns the process of a line `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`, or `None` if it is about another
/// file or another kind of lock. A waiting process has an arrow behind the number, and returns `None`, too.
fn holder(line: &str, device: u64, inode: u64) -> Option<Holder> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok()?;
    let (of_device, found) = words.next()?.rsplit_once(':')?;
    let is_sure = of_device == format!("{:02x}:{:02x}", major(device), minor(device));
    (found.parse() == Ok(inode)).then_some(Holder { pid, is_sure })
}

fn describe(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&line).replace('\0', " ");
    let text: String = text.trim().chars().filter(|c| !c.is_control()).take(COMMAND_LIMIT).collect();
    match text.as_str() {
        "" => format!("process {pid}"),
        text => format!("process {pid} (`{text}`)"),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    #[test]
    fn lines_of_proc_locks() {
        let device = makedev(0, 0x19);
        let found = |line, inode| holder(line, device, inode);
        let sure = Holder { pid: 4711, is_sure: true };
        assert_eq!(found("1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), Some(sure));
        assert_eq!(found("1: FLOCK  ADVISORY  READ 4711 00:19:1234 0 EOF", 123), None);
        assert_eq!(found("1: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), None);
        assert_eq!(found("1: POSIX  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), None);
        assert_eq!(found("1: OFDLCK ADVISORY  WRITE -1 00:19:1234 0 EOF", 1234), None);
        assert_eq!(found("nonsense", 1), None);
    }

    /// A file of another file system can have the same inode.
    #[test]
    fn a_process_with_a_lock_on_another_device_is_only_a_possible_holder() {
        let line = "1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF";
        let possible = Holder { pid: 4711, is_sure: false };
        assert_eq!(holder(line, makedev(0, 0x19), 1234), Some(possible));
        assert_eq!(holder(line, makedev(0xfe, 1), 1234), Some(Holder { pid: 4711, is_sure: true }));
    }

    #[test]
    fn this_process_is_named() {
        assert!(describe(std::process::id()).contains(&format!("process {} (`", std::process::id())));
    }
}
