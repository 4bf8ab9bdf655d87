//! All code that reads bytes from outside, as functions that take any bytes.
//!
//! `fuzz/` runs them under libFuzzer, for hours. `tests/mutated.rs` changes the corpus in a simple loop, for seconds
//! and on any toolchain. A target fails by panicking: in the code under test, or in a check of its result.
// A target that finds a fault stops at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod lint;
mod nodes;
mod spec;

pub use cnimble_dhcp::fuzzing::{dhcp, dhcp6};
pub use cnimble_doctor::fuzzing::doctor;
pub use cnimble_leases::fuzzing::index;
pub use cnimble_netlink::fuzzing::{nft, route};
pub use cnimble_os::dbus::fuzz as dbus;
pub use cnimble_pod::fuzzing::{checkpoint, kubeconfig, manifest, server};
pub use cnimble_rules::fuzzing::iptables;
pub use cnimble_runtime::fuzzing::cache;
pub use cnimble_tuning::fuzzing::backup;
pub use lint::lint;
pub use nodes::nodes;
pub use spec::{args, config, list, result};

/// Parses a resolv.conf, as a network's configuration names it and as pods inherit it.
pub fn resolv(bytes: &[u8]) {
    cnimble_host_local::fuzzing::resolv(bytes);
    cnimble_pod::fuzzing::resolv(bytes);
}

/// Parses the files of a network's directory.
pub fn lease(bytes: &[u8]) {
    cnimble_leases::fuzzing::lease(bytes);
    cnimble_host_local::fuzzing::kept(bytes);
}

/// A target: its name, which is also its directory in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, by name.
pub const TARGETS: &[Target] = &[
    ("args", args),
    ("backup", backup),
    ("cache", cache),
    ("checkpoint", checkpoint),
    ("config", config),
    ("dbus", dbus),
    ("dhcp", dhcp),
    ("dhcp6", dhcp6),
    ("doctor", doctor),
    ("index", index),
    ("iptables", iptables),
    ("kubeconfig", kubeconfig),
    ("lease", lease),
    ("lint", lint),
    ("list", list),
    ("manifest", manifest),
    ("nft", nft),
    ("nodes", nodes),
    ("resolv", resolv),
    ("result", result),
    ("route", route),
    ("server", server),
];
