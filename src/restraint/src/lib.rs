//! Drops capabilities, new privileges of started programs, and system calls.
//!
//! A step that the kernel refuses is left out. A restraint makes nothing fail that went well without it; only
//! [`Level::Strict`], which an administrator has to choose, refuses system calls.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod calls;
/// No filter is known for other architectures, and not all of them have every call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls {
    use std::ffi::c_long;

    pub(super) const ALWAYS: &[c_long] = &[];
    pub(super) const OLDER: &[c_long] = &[];
    pub(super) const WITH_SYS_ADMIN: &[c_long] = &[];
}
mod caps;
mod filter;

pub use caps::Caps;

use nix::errno::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// The variable that chooses the level.
pub const SETTING: &str = "CNIMBLE_RESTRAINT";

/// How much is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Drops nothing at all.
    Off,
    /// Capabilities, and new privileges.
    Usual,
    /// System calls that aren't in the list are logged by the kernel, and made.
    Log,
    /// They are refused (EPERM).
    Strict,
}

impl Level {
    /// The level that `CNIMBLE_RESTRAINT` names.
    pub fn chosen() -> Self {
        let Some(value) = std::env::var_os(SETTING) else { return Level::Usual };
        match value.to_str().unwrap_or_default() {
            "" => Level::Usual,
            "off" => Level::Off,
            "log" => Level::Log,
            "strict" => Level::Strict,
            _ => {
                log::warn!("{SETTING}={} is none of off, log, strict; ignored", value.to_string_lossy());
                Level::Usual
            }
        }
    }
}

/// The needs of a process from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restraint {
    /// The capabilities that it keeps, as far as it has them.
    pub keep: Caps,
    /// Whether it may start a program, which needs more than it does. Such a process can't give up privileges of
    /// new programs, nor system calls.
    pub starts_programs: bool,
}

impl Restraint {
    /// Gives up the rest, for good. To be called while there is one thread.
    pub fn apply(self, level: Level) {
        if level == Level::Off {
            return;
        }
        // A program of root's gets its capabilities back with execve(2); nobody else's does.
        if self.starts_programs && !nix::unistd::geteuid().is_root() {
            return;
        }
        let alone = !self.starts_programs
            && match set_no_new_privs(true) {
                Ok(()) => true,
                Err(err) => {
                    log::debug!("new privileges stay possible: {err}");
                    false
                }
            };
        if let Err(errno) = limit(self.keep) {
            log::debug!("all capabilities stay: {}", errno.desc());
        }
        if alone {
            filter::install(level, self.keep);
        }
    }
}

/// Gives up all capabilities but these.
fn limit(keep: Caps) -> Result<(), Errno> {
    let sets = |held: CapabilitySet| CapabilitySets {
        effective: held,
        permitted: held,
        inheritable: CapabilitySet::empty(),
    };
    let keep = CapabilitySet::from_bits_retain(keep.bits());
    let failed = |err: rustix::io::Errno| Errno::from_raw(err.raw_os_error());
    match set_capabilities(None, sets(keep)) {
        // A caller has taken some of them away before.
        Err(rustix::io::Errno::PERM) => {
            let own = rustix::thread::capabilities(None).map_err(failed)?;
            set_capabilities(None, sets(keep & own.permitted)).map_err(failed)
        }
        outcome => outcome.map_err(failed),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
