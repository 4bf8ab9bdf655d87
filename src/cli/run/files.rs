//! The lock that keeps two of us from looking after the same pods.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::cli::report::{Exit, Report};

/// Held until it is dropped, or the process ends however it may.
#[derive(Debug)]
pub(super) struct Lock {
    _file: Flock<File>,
}

/// A process that was killed may hold the lock until the last of its threads has come out of
/// the kernel.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks the state directory for us.
pub(super) async fn lock(dir: &Path) -> Result<Lock, Report> {
    let path = dir.join("run.lock");
    let failed = |why: String| {
        Report::new(Exit::Files, "can't run").row("file", path.display().to_string()).row("why", why)
    };
    fs::create_dir_all(dir).map_err(|err| failed(err.to_string()))?;
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|err| failed(err.to_string()))?;
    let end = Instant::now() + PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Lock { _file: file }),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < end => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(failed("another `cnimble run` uses this directory".to_owned())
                    .hint("stop that one, or name other directories with --state-dir and --run-dir"));
            }
            Err((_, errno)) => return Err(failed(errno.desc().to_owned())),
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
