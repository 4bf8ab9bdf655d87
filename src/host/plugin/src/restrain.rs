//! Drops the privileges that a verb does not need, once its parameters are read.

use std::path::Path;

use cnimble_os::privileges::{Caps, Restraint};

use super::delegate::{self, Delegate};
use super::interface::arp;
use super::{Call, Command, Plugin};

/// The directories in which runtimes mount namespaces. A path there is no link to the namespace of a process.
const MOUNTED: [&str; 2] = ["/run/netns/", "/var/run/netns/"];

/// Drops the privileges that neither `plugin` nor its IPAM plugin needs for the verb of `call`.
pub(super) fn restrain(plugin: &dyn Plugin, call: &Call) {
    restraint(plugin, call).apply();
}

/// Returns the privileges to keep.
fn restraint(plugin: &dyn Plugin, call: &Call) -> Restraint {
    let mut keep = plugin.needs().and(Caps::DAC_OVERRIDE);
    let mut starts_programs = plugin.starts_programs(call);
    if let Some(ipam) = call.config.ipam().filter(|ipam| *ipam != plugin.name()) {
        match delegate::resolve(call, ipam) {
            Ok(Delegate::Here(other)) => {
                keep = keep.and(other.needs());
                starts_programs |= other.starts_programs(call);
            }
            Ok(Delegate::File(_)) => starts_programs = true,
            // The verb finds the same error, if it calls the plugin.
            Err(_) => {}
        }
    }
    if call.command == Command::Add && arp::is_wanted(&call.config).unwrap_or_default() {
        keep = keep.and(Caps::NET_RAW);
    }
    if looks_at_processes(call) {
        keep = keep.and(Caps::SYS_PTRACE);
    }
    Restraint { keep, starts_programs }
}

/// Returns whether the verb may read files of other processes in /proc. These are the pod's namespace, and files of
/// process 1 that show whether it reaps.
fn looks_at_processes(call: &Call) -> bool {
    match call.command {
        Command::Del | Command::Gc => true,
        Command::Add | Command::Check => {
            let is_mounted = MOUNTED.iter().any(|directory| call.netns.starts_with(directory))
                && Path::new(&call.netns).symlink_metadata().is_ok_and(|meta| !meta.is_symlink());
            !is_mounted
        }
        _ => false,
    }
}
