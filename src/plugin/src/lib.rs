//! The skeleton of a plugin: from the environment and stdin to a verb, and back to stdout.
//!
//! A plugin implements [`Plugin`]; [`main`] does the rest: it reads and validates every
//! parameter, refuses the plugin's own namespace before anything is done, runs the verb,
//! prints result or error, and takes everything back when ADD fails, panics or is told
//! to stop.

mod begun;
mod call;
pub mod delegate;
mod entry;
mod env;
pub mod interface;
pub mod log;
mod restrain;
mod start;
pub mod undo;
mod wanted;

pub use call::Call;
pub use cnimble_child::signal;
pub use entry::main;
pub use undo::Undo;
pub use wanted::{Aim, Examination, Examined, Fault, Place, Wanted};

pub use cnimble_cni::Verb as Command;
pub use cnimble_restraint::{Caps, Level, Restraint, SETTING as RESTRAINT};

use std::ffi::OsString;

use cnimble_cni::{Attachment, CniResult, Error, Version};

/// The part of a plugin in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes the pod's interface: first for ADD, last for DEL.
    Main,
    /// Works on an interface that another plugin has made.
    Chained,
    /// Neither, as an IPAM plugin.
    Helper,
}

/// A CNI plugin: its verbs. All but ADD and DEL have a default that does nothing and succeeds.
pub trait Plugin: Sync {
    /// The name it is called by: the `type` in a configuration, the file in CNI_PATH.
    fn name(&self) -> &'static str;

    /// The versions it speaks, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Its part in a chain.
    fn role(&self) -> Role {
        Role::Main
    }

    /// The capabilities that its verbs need. The others are given up before one begins.
    fn needs(&self) -> Caps;

    /// Returns true if the verb may start a program; that of `ipam.type` doesn't count. What it starts needs
    /// privileges of its own, so it keeps more of them.
    fn starts_programs(&self, _call: &Call) -> bool {
        false
    }

    /// Reads the configuration as ADD does, and does nothing with it. Fuzzers call it.
    ///
    /// # Errors
    /// ADD's: code 7, or 4 if CNI_ARGS is to blame.
    fn read_config(&self, call: &Call) -> Result<(), Error>;

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

    /// Returns true if and only if this IPAM plugin needs the pod's interface for DEL, which then comes twice:
    /// before the interface goes, and behind it, as everybody's.
    fn leaves_by_the_interface(&self) -> bool {
        false
    }

    /// What the plugin does as a program of its own, with arguments, which no runtime gives. The exit status;
    /// `None` if these arguments mean nothing to it.
    fn program(&self, _args: &[OsString]) -> Option<i32> {
        None
    }

    /// Returns true if and only if CHECK is refused without a prevResult.
    fn checks_prev_result(&self) -> bool {
        true
    }

    /// CHECK: the attachment is as ADD left it. `prev` is the prevResult; it is empty if there is
    /// none and [`Plugin::checks_prev_result`] allows that.
    ///
    /// # Errors
    /// Code 103 with what differs.
    fn check(&self, _call: &Call, _prev: &CniResult) -> Result<(), Error> {
        Ok(())
    }

    /// GC: remove what belongs to attachments that aren't in `valid`. It isn't called without a
    /// list, which is not an empty list.
    ///
    /// # Errors
    /// After everything was tried, what could not be removed.
    fn gc(&self, _call: &Call, _valid: &[Attachment]) -> Result<(), Error> {
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

/// Runs a verb of `plugin` and gives it what it needs of the configuration. ADD's result is
/// dropped.
///
/// # Errors
/// The verb's, or code 7 for CHECK without a prevResult.
pub fn run(plugin: &dyn Plugin, call: &Call, command: Command) -> Result<(), Error> {
    let config = &call.config;
    match command {
        Command::Add => plugin.add(call).map(drop),
        Command::Del => plugin.del(call),
        Command::Check => match &config.prev_result {
            Some(prev) => plugin.check(call, prev),
            None if !plugin.checks_prev_result() => plugin.check(call, &CniResult::default()),
            None => Err(Error::config("Required prevResult missing")),
        },
        // No list is not an empty list: nothing may be cleaned.
        Command::Gc => match &config.valid_attachments {
            Some(valid) => plugin.gc(call, valid),
            None => Ok(()),
        },
        Command::Status => plugin.status(call),
        Command::Version => Ok(()),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
