//! The skeleton of a plugin. A plugin implements [`Plugin`], and [`main`] does the rest. It reads and validates every
//! parameter before it changes anything; only the log file is opened, or made, before that has ended. ADD and CHECK
//! refuse the plugin's own namespace (unless `CNI_NETNS_OVERRIDE` is set), and DEL goes on without one. It runs the
//! verb and prints the result or the error. It rolls back all changes when ADD fails, panics or is terminated.
//!
//! A verb has its parameters in a [`Call`]. ADD pushes on [`Call::undo`] how each change is taken back. [`delegate`] runs
//! an IPAM plugin, [`saved`] keeps values for DEL, and `testing` (a feature) tries the plugin against the kernel. [`cni`]
//! and [`netlink`] are the crates whose types are in signatures.
//!
//! This chained plugin adds an address to `lo` of the pod:
//!
//! ```no_run
//! use cnimble_plugin::cni::{CniResult, Code, Error, IpNetwork, cidr};
//! use cnimble_plugin::netlink::{Errno, NetNs, Netlink, Request, addr};
//! use cnimble_plugin::{Call, Plugin, Role};
//!
//! struct Service;
//!
//! impl Plugin for Service {
//!     fn name(&self) -> &'static str {
//!         "service"
//!     }
//!
//!     fn role(&self) -> Role {
//!         Role::Chained
//!     }
//!
//!     fn read_config(&self, call: &Call) -> Result<(), Error> {
//!         address(call).map(drop)
//!     }
//!
//!     fn add(&self, call: &Call) -> Result<CniResult, Error> {
//!         let (address, netns, result) = (address(call)?, call.open_netns()?, call.previous()?);
//!         call.step("add the address", || change(&netns, address, addr::add))?;
//!         call.undo.push("remove the address", move || Ok(change(&netns, address, addr::del)?));
//!         Ok(result.clone())
//!     }
//!
//!     fn del(&self, call: &Call) -> Result<(), Error> {
//!         // A pod that is gone has taken its address along.
//!         let Some(netns) = call.find_netns()? else { return Ok(()) };
//!         match change(&netns, address(call)?, addr::del) {
//!             Err(err) if !err.is(Errno::EADDRNOTAVAIL) => Err(err.into()),
//!             _ => Ok(()),
//!         }
//!     }
//! }
//!
//! fn address(call: &Call) -> Result<IpNetwork, Error> {
//!     let text = call.config.document()["address"].as_str().unwrap_or_default();
//!     cidr::parse_cidr(text).ok_or_else(|| Error::new(Code::INVALID_CONFIG, "address: no CIDR"))
//! }
//!
//! fn change(
//!     netns: &NetNs,
//!     address: IpNetwork,
//!     request: fn(u32, &str, IpNetwork) -> Request,
//! ) -> Result<(), cnimble_plugin::netlink::Error> {
//!     let mut netlink = Netlink::open_in(netns)?;
//!     let lo = netlink.link("lo")?.index;
//!     netlink.execute(request(lo, "lo", address))
//! }
//!
//! fn main() {
//!     std::process::exit(cnimble_plugin::main(&[&Service], std::env::args_os()));
//! }
//! ```

// Read `entry` first, which takes a process from its start to its exit, then `call` with the parameters of a verb,
// `interface`, `delegate` (IPAM) and `undo`. `wanted` is the state that CHECK verifies and the doctor restores.

#![warn(missing_docs)]

mod begun;
mod call;
pub mod delegate;
mod entry;
mod env;
// The parts that cnimble's own plugins and its doctor share. They may change with any version.
#[doc(hidden)]
pub mod interface;
mod log;
mod restrain;
pub mod saved;
mod start;
#[cfg(feature = "testing")]
pub mod testing;
mod undo;
mod wanted;

pub use call::Call;
pub use cnimble_os::child::signal;
pub use entry::main;
#[doc(hidden)]
pub use entry::main_like;
#[doc(hidden)]
pub use log::level_name;
pub use undo::Undo;
#[doc(hidden)]
pub use wanted::{Aim, Examination, Examined, Fault, Item, Place};

pub use cnimble_cni::{self as cni, Verb as Command};
pub use cnimble_netlink as netlink;
pub use cnimble_os::privileges::Caps;
#[doc(hidden)]
pub use cnimble_os::privileges::{Restraint, SETTING as RESTRAINT};

use std::ffi::OsString;

use cnimble_cni::{Attachment, CniResult, Error, Version};

/// The role of a plugin in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Makes the pod's interface. Runs first for ADD and last for DEL.
    Main,
    /// Works on the interface of another plugin.
    Chained,
    /// Does neither, such as an IPAM plugin.
    Helper,
}

/// A CNI plugin with its verbs. All verbs but ADD and DEL have a default that does nothing and succeeds.
pub trait Plugin: Sync {
    /// The name of the plugin: the `type` in a configuration, and the file in CNI_PATH.
    fn name(&self) -> &'static str;

    /// The versions that the plugin supports, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// The role of the plugin in a chain. DEL of [`Role::Main`] ends the departure of the attachment: from then on, the
    /// doctor of cnimble may treat what is left as a loss.
    fn role(&self) -> Role;

    /// The capabilities that its verbs need. The skeleton drops the others. The default is to enter namespaces and
    /// change links.
    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    /// Returns true if the verb may start a program other than that of `ipam.type`. Such a program needs its own
    /// privileges, so the plugin keeps more of them.
    fn starts_programs(&self, _call: &Call) -> bool {
        false
    }

    /// Reads the configuration as ADD does, and discards it. Fuzzers call it.
    ///
    /// # Errors
    /// Fails as ADD does: with code 7, or 4 if CNI_ARGS is invalid.
    fn read_config(&self, call: &Call) -> Result<(), Error>;

    /// Implements ADD: connects the container. Steps that change something push their undo on [`Call::undo`], which the
    /// skeleton runs after any failure.
    ///
    /// # Errors
    /// Fails with the reason and a code of the specification.
    fn add(&self, call: &Call) -> Result<CniResult, Error>;

    /// Implements DEL: removes everything that ADD made for the attachment. Succeeds if nothing is left to remove.
    ///
    /// # Errors
    /// Fails only if something remains that could not be removed.
    fn del(&self, call: &Call) -> Result<(), Error>;

    /// Returns true if and only if this IPAM plugin needs the pod's interface for DEL. DEL is then called twice: before
    /// and after the removal of the interface.
    fn needs_interface_for_del(&self) -> bool {
        false
    }

    /// Runs the plugin as a program with arguments, which no runtime passes. Returns the exit status, or `None` if
    /// these arguments are unknown.
    fn program(&self, _args: &[OsString]) -> Option<i32> {
        None
    }

    /// Returns true if and only if CHECK is refused without a prevResult.
    fn checks_prev_result(&self) -> bool {
        true
    }

    /// Implements CHECK: the attachment is as ADD left it. `prev` is the prevResult. It is empty if there is none and
    /// [`Plugin::checks_prev_result`] allows that.
    ///
    /// # Errors
    /// Fails with code 103 and the difference.
    fn check(&self, _call: &Call, _prev: &CniResult) -> Result<(), Error> {
        Ok(())
    }

    /// Implements GC: removes everything of attachments that are not in `valid`. It is not called without a list. A
    /// missing list differs from an empty one.
    ///
    /// # Errors
    /// Fails after everything was tried, with everything that could not be removed.
    fn gc(&self, _call: &Call, _valid: &[Attachment]) -> Result<(), Error> {
        Ok(())
    }

    /// Implements STATUS: whether ADD could succeed now.
    ///
    /// # Errors
    /// Fails with code 50 or 51 and the reason. Fails as [`read_config`](Self::read_config) does if the configuration is
    /// invalid.
    fn status(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs a verb of `plugin` with the parts of the configuration that it needs. The result of ADD is dropped.
///
/// # Errors
/// Returns the error of the verb.
///
/// CHECK without a prevResult fails with code 7, unless the plugin can do without one
/// ([`Plugin::checks_prev_result`]). GC without a list of valid attachments does nothing.
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
        // A missing list is not an empty list, so nothing is removed.
        Command::Gc => match &config.valid_attachments {
            Some(valid) => plugin.gc(call, valid),
            None => Ok(()),
        },
        Command::Status => plugin.status(call),
        // VERSION is answered without a configuration.
        _ => Ok(()),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
