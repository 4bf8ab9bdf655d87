//! Sandboxes. Each has a network namespace, a network, a resolv.conf and a record on disk. A bind mount pins the
//! namespace, so a process is optional. The record ([`Sandbox`]) is written first and holds the progress. So every
//! sandbox can be taken down after a crash, a kill or a reboot. Records are in `STATE/sandboxes`, pins in `RUN/netns`,
//! resolv.conf files in `RUN/pods/ID`, and locks in `RUN/locks`. Records must survive a reboot, and hold the ID of
//! their boot. Processes may share these directories, one at a time for a pod.

mod checkpoint;
mod config;
mod create;
mod dns;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod inspect;
pub(crate) mod links;
mod manifest;
mod netns;
mod process;
mod run;
mod settle;
mod stop;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cnimble_cni::hash::hex;
use cnimble_leases::boot;
use cnimble_runtime::locks::{FileLock, LockMode, Wait, private_dir};

use super::PodId;
use super::network::NetworkPlugin;
use super::network::locks::{Guard, Locks};
use checkpoint::{RecordDirectory, make_dir};
use error::Causes;

pub use checkpoint::Listing;
pub(crate) use checkpoint::Pods;
pub use config::{PauseProcess, Sandbox, SandboxConfig, SandboxState};
pub use dns::DnsOptions;
pub use error::{Cause, SandboxError, SandboxOperation};
pub use inspect::{Fault, SandboxStatus};
pub use process::PauseCommand;

/// How long to wait for other processes. A set-up and its undo may each take the time limit of an operation.
const LOCK_LIMIT: Duration = Duration::from_secs(2 * super::network::OPERATION_LIMIT.as_secs());

/// The options of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOptions {
    /// The directory of records, usually `/var/lib/cnimble`. It must survive a reboot.
    pub state_dir: PathBuf,
    /// The directory of namespaces, resolv.conf files and locks, usually `/run/cnimble`.
    pub run_dir: PathBuf,
    /// The program that idles in each namespace. `None` starts none.
    pub pause: Option<PauseCommand>,
    /// The parent of the pods' control groups. Plugins get `<root>/pod<UID>`, which is not created.
    pub cgroup_root: Option<String>,
}

impl SandboxOptions {
    /// Returns options with these directories, without processes and control groups.
    pub fn new(state_dir: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> Self {
        SandboxOptions {
            state_dir: state_dir.into(),
            run_dir: run_dir.into(),
            pause: None,
            cgroup_root: None,
        }
    }

    fn netns_dir(&self) -> PathBuf {
        self.run_dir.join("netns")
    }

    fn pods_dir(&self) -> PathBuf {
        self.run_dir.join("pods")
    }

    fn locks_dir(&self) -> PathBuf {
        self.run_dir.join("locks")
    }
}

/// The sandboxes of one state directory. It is cheap to clone, and all clones share one state.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: SandboxOptions,
    store: RecordDirectory,
    network: NetworkPlugin,
    boot_id: String,
    pods: Locks<PodId>,
}

/// The lock of one pod, in this process and among all processes. The fields are dropped in this order.
#[derive(Debug)]
struct PodLock {
    _among_processes: FileLock,
    _not_everything: FileLock,
    _in_process: Guard<PodId>,
}

impl Sandboxes {
    /// Opens the sandboxes, and makes the directories if need be.
    pub async fn open(options: SandboxOptions, network: NetworkPlugin) -> Result<Self, SandboxError> {
        for dir in [options.netns_dir(), options.pods_dir()] {
            make_dir(&dir, 0o755)?;
        }
        private_dir(&options.locks_dir()).map_err(Cause::from)?;
        let store = RecordDirectory::open(options.state_dir.join("sandboxes"))?;
        let inner = Inner { options, store, network, boot_id: boot_id()?, pods: Locks::default() };
        Ok(Sandboxes { inner: Arc::new(inner) })
    }

    /// Returns the layer that runs the plugins.
    pub fn network(&self) -> &NetworkPlugin {
        &self.inner.network
    }

    /// Reads the records of all sandboxes. The unreadable ones are in [`Listing::problems`].
    pub fn list(&self) -> Result<Listing, SandboxError> {
        Ok(self.inner.store.list()?)
    }

    /// Returns the pods of all `wanted` records. `wanted` must be the same in every call, because each record is read
    /// only once.
    pub(crate) fn pods(&self, wanted: impl Fn(&Sandbox) -> bool) -> Result<Pods, SandboxError> {
        Ok(self.inner.store.pods(wanted)?)
    }

    /// Returns the newest of a pod's sandboxes, in any state. It returns `None` if it has none. An unreadable record
    /// counts as unfinished.
    pub fn find(&self, pod: &PodId) -> Result<Option<Sandbox>, SandboxError> {
        Ok(self.inner.store.of_pod(pod)?.pop())
    }

    /// Returns the sandbox with this complete ID, or `None` if there is none. Fails if its record can't be read.
    pub fn get(&self, id: &str) -> Result<Option<Sandbox>, SandboxError> {
        Ok(self.inner.store.get(id)?)
    }

    /// Returns the IDs that begin with `prefix`, without reading the records.
    pub fn ids_beginning(&self, prefix: &str) -> Result<Vec<String>, SandboxError> {
        Ok(self.inner.store.beginning(prefix)?)
    }

    /// Returns whether the sandbox is from before a reboot. Then only its record and its leases are left.
    pub fn is_stale(&self, sandbox: &Sandbox) -> bool {
        sandbox.boot_id != self.inner.boot_id
    }

    fn netns_path(&self, id: &str) -> PathBuf {
        self.inner.options.netns_dir().join(id)
    }

    fn run_path(&self, id: &str) -> PathBuf {
        self.inner.options.pods_dir().join(id)
    }

    /// Waits for the lock of a pod. Its holder is the only one that changes the pod, in any process.
    async fn lock(&self, pod: &PodId) -> Result<PodLock, Causes> {
        let in_process = self.inner.pods.lock(pod).await;
        let dir = self.inner.options.locks_dir();
        let wait = Wait::new("work on pods", LOCK_LIMIT);
        let everything =
            FileLock::take(&dir.join("everything"), LockMode::Shared, wait).await.map_err(Cause::from)?;
        let what = format!("pod {pod}");
        let wait = Wait::new(&what, LOCK_LIMIT);
        let own = FileLock::take(&dir.join(checkpoint::key(pod)), LockMode::Alone, wait).await;
        let own = own.map_err(Cause::from)?.vanishing();
        Ok(PodLock { _among_processes: own, _not_everything: everything, _in_process: in_process })
    }

    /// Waits until no process works on a pod, and keeps them from doing so.
    async fn lock_everything(&self) -> Result<FileLock, Cause> {
        let path = self.inner.options.locks_dir().join("everything");
        Ok(FileLock::take(&path, LockMode::Alone, Wait::new("work on pods", LOCK_LIMIT)).await?)
    }

    /// Writes a new record.
    async fn write_new(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        self.record(sandbox, RecordDirectory::write_new).await
    }

    /// Appends a new state to a record.
    async fn amend(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        self.record(sandbox, RecordDirectory::amend).await
    }

    /// Writes a record on a thread that may block.
    async fn record(
        &self,
        sandbox: &Sandbox,
        how: fn(&RecordDirectory, &Sandbox) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let (store, sandbox) = (self.inner.store.clone(), sandbox.clone());
        let dir = self.inner.options.state_dir.clone();
        tokio::task::spawn_blocking(move || how(&store, &sandbox))
            .await
            .unwrap_or_else(|err| Err(Cause::file("writing a record in", dir)(io::Error::other(err))))
    }
}

fn boot_id() -> Result<String, Cause> {
    boot::boot_id().map_err(Cause::file("reading", Path::new(boot::BOOT_ID)))
}

/// Returns 64 random hexadecimal digits, which is the form of container IDs.
fn random_id() -> Result<String, Cause> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 32];
    std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Cause::file("reading", path))?;
    Ok(hex(bytes))
}
