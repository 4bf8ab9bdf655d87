//! Drops capabilities, and new privileges of started programs. A step that the kernel refuses is skipped, and nothing
//! fails that would succeed without it.

mod caps;

pub use caps::Caps;

use nix::errno::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// The environment variable that keeps all privileges, with the value `off`.
pub const SETTING: &str = "CNIMBLE_RESTRAINT";

fn is_off() -> bool {
    let Some(value) = std::env::var_os(SETTING) else { return false };
    if !value.is_empty() && value != "off" {
        log::warn!("{SETTING}={} isn't off; ignored", value.to_string_lossy());
    }
    value == "off"
}

/// The privileges that a process needs from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restraint {
    /// The capabilities that the process keeps, if it has them.
    pub keep: Caps,
    /// Whether it may start a program that needs more privileges, which such a process can't drop.
    pub starts_programs: bool,
}

impl Restraint {
    /// Drops all other privileges permanently. The process must have only one thread.
    pub fn apply(self) {
        // A program of root gets its capabilities back with execve(2). A program of another user does not.
        if is_off() || self.starts_programs && !nix::unistd::geteuid().is_root() {
            return;
        }
        if !self.starts_programs
            && let Err(err) = set_no_new_privs(true)
        {
            log::debug!("new privileges stay possible: {err}");
        }
        if let Err(errno) = limit(self.keep) {
            log::debug!("all capabilities stay: {}", errno.desc());
        }
    }
}

/// Drops all capabilities except these.
fn limit(keep: Caps) -> Result<(), Errno> {
    limit_to(CapabilitySet::from_bits_retain(keep.bits())).map_err(|err| Errno::from_raw(err.raw_os_error()))
}

/// Drops all capabilities except those of `keep` that the thread has.
fn limit_to(keep: CapabilitySet) -> rustix::io::Result<()> {
    match set_capabilities(None, sets_of(keep)) {
        // A caller has already dropped some of them.
        Err(rustix::io::Errno::PERM) => {
            let own = rustix::thread::capabilities(None)?;
            set_capabilities(None, sets_of(keep & own.permitted))
        }
        outcome => outcome,
    }
}

/// Returns the sets of a thread that holds these capabilities and gives none to programs that it executes.
fn sets_of(held: CapabilitySet) -> CapabilitySets {
    CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() }
}
