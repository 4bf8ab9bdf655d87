//! libcni in Rust: attaches containers to networks by running plugins in a chain.
//!
//! A [`ConfDir`] finds networks, an [`Invoker`] runs their plugins, and a [`Cache`] keeps
//! what ADD returned until DEL. Files, formats and environment are libcni's, so that both
//! can work on one host and take over from each other. Two things differ on purpose:
//!
//! - An ADD that fails in the middle of the chain is followed by DEL of what was run.
//! - A DEL goes on past a plugin that fails, and reports all failures.
//!
//! Everything is async on tokio, without global state. An ADD whose future is dropped is undone ([`Invoker::add`]).
//! Dropping any other future kills the plugin that it waits for, with its process group, and starts no other.
//!
//! Nothing but the cache is written. [`Invoker::with_locks`] adds locks between processes, in a directory of files.
//!
//! Here a shell script is the plugin, so that the example runs anywhere:
//!
//! ```
//! use std::os::unix::fs::PermissionsExt;
//! use cnimble_runtime::cni::serde_json::json;
//! use cnimble_runtime::{Attach, ConfDir, Invoker};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! std::fs::write(dir.join("10-net.conflist"), r#"{
//!     "cniVersion": "1.0.0", "name": "podnet",
//!     "plugins": [{"type": "fixed", "capabilities": {"portMappings": true}}]
//! }"#)?;
//! std::fs::write(dir.join("fixed"), r#"#!/bin/sh
//!     case $CNI_COMMAND in
//!     ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}' ;;
//!     VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
//!     esac
//! "#)?;
//! std::fs::set_permissions(dir.join("fixed"), std::fs::Permissions::from_mode(0o755))?;
//!
//! let network = ConfDir::new(dir).load("podnet")?;
//! let invoker = Invoker::new([dir]).with_cache_dir(dir.join("cache"));
//! let attach = Attach::new("c0ffee", "/run/netns/blue", "eth0")
//!     .arg("IgnoreUnknown", "1")
//!     .capability("portMappings", json!([{"hostPort": 8080, "containerPort": 80}]));
//!
//! let runtime = tokio::runtime::Runtime::new()?;
//! runtime.block_on(async {
//!     assert_eq!(invoker.validate(&network).await?, ["portMappings"]);
//!     invoker.status(&network).await?;
//!     let added = invoker.add(&network, &attach).await?;
//!     assert_eq!(added.result.ips[0].address.to_string(), "10.1.2.3/24");
//!     invoker.check(&network, &attach).await?;
//!     let known = invoker.cache().list_of("c0ffee")?;
//!     assert_eq!(known[0].cni_result()?, Some(added.result));
//!     invoker.del(&network, &attach).await?;
//!     // Nothing is valid: removes what other callers have left.
//!     invoker.gc(&network, Some(&[])).await?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! })?;
//! # Ok(())
//! # }
//! ```

// ADD, CHECK and DEL of a chain are in `chain`, and GC and STATUS in `gc`. `exec` runs one plugin once.

#![warn(missing_docs)]

mod abandoned;
mod cache;
mod cached_del;
mod chain;
mod conf;
mod error;
mod exec;
mod find;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gc;
mod locking;
pub mod locks;
mod observe;
mod recorded;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod validate;
mod versions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use cnimble_cni::{self as cni, Verb};

pub use chain::{Added, inlined_config};

/// The usual directory of networks. It is that of cnitool, the kubelet's runtimes and podman.
pub const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";
/// The usual directories of plugins, separated by colons: that of the CNI project, and Debian's.
pub const DEFAULT_CNI_PATH: &str = "/opt/cni/bin:/usr/lib/cni";

pub use cache::{Cache, DEFAULT_DIR as DEFAULT_CACHE_DIR, Entry, Key, Lookup};
pub use conf::{ConfDir, Listing, Network, load_file};
pub use error::{CacheError, ConfError, Error, Failure, Failures, PluginError};
pub use exec::{Deadline, Execute, Executed, Invocation, Stderr};
pub use find::{all as all_plugins, find_plugin};
pub use locking::Alone;
pub use observe::{Execution, Observer};
pub use versions::Versions;

use cnimble_cni::{Attachment, Code, names};

use abandoned::Abandoned;
use exec::Exec;
use locks::Locks;

/// One attachment of a container to a network: libcni's RuntimeConf.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Attach {
    /// The container's ID. It has letters, digits, `_`, `.` and `-`, and begins with a letter or digit.
    pub container_id: String,
    /// The path of its network namespace. May be empty for DEL.
    pub netns: String,
    /// The interface to make in it, 1 to 15 bytes.
    pub ifname: String,
    /// The pairs of CNI_ARGS. Neither part may contain `=` or `;`.
    pub args: Vec<(String, String)>,
    /// Capability arguments. Each plugin gets those of its declared capabilities as `runtimeConfig`.
    pub capability_args: Map<String, Value>,
    /// Variables for the environment of the plugins, such as TRACEPARENT. The cache doesn't keep them, so a DEL from
    /// the cache has none.
    pub env: Vec<(String, String)>,
}

impl Attach {
    /// Describes an attachment without arguments. `netns` is a path of UTF-8, because the cache is JSON. Other bytes of
    /// it are replaced, so that no plugin finds the namespace.
    pub fn new(container_id: impl Into<String>, netns: impl AsRef<Path>, ifname: impl Into<String>) -> Self {
        Attach {
            container_id: container_id.into(),
            netns: netns.as_ref().to_string_lossy().into_owned(),
            ifname: ifname.into(),
            ..Attach::default()
        }
    }

    /// Adds a pair to CNI_ARGS.
    #[must_use]
    pub fn arg(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.args.push((key.into(), value.into()));
        self
    }

    /// Adds a capability argument, or replaces it. `cnimble_runtime::cni::serde_json` makes values, so a caller needs no
    /// crate of its own for them.
    #[must_use]
    pub fn capability(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.capability_args.insert(name.into(), value.into());
        self
    }

    /// Adds a variable to the environment of the plugins, where it replaces an inherited one. Traces of OpenTelemetry
    /// continue in the plugins by TRACEPARENT, TRACESTATE and BAGGAGE. An operation fails if a name begins with `CNI_`,
    /// because the invoker sets these.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Returns the attachment of a cache entry, with its recorded arguments.
    pub fn from_entry(entry: &Entry) -> Self {
        Attach {
            container_id: entry.container_id.clone(),
            netns: entry.namespace().unwrap_or_default().to_owned(),
            ifname: entry.ifname.clone(),
            args: entry.args.clone(),
            capability_args: entry.capability_args.clone(),
            env: Vec::new(),
        }
    }

    /// Returns the attachment in the form of the specification, for [`Invoker::gc`].
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }

    /// Returns the key of this attachment's entry in the cache.
    pub fn key<'a>(&'a self, network: &'a str) -> Key<'a> {
        Key { network, container_id: &self.container_id, ifname: &self.ifname }
    }
}

/// Runs the plugins of networks. It is cheap to clone, and any number of tasks may use it. The caller must not run two
/// operations on the *same* attachment at the same time (specification).
#[derive(Debug, Clone)]
pub struct Invoker {
    path: Vec<PathBuf>,
    cache: Cache,
    exec: Exec,
    operation_limit: Option<Duration>,
    locks: Option<Locks>,
    abandoned: Abandoned,
    by_record: bool,
}

impl Invoker {
    /// Looks for plugins in these directories, in order (CNI_PATH). Its cache is `/var/lib/cni`, as libcni's. There is
    /// no time limit and no lock, and plugins inherit stderr.
    pub fn new<P: Into<PathBuf>>(path: impl IntoIterator<Item = P>) -> Self {
        Invoker {
            path: path.into_iter().map(Into::into).collect(),
            cache: Cache::new(DEFAULT_CACHE_DIR),
            exec: Exec::default(),
            operation_limit: None,
            locks: None,
            abandoned: Abandoned::default(),
            by_record: true,
        }
    }

    /// Looks for plugins in these directories instead.
    #[must_use]
    pub fn with_path<P: Into<PathBuf>>(mut self, path: impl IntoIterator<Item = P>) -> Self {
        self.path = path.into_iter().map(Into::into).collect();
        self
    }

    /// Keeps results under `dir` instead.
    #[must_use]
    pub fn with_cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache = Cache::new(dir);
        self
    }

    /// Stops each execution of a plugin that takes longer than `limit`.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.exec.limit = Some(limit);
        self
    }

    /// Limits each operation on a network. `limit` after its begin the running plugin is stopped, and no other one is
    /// started. The undo of a failed ADD counts as an operation of its own.
    #[must_use]
    pub fn with_operation_limit(mut self, limit: Duration) -> Self {
        self.operation_limit = Some(limit);
        self
    }

    /// Sends the plugins' stderr elsewhere.
    #[must_use]
    pub fn with_stderr(mut self, stderr: Stderr) -> Self {
        self.exec.stderr = stderr;
        self
    }

    /// Calls this observer after each execution of a plugin.
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.exec.observer = Some(observer);
        self
    }

    /// Executes plugins by `executor`, for example in a sandbox. The executor then limits the plugins' output itself.
    #[must_use]
    pub fn with_executor(mut self, executor: impl Execute + 'static) -> Self {
        self.exec.executor = Some(Arc::new(executor));
        self
    }

    /// Takes these locks for operations on networks. Without them an operation is as safe beside a clean-up by cnimble
    /// as that of any other runtime, by the evidence that a running ADD leaves.
    #[must_use]
    pub fn with_locks(mut self, locks: Locks) -> Self {
        self.locks = Some(locks);
        self
    }

    /// Returns the directories of the plugins.
    pub fn path(&self) -> &[PathBuf] {
        &self.path
    }

    /// Returns the cache of results.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Sets one deadline for all operations together. At the deadline the running plugin is stopped. From then on no
    /// plugin is started, not even to undo an ADD. The limit of [`Invoker::with_operation_limit`] still holds.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.exec.deadline = Some(deadline);
        self
    }

    /// Returns an invoker for an operation that begins now, with the earlier of its two deadlines.
    fn begin(&self) -> Self {
        let mut this = self.clone();
        let own = self.operation_limit.map(Deadline::after);
        this.exec.deadline = own.into_iter().chain(self.exec.deadline).min_by_key(|deadline| deadline.at);
        this
    }

    /// Asks the plugin of this type for the versions that it supports (VERSION).
    ///
    /// # Errors
    /// Fails if CNI_PATH has no such plugin, or if it gives no usable answer.
    pub async fn versions(&self, plugin: &str) -> Result<Versions, PluginError> {
        self.versions_of(&find_plugin(plugin, &self.path)?).await
    }

    /// Asks the plugin in this file for the versions that it supports (VERSION).
    ///
    /// # Errors
    /// Fails if the plugin can't be run, or gives no usable answer.
    pub async fn versions_of(&self, file: &Path) -> Result<Versions, PluginError> {
        versions::versions(&self.exec, file, &self.path).await
    }
}

/// Refuses names that would lead to other files, names that plugins refuse anyway, and arguments or variables that
/// can't be passed on.
fn check_names(network: &str, attach: &Attach) -> Result<(), Error> {
    let bad = |code, text: String| Err(Error::Parameter(cni::Error::new(code, text)));
    if !names::is_identifier(network) {
        return bad(Code::INVALID_CONFIG, format!("invalid network name \"{}\"", network.escape_debug()));
    }
    if !names::is_identifier(&attach.container_id) {
        return bad(
            Code::INVALID_ENVIRONMENT,
            format!("invalid container ID \"{}\"", attach.container_id.escape_debug()),
        );
    }
    if let Some(problem) = names::interface_problem(&attach.ifname) {
        return bad(Code::INVALID_ENVIRONMENT, format!("\"{}\": {problem}", attach.ifname.escape_debug()));
    }
    for (key, value) in &attach.args {
        if key.is_empty() || key.contains(['=', ';', '\0']) || value.contains(['=', ';', '\0']) {
            return bad(
                Code::INVALID_ENVIRONMENT,
                format!("CNI_ARGS: invalid pair \"{}={}\"", key.escape_debug(), value.escape_debug()),
            );
        }
    }
    for (key, value) in &attach.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') || key.starts_with("CNI_") {
            return bad(
                Code::INVALID_ENVIRONMENT,
                format!("invalid variable \"{}\" for the plugins", key.escape_debug()),
            );
        }
    }
    Ok(())
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
