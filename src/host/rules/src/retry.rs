//! Repeats a change that a concurrent process has prevented.

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Batch, Nft, Rule, Table};

/// Attempts of a change before its error is returned.
pub(super) const ATTEMPTS: usize = 20;

/// The kernel's errors if a concurrent process has made or removed something that the change is about.
pub(super) const OVERTAKEN: [Errno; 3] = [Errno::ENOENT, Errno::EEXIST, Errno::EBUSY];
/// Attempts with a command. There are fewer, because it reads the whole table each time.
const COMMANDS: usize = 3;

/// Makes a change that depends on a look at nf_tables. `change` must do both, since it is repeated after an error among
/// `overtaken`. Returns the last error after [`ATTEMPTS`] attempts.
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

/// Removes the rules that `choose` picks from a chain, or with `None` from all chains of a table. Returns whether there
/// were any rules, chosen or not. A missing table or chain is no error.
pub(super) fn remove_rules(
    nft: &mut Nft,
    table: Table<'_>,
    chain: Option<&str>,
    choose: impl Fn(&Rule) -> bool,
) -> netlink::Result<bool> {
    let mut any = false;
    retry(&[Errno::ENOENT], || {
        let mut batch = Batch::new();
        for rule in nft.rules(table, chain)? {
            any = true;
            if choose(&rule) {
                batch.delete_rule(table.chain(&rule.chain), rule.handle);
            }
        }
        nft.commit(&batch)
    })?;
    Ok(any)
}

/// Makes a change by commands, and repeats it after any failure: commands don't tell whether a concurrent change was
/// the reason.
pub(super) fn retry_command<T>(mut change: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..COMMANDS {
        if let Ok(done) = change() {
            return Ok(done);
        }
    }
    change()
}
