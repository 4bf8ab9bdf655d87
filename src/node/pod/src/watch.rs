//! Watches directories by inotify(7). It misses changes on network file systems, in missing directories, and above the
//! user's watch limit. So a [`DirWatch`] also reports periodically, and its user reads the directory each time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long the directory must be quiet before a change is reported, because writing a file takes several steps.
const SETTLE: Duration = Duration::from_millis(30);
/// How long a change is held back at most.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// Watches directories for files that appear, change or go.
#[derive(Debug)]
pub struct DirWatch {
    dirs: Vec<PathBuf>,
    poll: Duration,
    inotify: Option<AsyncFd<Handle>>,
    watches: BTreeMap<PathBuf, WatchDescriptor>,
}

#[derive(Debug)]
struct Handle(Inotify);

impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl DirWatch {
    /// Watches these directories, which may be missing. It reports at least once in each `poll`, also without inotify.
    /// Needs tokio with I/O.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>, poll: Duration) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|inotify| {
                // SAFETY: the handle owns its descriptor, which stays open and the same until the AsyncFd drops it.
                unsafe { AsyncFd::register_with_interest(Handle(inotify), Interest::READABLE) }
                    .map_err(Into::into)
            });
        let inotify = inotify
            .inspect_err(|err| log::warn!("no inotify ({err}): directories are read every {poll:?}"))
            .ok();
        let mut watch =
            DirWatch { dirs: dirs.into_iter().collect(), poll, inotify, watches: BTreeMap::new() };
        watch.attach();
        watch
    }

    /// Waits for a change, for at most the period. It may return without one. Changes between two calls are not lost,
    /// even if the future is dropped.
    pub async fn changed(&mut self) {
        let end = Instant::now() + self.poll;
        let Some(inotify) = &self.inotify else {
            return sleep_until(end).await;
        };
        if let Ok(Ok(())) = timeout_at(end, next(inotify)).await {
            let limit = Instant::now() + SETTLE_LIMIT;
            loop {
                let quiet = (Instant::now() + SETTLE).min(limit);
                if timeout_at(quiet, next(inotify)).await.is_err() || Instant::now() >= limit {
                    break;
                }
            }
        }
        // A directory may have appeared or been replaced.
        self.attach();
    }

    /// Watches the directories that exist now. The kernel returns the same descriptor for one that is watched already.
    fn attach(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_ONLYDIR;
        let inotify = &inotify.get_ref().0;
        for dir in &self.dirs {
            match inotify.add_watch(dir, flags) {
                Ok(watch) => {
                    // Otherwise the kernel would go on reporting a directory that was moved away.
                    if let Some(old) = self.watches.insert(dir.clone(), watch)
                        && old != watch
                        && !self.watches.values().any(|other| *other == old)
                    {
                        let _ = inotify.rm_watch(old);
                    }
                }
                Err(Errno::ENOENT | Errno::ENOTDIR) => {
                    self.watches.remove(dir);
                }
                Err(errno) => log::warn!("can't watch {}: {errno}", dir.display()),
            }
        }
    }
}

/// Waits for events, and discards them.
async fn next(inotify: &AsyncFd<Handle>) -> io::Result<()> {
    loop {
        let mut ready = inotify.readable().await?;
        match ready.get_inner().0.read_events() {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                ready.clear_ready();
                return Err(errno.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_file_that_appears_changes_and_goes_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut watch = DirWatch::new([dir.path().to_owned()], LONG);
            let file = dir.path().join("a");
            fs::write(&file, "1").unwrap();
            watch.changed().await;
            fs::write(&file, "2").unwrap();
            watch.changed().await;
            fs::remove_file(&file).unwrap();
            watch.changed().await;
        });
    }

    #[test]
    fn a_directory_that_is_replaced_is_watched_again() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("net.d");
        runtime().block_on(async {
            // Only the clock can reveal a missing directory.
            let mut watch = DirWatch::new([dir.clone()], Duration::from_millis(10));
            watch.changed().await;
            fs::create_dir(&dir).unwrap();
            watch.changed().await;
            watch.poll = LONG;
            fs::write(dir.join("a"), "").unwrap();
            watch.changed().await;
            fs::rename(&dir, outer.path().join("old")).unwrap();
            fs::create_dir(&dir).unwrap();
            watch.changed().await;
            fs::write(dir.join("b"), "").unwrap();
            watch.changed().await;
        });
    }

    #[test]
    fn without_a_change_the_clock_reports() {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            DirWatch::new([dir.path().to_owned()], Duration::from_millis(1)).changed().await;
        });
    }
}
