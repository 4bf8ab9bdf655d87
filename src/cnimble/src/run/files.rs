//! The lock that prevents two processes from managing the same pods.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cnimble_runtime::locks::{FileLock, LockError, LockMode, Wait};

use crate::report::{Exit, Report};

/// The wait for the lock. A killed process can hold it until its last thread has left the kernel.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes the lock of a directory of pods' records, and creates the directory. The lock ends when it is dropped.
///
/// # Errors
/// Fails if another process holds it for longer than [`PATIENCE`].
pub(crate) async fn lock(dir: &Path) -> Result<FileLock, Report> {
    let path = dir.join("run.lock");
    let failed = |why: String| {
        Report::new(Exit::Files, "can't run").row("file", path.display().to_string()).row("why", why)
    };
    fs::create_dir_all(dir).map_err(|err| failed(err.to_string()))?;
    let what = format!("directory {}", dir.display());
    match FileLock::take(&path, LockMode::Alone, Wait::new(&what, PATIENCE)).await {
        Ok(lock) => Ok(lock),
        Err(LockError::Busy { holders, .. }) => {
            Err(failed(format!("another `cnimble run` or `cnimble serve` uses this directory: {holders}"))
                .hint("stop that process, or name other directories with --state-dir and --run-dir"))
        }
        Err(err) => Err(failed(err.to_string())),
    }
}
