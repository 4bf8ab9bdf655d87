//! The harness of the tests: nodes and pods in network namespaces, plugin calls, and snapshots of
//! everything that a plugin may change.
//!
//! A [`Host`] is a network namespace that stands for a node, and a [`Pod`] one that stands for a
//! pod. Only a file descriptor holds them, so they end with the test, also after a panic or a
//! kill. Nothing of the machine changes. Each test has its own hosts and directories, so tests can
//! run in parallel.
//!
//! The plugins under test are those of this workspace, or those in the directory that
//! `CNIMBLE_PLUGIN_DIR` names.
// This library is test code throughout: it stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod apiserver;
pub mod configs;
pub mod containerd;
#[cfg(feature = "cri")]
mod cri;
mod crowd;
mod firewalld;
mod host;
pub mod http;
mod lan;
mod message_bus;
mod network;
mod node;
mod ns;
mod outcome;
mod plugins;
mod podman;
mod process;
pub mod proxy;
mod sample;
pub mod sctp;
pub mod segment;
mod silence;
mod skip;
mod snapshot;
pub mod stream;
mod stress;
#[cfg(feature = "tls")]
pub mod tls;
pub mod trace;
pub mod traffic;
pub mod vm;

#[cfg(feature = "cri")]
pub use cri::Cri;
pub use crowd::{Company, Crowd};
pub use firewalld::Firewalld;
pub use host::{Call, Host, seclude_thread};
pub use lan::Lan;
pub use message_bus::MessageBus;
pub use network::{Attachment, Network};
pub use node::Node;
pub use ns::{Ns, Pod};
pub use outcome::Outcome;
pub use plugins::{command, go_plugins, go_to_meet, plugin_dir, recent_go_to_meet};
pub use podman::Podman;
pub use process::{Background, LIMIT, copy, run_beside, run_limited, script};
pub use sample::{Place, Role, Sample};
pub use silence::{keep_silent, silence};
pub use skip::{announce, missing};
pub use snapshot::{Snapshot, leases};
pub use stress::sample_size;

/// A container's program: it idles until SIGTERM.
pub const PAUSE: &str = "trap 'exit 0' TERM; sleep 1000000 & wait";

/// A name that no other test in this process has: `stem` and a number.
pub fn unique(stem: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The name of a cgroup that no other process on the machine has. Tests see the machine's cgroups, but count processes in
/// a namespace.
pub fn cgroup_name(stem: &str) -> String {
    use std::os::unix::fs::MetadataExt;
    let processes = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    format!("cnimble-{stem}-{processes}-{}", std::process::id())
}

/// The limit of a wait for an event, such as the start of a daemon, in seconds. Only a failing test waits so long, so this
/// is more than the busiest machine needs.
pub const PATIENCE: f32 = 120.0;

/// Asks `done` again and again for at most `seconds`; whether it ever said yes.
pub fn wait_until(seconds: f32, mut done: impl FnMut() -> bool) -> bool {
    let end = std::time::Instant::now() + std::time::Duration::from_secs_f32(seconds);
    loop {
        if done() {
            return true;
        }
        if std::time::Instant::now() > end {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
