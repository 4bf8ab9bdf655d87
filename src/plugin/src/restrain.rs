//! What a verb gives up once its parameters are read.

use std::path::Path;

use cnimble_restraint::{Caps, Level, Restraint};

use super::delegate::{self, Delegate};
use super::interface::arp;
use super::{Call, Command, Plugin};

/// The directories where a runtime mounts namespaces, which are no links to a process's.
const MOUNTED: [&str; 2] = ["/run/netns/", "/var/run/netns/"];

/// Gives up what `plugin` doesn't need for the verb of `call`, nor its IPAM plugin.
pub(super) fn restrain(plugin: &dyn Plugin, call: &Call) {
    let level = Level::chosen();
    if level != Level::Off {
        restraint(plugin, call).apply(level);
    }
}

fn restraint(plugin: &dyn Plugin, call: &Call) -> Restraint {
    let mut keep = plugin.needs().and(Caps::DAC_OVERRIDE);
    let mut starts_programs = plugin.starts_programs(call);
    let ipam = call.config.ipam_type.as_str();
    if !ipam.is_empty() && ipam != plugin.name() {
        match delegate::resolve(call, ipam) {
            Ok(Delegate::Here(other)) => {
                keep = keep.and(other.needs());
                starts_programs |= other.starts_programs(call);
            }
            Ok(Delegate::File(_)) => starts_programs = true,
            // The verb meets the error itself, if it asks for the plugin.
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

/// Whether files of another process in /proc may have to be opened: the pod's namespace, or those of process 1,
/// which is asked whether it reaps.
fn looks_at_processes(call: &Call) -> bool {
    match call.command {
        Command::Del | Command::Gc => true,
        Command::Add | Command::Check => {
            let is_mounted = MOUNTED.iter().any(|directory| call.netns.starts_with(directory))
                && Path::new(&call.netns).symlink_metadata().is_ok_and(|meta| !meta.is_symlink());
            !is_mounted
        }
        Command::Status | Command::Version => false,
    }
}
