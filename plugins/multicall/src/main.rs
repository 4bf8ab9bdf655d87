//! All plugins in one binary. It acts as the plugin whose name it was called by, so it is
//! installed once and hard-linked under each name; symbolic links and copies work too.

mod arena;

use std::process::ExitCode;

use cnimble::plugin::Plugin;

#[global_allocator]
static ALLOCATOR: arena::Arena = arena::Arena::new();

static PLUGINS: &[&dyn Plugin] = &[
    &cnimble_bandwidth::Bandwidth,
    &cnimble_bridge::Bridge,
    &cnimble_firewall::Firewall,
    &cnimble_host_local::HostLocal,
    &cnimble_loopback::Loopback,
    &cnimble_ptp::Ptp,
    &cnimble_portmap::Portmap,
    &cnimble_static::Static,
    &cnimble_tuning::Tuning,
];

fn main() -> ExitCode {
    cnimble::plugin::main(PLUGINS)
}
