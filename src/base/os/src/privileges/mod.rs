//! Drops capabilities, new privileges of started programs, and system calls. A step that the kernel refuses is skipped.
//! A restraint makes nothing fail that would succeed without it, but for [`Level::Strict`], which an administrator must
//! choose.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod calls;
/// No filter is known for other architectures.
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

/// The environment variable with the level.
pub const SETTING: &str = "CNIMBLE_RESTRAINT";

/// The level of restraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Drops nothing at all.
    Off,
    /// Drops capabilities and new privileges.
    Usual,
    /// The kernel logs system calls that are not in the list, but allows them.
    Log,
    /// The kernel refuses such system calls (EPERM).
    Strict,
}

impl Level {
    /// Returns the level in `CNIMBLE_RESTRAINT`.
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

/// The privileges that a process needs from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restraint {
    /// The capabilities that the process keeps, if it has them.
    pub keep: Caps,
    /// Whether it may start a program that needs more privileges. Such a process can drop neither the privileges of new
    /// programs nor system calls.
    pub starts_programs: bool,
}

impl Restraint {
    /// Drops all other privileges permanently. The process must have only one thread.
    pub fn apply(self, level: Level) {
        if level == Level::Off {
            return;
        }
        // A program of root gets its capabilities back with execve(2). A program of another user does not.
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

/// Drops all capabilities except these.
fn limit(keep: Caps) -> Result<(), Errno> {
    let sets = |held: CapabilitySet| CapabilitySets {
        effective: held,
        permitted: held,
        inheritable: CapabilitySet::empty(),
    };
    let keep = CapabilitySet::from_bits_retain(keep.bits());
    let failed = |err: rustix::io::Errno| Errno::from_raw(err.raw_os_error());
    match set_capabilities(None, sets(keep)) {
        // A caller has already dropped some of them.
        Err(rustix::io::Errno::PERM) => {
            let own = rustix::thread::capabilities(None).map_err(failed)?;
            set_capabilities(None, sets(keep & own.permitted)).map_err(failed)
        }
        outcome => outcome.map_err(failed),
    }
}
