//! The invoker of the plugins, and the places of its records and locks.

use std::time::Duration;

use cnimble_runtime::locks::{self, Locks};
use cnimble_runtime::{DEFAULT_CACHE_DIR, Invoker};

use crate::options::Options;
use crate::rootless;

/// The limit for the plugins of one call. netavark holds a lock while a container is set up, so other containers wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns the invoker for a network with these options. Records of root's containers are where libcni keeps them, so
/// that the command `cnimble` finds them.
pub fn invoker(network: Options<'_>) -> Invoker {
    Invoker::new(network.plugin_dirs())
        .with_cache_dir(rootless::records().unwrap_or_else(|| DEFAULT_CACHE_DIR.into()))
        .with_locks(Locks::new(locks::DEFAULT_DIR))
        .with_operation_limit(LIMIT)
}
