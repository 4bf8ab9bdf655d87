//! The store: a directory for each network, with a file for each lease.
//!
//! The layout is the reference's to the byte, so that either set of plugins can take over
//! from the other at any moment:
//!
//! | file | content | mode |
//! |---|---|---|
//! | the address, `10.1.2.3` or `fd00::2` | [`crate::owner`] | 0600 |
//! | `last_reserved_ip.N` | the address that was given last from range set N | 0600 |
//! | `lock` | nothing; `flock(2)` | 0750 |
//!
//! [`Directory`] reads, [`Store`] holds the lock and writes. One lock spans a whole verb:
//! what ADD decided upon is what it writes. Who holds what is learnt by reading every
//! lease once ([`Directory::leases`]), or where there are many, and only one container's
//! matter, by asking the [`index`] ([`Directory::leases_of`]).

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cnimble::files::is_absent;
use cnimble::leases;
use cnimble::spec::{Code, Error};
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::files::{self, Content};
use crate::index::{self, INDEX, Index};
use crate::journal::Journal;
use crate::lock::{LOCK, Lock, LockError};
use crate::owner::Owner;
use crate::reading::{Lease, Leases};

/// How often somebody else may remove the directory between our making and locking it.
const TRIES: u32 = 100;

/// What can go wrong on the disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} appears and disappears; other programs write to it without its lock", .0.display())]
    Unsettled(PathBuf),
    #[error("waiting for the lock of the store: {0}")]
    Stopped(Error),
}

impl From<StoreError> for Error {
    fn from(err: StoreError) -> Self {
        let msg = err.to_string();
        match err {
            StoreError::Io { .. } => Error::new(Code::IO, msg),
            StoreError::Unsettled(_) => Error::new(Code::TRY_AGAIN_LATER, msg),
            StoreError::Stopped(err) => err.context("waiting for the lock of the store"),
        }
    }
}

impl StoreError {
    /// Whether another try may go better: the directory went away just now.
    fn is_passing(&self) -> bool {
        match self {
            StoreError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            StoreError::Unsettled(_) => true,
            StoreError::Stopped(_) => false,
        }
    }

    pub(crate) fn is_bad_block(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }
}

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A network's directory, for reading.
pub(crate) struct Directory {
    path: PathBuf,
    file: File,
}

impl Directory {
    /// Opens the directory; `None` if there is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let flags = libc::O_DIRECTORY;
        match File::options().read(true).custom_flags(flags).open(path) {
            Ok(file) => Ok(Some(Directory { path: path.to_owned(), file })),
            Err(err) if is_absent(&err) => Ok(None),
            Err(source) => Err(StoreError::Io { what: "opening", path: path.to_owned(), source }),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An error of doing `what` to `name`.
    pub(crate) fn failed(&self, what: &'static str, name: &str, source: impl Into<io::Error>) -> StoreError {
        StoreError::Io { what, path: self.path.join(name), source: source.into() }
    }

    /// All leases. Files whose name isn't an address, written as Go and Rust write it, are
    /// none.
    pub(crate) fn leases(&self) -> Result<Leases> {
        let failed = |err: Errno| self.failed("listing", "", err);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(self.fd(), ".", flags, Mode::empty()).map_err(failed)?;
        let mut leases = Leases::default();
        let mut buffer = files::BUFFER;
        for entry in dir.iter() {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            leases.has_index |= name == INDEX;
            if leases::is_temporary(name) {
                leases.temporary.push(name.to_owned());
            }
            let Some(ip) = leases::address(name) else { continue };
            let content = match entry.file_type() {
                // Told by the directory itself in most file systems: saves a call each.
                Some(Type::File) => {
                    let read = files::read_known(self.fd(), name, &mut buffer);
                    read.map(|content| content.map(Owner::parse))
                }
                None => files::read(self.fd(), name).map(|content| match content {
                    Content::Bytes(bytes) => Ok(Owner::parse(&bytes)),
                    other => Err(other),
                }),
                Some(_) => Ok(Err(Content::Foreign)),
            };
            let owner = match content {
                Ok(Ok(owner)) => owner,
                Ok(Err(Content::Absent)) => continue,
                Ok(Err(_)) => Owner::Unknown,
                Err(err) => {
                    let err = self.failed("reading", name, err);
                    log::warn!("{err}");
                    leases.unread.push((ip, err));
                    Owner::Unknown
                }
            };
            leases.list.push(Lease { ip, owner });
        }
        leases.list.sort_unstable_by_key(|lease| lease.ip);
        Ok(leases)
    }

    /// The leases of `container_id`, also those that name no interface: all that the index
    /// knows of, or all leases if there is none. `hints` are addresses to look at as well.
    pub(crate) fn leases_of(&self, container_id: &str, hints: &[IpAddr]) -> Result<Leases> {
        let Some(index) = Index::open(self.fd()) else { return self.leases() };
        let Some(mut ips) = index.find(index::key(container_id)) else { return self.leases() };
        ips.extend(hints);
        ips.sort_unstable();
        ips.dedup();
        let mut leases = Leases { index: Some(index), has_index: true, ..Leases::default() };
        for ip in ips {
            match self.try_owner(ip) {
                Ok(Some(owner)) if owner.container() == Some(container_id) => {
                    leases.list.push(Lease { ip, owner });
                }
                Ok(_) => {}
                Err(err) => leases.unread.push((ip, err)),
            }
        }
        Ok(leases)
    }

    /// Who holds `ip`, from its file; `None` if there is no lease.
    pub(crate) fn owner(&self, ip: IpAddr) -> Option<Owner> {
        self.try_owner(ip).unwrap_or_else(|err| {
            log::warn!("{err}");
            Some(Owner::Unknown)
        })
    }

    fn try_owner(&self, ip: IpAddr) -> Result<Option<Owner>> {
        let name = ip.to_string();
        match files::read(self.fd(), &name) {
            Ok(Content::Bytes(bytes)) => Ok(Some(Owner::parse(&bytes))),
            Ok(Content::Absent) => Ok(None),
            Ok(Content::Foreign) => Ok(Some(Owner::Unknown)),
            Err(err) => Err(self.failed("reading", &name, err)),
        }
    }

    /// The address that was given last from range set `set`. A file that can't be read
    /// costs the turn, not the ADD.
    pub(crate) fn last(&self, set: usize) -> Option<IpAddr> {
        match files::read(self.fd(), &last_name(set)) {
            Ok(Content::Bytes(bytes)) => std::str::from_utf8(&bytes).ok()?.trim().parse().ok(),
            Ok(_) => None,
            Err(err) => {
                log::warn!("{}: {err}", self.path.join(last_name(set)).display());
                None
            }
        }
    }
}

/// The file with the address that was given last from range set `set`.
pub(crate) fn last_name(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

/// A network's directory with its lock held; the lock goes with the value.
pub(crate) struct Store {
    dir: Directory,
    lock: Lock,
}

impl std::ops::Deref for Store {
    type Target = Directory;
    fn deref(&self) -> &Directory {
        &self.dir
    }
}

impl Store {
    /// Locks the directory; `None` if there is none, and none is made.
    pub(crate) fn lock(path: &Path) -> Result<Option<Self>> {
        Self::lock_with(path, None)
    }

    /// Makes the directory if need be and locks it. What is made is noted in `journal`.
    pub(crate) fn lock_or_create(path: &Path, journal: &Journal) -> Result<Self> {
        Self::lock_with(path, Some(journal))?.ok_or_else(|| StoreError::Unsettled(path.to_owned()))
    }

    /// An ADD that fails may remove the directory that it made while others wait for its
    /// lock; they get the lock of a file that has no name any more, and begin again.
    fn lock_with(path: &Path, journal: Option<&Journal>) -> Result<Option<Self>> {
        let mut outcome = Self::try_lock(path, journal);
        for _ in 1..TRIES {
            match &outcome {
                Err(err) if err.is_passing() => outcome = Self::try_lock(path, journal),
                _ => break,
            }
        }
        outcome
    }

    fn try_lock(path: &Path, journal: Option<&Journal>) -> Result<Option<Self>> {
        let unsettled = || StoreError::Unsettled(path.to_owned());
        if let Some(journal) = journal {
            make_directories(path, journal)?;
        }
        let dir = match (Directory::open(path)?, journal) {
            (Some(dir), _) => dir,
            (None, Some(_)) => return Err(unsettled()),
            (None, None) => return Ok(None),
        };
        let lock = Lock::wait(open_lock(&dir, journal)?).map_err(|err| match err {
            LockError::Stopped(err) => StoreError::Stopped(err),
            LockError::Io(err) => dir.failed("locking", LOCK, err),
        })?;
        if lock.guards(dir.fd(), path) { Ok(Some(Store { dir, lock })) } else { Err(unsettled()) }
    }

    /// Notes in the index what was changed since `leases` were read: the container's
    /// addresses that were `added` and `removed`. Call it when all else is done.
    pub(crate) fn note(&self, leases: &Leases, container_id: &str, added: &[IpAddr], removed: &[IpAddr]) {
        let key = index::key(container_id);
        if let Some(index) = &leases.index {
            if index.change(self.fd(), key, added, removed).is_none() {
                log::debug!("the index of {} is out of date", self.path().display());
            }
            return;
        }
        let old = leases.list.iter().filter(|lease| !removed.contains(&lease.ip));
        let old = old.filter_map(|lease| Some((index::key(lease.owner.container()?), lease.ip)));
        let entries: Vec<_> = old.chain(added.iter().map(|ip| (key, *ip))).collect();
        if entries.len() >= index::MANY {
            index::rebuild(self.fd(), &entries);
        } else if leases.has_index {
            index::discard(self.fd());
        }
    }

    /// Removes what a killed process left half-written.
    pub(crate) fn sweep(&self, leases: &Leases) {
        for name in &leases.temporary {
            if let Err(err) = files::remove(self.fd(), name) {
                log::warn!("removing {}: {err}", self.path().join(name).display());
            }
        }
    }

    /// Removes the lease of `ip`; it may be gone already.
    pub(crate) fn remove(&self, ip: IpAddr) -> Result<()> {
        let name = ip.to_string();
        log::debug!("releasing {}", self.path().join(&name).display());
        files::remove(self.fd(), &name).map_err(|err| self.failed("removing", &name, err))
    }

    /// Removes the lock if nothing else is in the directory. Not another's: once the lock that
    /// we hold has lost its name, somebody may have made the next, and work under it.
    pub(crate) fn remove_if_empty(&self) -> Result<()> {
        if !self.lock.guards(self.fd(), self.path()) {
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let failed = |err: Errno| self.failed("listing", "", err);
        let mut dir = Dir::openat(self.fd(), ".", flags, Mode::empty()).map_err(failed)?;
        for entry in dir.iter() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b".." | b"lock") && name != INDEX.as_bytes() {
                return Ok(());
            }
        }
        files::remove(self.fd(), INDEX).map_err(|err| self.failed("removing", INDEX, err))?;
        files::remove(self.fd(), LOCK).map_err(|err| self.failed("removing", LOCK, err))
    }
}

/// Makes `path` and what is missing above it, as `mkdir -p` does.
fn make_directories(path: &Path, journal: &Journal) -> Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .take_while(|path| matches!(path.metadata(), Err(err) if err.kind() == io::ErrorKind::NotFound))
        .collect();
    for path in missing.into_iter().rev() {
        match std::fs::DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => journal.made_directory(path),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(StoreError::Io { what: "making directory", path: path.to_owned(), source });
            }
        }
    }
    match path.metadata() {
        Ok(meta) if !meta.is_dir() => {
            Err(StoreError::Io { what: "opening", path: path.to_owned(), source: Errno::ENOTDIR.into() })
        }
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Io { what: "opening", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Opens the lock file, making it if need be.
fn open_lock(dir: &Directory, journal: Option<&Journal>) -> Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(dir.fd(), LOCK, flags, Mode::empty()) {
        Ok(file) => return Ok(file.into()),
        Err(Errno::ENOENT) => {}
        Err(err) => return Err(dir.failed("opening", LOCK, err)),
    }
    let mode = Mode::from_bits_truncate(0o750);
    match openat(dir.fd(), LOCK, flags | OFlag::O_CREAT | OFlag::O_EXCL, mode) {
        Ok(file) => {
            if let Some(journal) = journal {
                journal.made_lock();
            }
            Ok(file.into())
        }
        // Somebody else made it in between.
        Err(Errno::EEXIST) => Err(StoreError::Unsettled(dir.path.join(LOCK))),
        Err(err) => Err(dir.failed("making", LOCK, err)),
    }
}

/// Whether a lease could be written below `path`, found out without leaving a trace: in
/// the nearest directory that exists.
pub(crate) fn probe_writing(path: &Path) -> Result<()> {
    let is_there =
        |path: &&Path| !matches!(path.metadata(), Err(err) if err.kind() == io::ErrorKind::NotFound);
    let ancestors = path.ancestors().map(|path| match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    });
    let there = ancestors.into_iter().find(is_there).unwrap_or(Path::new("/"));
    File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(there)
        .and_then(|dir| files::probe(dir.as_fd()))
        .map_err(|source| StoreError::Io { what: "writing to", path: there.to_owned(), source })
}
