//! The note that a DEL has begun ([`cnimble_os::files::begun`]). A verb continues without a note that it cannot write.

use std::io;

use cnimble_cni::{Error, owner};
use cnimble_os::files::begun;

use super::{Call, Command, Plugin, Role};

/// Notes the DEL of an attachment before the verb runs. ADD removes an old note. IPAM plugins and the like write none.
pub(super) fn before(plugin: &dyn Plugin, call: &Call) {
    log_failure(match (call.command, plugin.role()) {
        (_, Role::Helper) => Ok(()),
        (Command::Add, _) => begun::clear(&call.owner().tag()),
        (Command::Del, _) => begun::note_begin(&call.owner().tag()),
        _ => Ok(()),
    });
}

/// Removes the note after a successful verb. Only the DEL of the main plugin does, because it is the last one of the
/// chain. GC removes the notes of all attachments of the network that are not in its list.
pub(super) fn after(plugin: &dyn Plugin, call: &Call, outcome: &Result<(), Error>) {
    if outcome.is_err() {
        return;
    }
    log_failure(match (call.command, plugin.role(), &call.config.valid_attachments) {
        (Command::Del, Role::Main, _) => begun::clear(&call.owner().tag()),
        (Command::Gc, Role::Main | Role::Chained, Some(valid)) => {
            begun::clear_those(owner::stale(&call.config.name, valid))
        }
        _ => Ok(()),
    });
}

/// Logs a failure.
fn log_failure(outcome: io::Result<()>) {
    if let Err(err) = outcome {
        log::debug!("the note of a DEL in {}: {err}", begun::DIR);
    }
}
