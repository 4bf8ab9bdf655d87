//! The holders of a lock, from /proc/locks (proc_locks(5)).

use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;

/// How many characters of a command line are shown.
const COMMAND_LIMIT: usize = 120;

/// Returns the text about the processes that hold a flock(2) lock on this file. Several share a shared lock.
pub(super) fn list_holders(file: &Metadata) -> String {
    // The list is read in pieces larger than a page, the unit of the kernel. Between two reads it counts the lines
    // anew, and skips one if an earlier lock is gone.
    let lines = File::open("/proc/locks").map(|list| BufReader::new(list).lines());
    let lines = lines.into_iter().flatten().map_while(Result::ok);
    let mut pids: Vec<u32> = lines.filter_map(|line| holder(&line, file.ino())).collect();
    pids.sort_unstable();
    pids.dedup();
    match pids.as_slice() {
        [] => "a process that can't be seen from here".to_owned(),
        pids => pids.iter().map(|pid| describe(*pid)).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the process of a line `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`, or `None` if it is about another
/// file or another kind of lock. A waiting process has an arrow behind the number, and returns `None`, too.
fn holder(line: &str, inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok()?;
    // Only the inode is compared, because on some file systems this device differs from that of stat(2). So a process
    // with a lock on a file of another file system can be named by mistake.
    let (_, found) = words.next()?.rsplit_once(':')?;
    (found.parse() == Ok(inode)).then_some(pid)
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
    use super::*;

    #[test]
    fn lines_of_proc_locks() {
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), Some(4711));
        assert_eq!(holder("1: FLOCK  ADVISORY  READ 4711 00:19:1234 0 EOF", 123), None);
        assert_eq!(holder("1: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), None);
        assert_eq!(holder("1: POSIX  ADVISORY  WRITE 4711 00:19:1234 0 EOF", 1234), None);
        assert_eq!(holder("1: OFDLCK ADVISORY  WRITE -1 00:19:1234 0 EOF", 1234), None);
        assert_eq!(holder("nonsense", 1), None);
    }

    #[test]
    fn this_process_is_named() {
        assert!(describe(std::process::id()).contains(&format!("process {} (`", std::process::id())));
    }
}
