//! The skeleton of a plugin: from the environment and stdin to a verb, and back to stdout.
//!
//! A plugin implements [`Plugin`]; [`main`] does the rest: it reads and validates every
//! parameter, refuses the plugin's own namespace before anything is done, runs the verb,
//! prints result or error, and takes everything back when ADD fails, panics or is told
//! to stop.

mod call;
pub mod delegate;
mod entry;
mod env;
pub mod log;
pub mod signal;
mod start;
pub mod undo;

pub use call::Call;
pub use entry::main;
pub use undo::Undo;

pub use crate::spec::Verb as Command;

use crate::spec::{CniResult, Error, Version};

/// A CNI plugin: its verbs. All but ADD and DEL have a default that does nothing and succeeds.
pub trait Plugin: Sync {
    /// The name it is called by: the `type` in a configuration, the file in CNI_PATH.
    fn name(&self) -> &'static str;

    /// The versions it speaks, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// ADD: connect the container. Steps that change something push their undo on
    /// [`Call::undo`]; the skeleton runs it if this returns an error, if the result can't
    /// be printed, or on a panic.
    ///
    /// # Errors
    /// The reason, with a code of the specification.
    fn add(&self, call: &Call) -> Result<CniResult, Error>;

    /// DEL: remove everything that ADD made for the attachment. Succeeds when there is
    /// nothing left to remove, whatever the reason.
    ///
    /// # Errors
    /// Only if something is left that could not be removed.
    fn del(&self, call: &Call) -> Result<(), Error>;

    /// CHECK: the attachment is as ADD left it.
    ///
    /// # Errors
    /// Code 103 with what differs.
    fn check(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// GC: remove what belongs to attachments that aren't in
    /// [`PluginConfig::valid_attachments`](crate::spec::PluginConfig::valid_attachments).
    ///
    /// # Errors
    /// After everything was tried, what could not be removed.
    fn gc(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// STATUS: could ADD be served now?
    ///
    /// # Errors
    /// Code 50 or 51 with the reason.
    fn status(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }
}
