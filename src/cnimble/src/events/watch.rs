//! Reads signs from notifications of the kernel about links and rules, and from inotify(7) for files.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use cnimble_netlink as netlink;
use cnimble_netlink::monitor::{LinkMonitor, LinkNotice, RuleMonitor};

/// A notification of the kernel that can be about an attachment.
#[derive(Debug)]
pub(super) enum Sign {
    Link(LinkNotice),
    /// A rule or set element appeared, with this comment.
    Rule(String),
    /// A file was created, changed or removed.
    File(PathBuf),
    /// Notifications of this kind were lost. The current state has to be read again.
    Lost(&'static str),
}

/// The queues of notifications.
pub(super) struct Watch {
    links: LinkMonitor,
    /// It is `None` if rules can't be followed, as on a kernel without nf_tables.
    rules: Option<RuleMonitor>,
    files: Files,
}

impl Watch {
    /// Begins to watch the current network namespace and the directories. `results` are directories of files, `data`
    /// directories of directories of files. Missing directories are watched as soon as they exist.
    pub(super) fn new(results: &BTreeSet<PathBuf>, data: &BTreeSet<PathBuf>) -> Result<Self, String> {
        let rules = match RuleMonitor::open() {
            Ok(rules) => Some(rules),
            Err(err) => {
                log::warn!("can't follow repaired packet rules: {err}");
                None
            }
        };
        let links = LinkMonitor::open().map_err(|err| err.to_string())?;
        Ok(Watch { links, rules, files: Files::new(results.clone(), data.clone())? })
    }

    /// Waits for a notification. It can return without one, as after a signal.
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(self.links.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.files.inotify.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(self.rules.iter().map(|rules| PollFd::new(rules.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads the pending notifications. An empty list means that all queues were empty.
    ///
    /// Files are read before the kernel's queues, and come last in the list. So the signs that precede a result or its
    /// removal never come after it.
    pub(super) fn read(&mut self) -> Result<Vec<Sign>, String> {
        let mut files = Vec::new();
        self.files.read(&mut files)?;
        let mut signs = Vec::new();
        let told = lossy(|| self.links.read(), &mut signs, "notifications about links")?;
        signs.extend(told.into_iter().map(Sign::Link));
        if let Some(rules) = &mut self.rules {
            let told = lossy(|| rules.read(), &mut signs, "notifications about packet rules")?;
            signs.extend(told.into_iter().map(Sign::Rule));
        }
        signs.extend(files);
        Ok(signs)
    }
}

/// Reads the pending notifications of a queue. If the kernel lost some (ENOBUFS), it pushes [`Sign::Lost`] once and
/// discards those that are still queued, because a full look replaces them.
fn lossy<T>(
    mut read: impl FnMut() -> netlink::Result<Vec<T>>,
    signs: &mut Vec<Sign>,
    what: &'static str,
) -> Result<Vec<T>, String> {
    let mut lost = false;
    loop {
        match read() {
            Ok(told) if lost && !told.is_empty() => {}
            Ok(told) => return Ok(told),
            Err(err) if err.is(Errno::ENOBUFS) => {
                if !lost {
                    signs.push(Sign::Lost(what));
                }
                lost = true;
            }
            Err(err) if err.is(Errno::EINTR) => {}
            Err(err) => return Err(err.to_string()),
        }
    }
}

/// The watches of the directories of results and of data. For a missing directory the nearest existing parent is
/// watched.
struct Files {
    inotify: Inotify,
    /// Directories of files.
    results: BTreeSet<PathBuf>,
    /// Directories of directories of files.
    data: BTreeSet<PathBuf>,
    /// The watched directories.
    paths: HashMap<WatchDescriptor, PathBuf>,
}

impl Files {
    /// Begins to watch. Files that exist are no signs.
    fn new(results: BTreeSet<PathBuf>, data: BTreeSet<PathBuf>) -> Result<Self, String> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|errno| format!("inotify: {errno}"))?;
        let mut files = Files { inotify, results, data, paths: HashMap::new() };
        files.attach(&mut Vec::new())?;
        Ok(files)
    }

    /// Reads the queue, and then watches directories that have appeared.
    fn read(&mut self, signs: &mut Vec<Sign>) -> Result<(), String> {
        let mut directories = false;
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(format!("inotify: {errno}")),
            };
            for event in &events {
                directories |= self.handle_notification(event, signs);
            }
        }
        if directories { self.attach(signs) } else { Ok(()) }
    }

    /// Takes a notification, and returns whether directories may have been created or removed.
    fn handle_notification(&mut self, event: &InotifyEvent, signs: &mut Vec<Sign>) -> bool {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            signs.push(Sign::Lost("notifications about files"));
            return true;
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.paths.remove(&event.wd);
            return true;
        }
        let moved_away = event.mask.contains(AddWatchFlags::IN_MOVE_SELF);
        if moved_away || event.mask.contains(AddWatchFlags::IN_ISDIR) {
            if moved_away && self.paths.remove(&event.wd).is_some() {
                let _ = self.inotify.rm_watch(event.wd);
            }
            return true;
        }
        let dir = self.paths.get(&event.wd).filter(|dir| self.is_of_files(dir));
        if let (Some(dir), Some(name)) = (dir, &event.name) {
            signs.push(Sign::File(dir.join(name)));
        }
        false
    }

    /// Returns whether the files of the directory are results or leases.
    fn is_of_files(&self, dir: &Path) -> bool {
        self.results.contains(dir) || dir.parent().is_some_and(|parent| self.data.contains(parent))
    }

    /// Watches the directories that exist. Files that are already in a newly watched one count as signs.
    fn attach(&mut self, signs: &mut Vec<Sign>) -> Result<(), String> {
        for dir in self.results.clone() {
            if self.watch_or_above(&dir)? {
                signs.extend(children(&dir).into_iter().map(Sign::File));
            }
        }
        for dir in self.data.clone() {
            self.watch_or_above(&dir)?;
            for network in children(&dir).into_iter().filter(|path| path.is_dir()) {
                if self.watch(&network)? == Some(true) {
                    signs.extend(children(&network).into_iter().map(Sign::File));
                }
            }
        }
        Ok(())
    }

    /// Watches a directory, or its nearest existing parent. Returns true if the directory itself is newly watched.
    fn watch_or_above(&mut self, dir: &Path) -> Result<bool, String> {
        loop {
            if let Some(new) = self.watch(dir)? {
                return Ok(new);
            }
            let mut below = dir;
            for above in dir.ancestors().skip(1) {
                if self.watch(above)?.is_some() {
                    break;
                }
                below = above;
            }
            // The directory may have been created before the watch of its parent.
            if !below.exists() {
                return Ok(false);
            }
        }
    }

    /// Watches a directory. Returns `None` if it doesn't exist, or else whether its watch is new.
    fn watch(&mut self, dir: &Path) -> Result<Option<bool>, String> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        match self.inotify.add_watch(dir, flags) {
            Ok(watch) => Ok(Some(self.paths.insert(watch, dir.to_owned()).is_none())),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(format!("can't watch {}: {errno}", dir.display())),
        }
    }
}

/// Returns the paths in a directory but those of hidden files, which are unfinished or quarantined. It is empty if the
/// directory can't be read.
pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !is_hidden(path)).collect()
}

/// Returns whether the name begins with a dot.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
