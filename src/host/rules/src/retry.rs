//! Repeats a change while a concurrent process is faster.

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Batch, Nft, Rule, Table};

pub(super) const ATTEMPTS: usize = 20;

/// The kernel's answers if a concurrent process has made or removed what the change is about.
pub(super) const OVERTAKEN: [Errno; 3] = [Errno::ENOENT, Errno::EEXIST, Errno::EBUSY];
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

/// Removes the rules that `choose` picks from a chain, or from all of a table. Returns whether it had any rules.
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

/// Makes a change by commands. They don't tell why they failed, so any failure may come from a concurrent change.
pub(super) fn retry_command<T>(mut change: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..COMMANDS {
        if let Ok(done) = change() {
            return Ok(done);
        }
    }
    change()
}
