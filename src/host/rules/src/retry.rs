//! Repeats a change while a concurrent process is faster.

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink as netlink;

pub(super) const ATTEMPTS: usize = 20;
/// Attempts with a command, which reads the whole table each time.
const COMMANDS: usize = 3;

/// Makes a change that depends on a look at nf_tables. Repeats both after an error among `overtaken`.
pub(super) fn retry<T>(
    overtaken: &[Errno],
    mut change: impl FnMut() -> netlink::Result<T>,
) -> netlink::Result<T> {
    for _ in 1..ATTEMPTS {
        match change() {
            Err(err) if overtaken.contains(&err.errno) => {}
            outcome => return outcome,
        }
    }
    change()
}

/// Makes a change by commands. They don't tell why they failed, so any failure may come from a concurrent change.
pub(super) fn retry_command<T>(mut change: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..COMMANDS {
        if let Ok(done) = change() {
            return Ok(done);
        }
    }
    change()
}
