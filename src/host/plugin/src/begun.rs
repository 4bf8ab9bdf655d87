//! The note that a DEL has begun ([`cnimble_os::files::begun`]). A verb continues without a note that it cannot write.

use std::io;

use cnimble_cni::{Error, owner};
use cnimble_os::files::begun;

use super::{Call, Command, Plugin, Role};

pub(super) fn before(plugin: &dyn Plugin, call: &Call) {
    tell(match (call.command, plugin.role()) {
        (_, Role::Helper) => Ok(()),
        (Command::Add, _) => begun::clear(&call.owner().tag()),
        (Command::Del, _) => begun::note(&call.owner().tag()),
        _ => Ok(()),
    });
}

pub(super) fn after(plugin: &dyn Plugin, call: &Call, outcome: &Result<(), Error>) {
    if outcome.is_err() {
        return;
    }
    tell(match (call.command, plugin.role(), &call.config.valid_attachments) {
        (Command::Del, Role::Main, _) => begun::clear(&call.owner().tag()),
        (Command::Gc, Role::Main | Role::Chained, Some(valid)) => {
            begun::clear_those(owner::stale(&call.config.name, valid))
        }
        _ => Ok(()),
    });
}

fn tell(outcome: io::Result<()>) {
    if let Err(err) = outcome {
        log::debug!("the note of a DEL in {}: {err}", begun::DIR);
    }
}
