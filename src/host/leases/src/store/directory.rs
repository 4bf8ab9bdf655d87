//! Reads a network's directory without a lock, as CHECK and STATUS do.
//!
//! Files without an address as their name, such as notes and backups, are skipped. An unreadable entry with a lease's
//! name counts as taken.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{fstat, fstatat};
use rustix::fs::{FileType, OFlags, RawDir};

use cnimble_os::files::IfPresent as _;

use super::reading::{Lease, LeaseFile, Leases};
use super::{Result, StoreError, last_name};
use crate::boot::Boot;
use crate::files::{self, Entry, Identity};
use crate::holder::Holder;
use crate::index::{self, Index};
use crate::{INDEX, address, is_temporary};

/// A network's directory, which stays open.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    file: File,
}

impl Directory {
    /// Opens the directory. Returns `None` if it is missing.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = libc::O_DIRECTORY;
        let opened = File::options().read(true).custom_flags(flags).open(path).unless_absent();
        let path = path.to_owned();
        match opened {
            Ok(file) => Ok(file.map(|file| Directory { path, file })),
            Err(source) => Err(StoreError::Io { what: "opening", path, source }),
        }
    }

    /// Returns the open directory. It is the same one even if another process replaces the path.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error for a system call on the file `name`. `what` is a verb such as `reading`. An empty name stands
    /// for the directory itself.
    pub fn failed(&self, what: &'static str, name: &str, source: impl Into<io::Error>) -> StoreError {
        StoreError::Io { what, path: self.path.join(name), source: source.into() }
    }

    /// Reads all leases, sorted by address. A file is a lease if its name is an address as Go and Rust write it. A
    /// lease that can't be read is in [`Leases::unread`], and in the list with an unknown owner.
    pub fn leases(&self) -> Result<Leases> {
        let mut leases = Leases::default();
        let mut buffer = files::BUFFER;
        self.each_entry(|name, kind| {
            let Ok(name) = name.to_str() else { return Ok(()) };
            leases.has_index |= name == INDEX;
            if is_temporary(name) {
                leases.temporary.push(name.to_owned());
            }
            let Some(ip) = address(name) else { return Ok(()) };
            let found = match kind {
                // Most file systems list the kind of a file, which saves a system call for each lease.
                FileType::RegularFile => {
                    files::read_known(self.fd(), name, &mut buffer).map(|found| found.map(Holder::parse))
                }
                FileType::Unknown => {
                    files::read(self.fd(), name).map(|found| found.map(|bytes| Holder::parse(&bytes)))
                }
                _ => Ok(Entry::Foreign),
            };
            let owner = match found {
                Ok(Entry::Regular(owner)) => owner,
                Ok(Entry::Absent) => return Ok(()),
                Ok(Entry::Foreign) => Holder::Unknown,
                Err(err) => {
                    let err = self.failed("reading", name, err);
                    log::warn!("{err}");
                    leases.unread.push((ip, err));
                    Holder::Unknown
                }
            };
            leases.list.push(Lease { ip, owner });
            Ok(())
        })?;
        leases.list.sort_unstable_by_key(|lease| lease.ip);
        Ok(leases)
    }

    /// Calls `visit` with the name and the kind of each file, also with `.` and `..`. It does without opendir(3), which
    /// would take memory from the system's allocator, and that would ask the kernel for it.
    pub(super) fn each_entry(&self, mut visit: impl FnMut(&CStr, FileType) -> Result<()>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let list = rustix::fs::openat(self.fd(), c".", flags, rustix::fs::Mode::empty())
            .map_err(|err| self.failed("listing", "", err))?;
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(list, &mut room);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The directory has been removed meanwhile.
                Err(rustix::io::Errno::NOENT) => break,
                entry => entry.map_err(|err| self.failed("listing", "", err))?,
            };
            visit(entry.file_name(), entry.file_type())?;
        }
        Ok(())
    }

    /// Returns the names of all files in order, also `.` and `..`. Names that are no UTF-8 are left out.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.each_entry(|name, _| {
            names.extend(name.to_str().ok().map(str::to_owned));
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the addresses that have a lease file, with any content.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        Ok(self.names()?.iter().filter_map(|name| address(name)).collect())
    }

    /// Reads a lease with what tells it from a later file of the same name. Returns `None` if it is gone. An entry that
    /// can't be read has an unknown owner, and counts as one of this boot.
    pub fn inspect(&self, name: &str, boot: &Boot) -> Result<Option<LeaseFile>> {
        let Some(identity) = self.identity(name)? else { return Ok(None) };
        let unknown = LeaseFile { owner: Holder::Unknown, identity, before_boot: false };
        let file = match files::open_regular(self.fd(), name) {
            Ok(Entry::Regular(file)) => file,
            Ok(Entry::Absent) => return Ok(None),
            Ok(Entry::Foreign) | Err(_) => return Ok(Some(unknown)),
        };
        let Ok(Entry::Regular(bytes)) = files::read_open(&file) else { return Ok(Some(unknown)) };
        let identity = fstat(&file).map_err(|err| self.failed("reading", name, err))?;
        let (owner, before_boot) = (Holder::parse(&bytes), boot.is_after(&file));
        Ok(Some(LeaseFile { owner, identity: Identity::from_stat(&identity), before_boot }))
    }

    /// Returns the identity of a file, which a later file of the same name doesn't have. `None` if it is gone.
    pub fn identity(&self, name: &str) -> Result<Option<Identity>> {
        match fstatat(self.fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Identity::from_stat(&stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(err) => Err(self.failed("looking at", name, err)),
        }
    }

    /// Reads the leases of `container_id`, also those without an interface. With a valid index, reads only what it
    /// names, and the addresses in `hints`. Otherwise reads and returns all leases, of all containers;
    /// [`Leases::are_all`] tells which.
    pub fn leases_of(&self, container_id: &str, hints: &[IpAddr]) -> Result<Leases> {
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

    /// Returns the holder of `ip`, or `None` without a lease. For a file that can't be read it is [`Holder::Unknown`].
    pub fn owner(&self, ip: IpAddr) -> Option<Holder> {
        self.try_owner(ip).unwrap_or_else(|err| {
            log::warn!("{err}");
            Some(Holder::Unknown)
        })
    }

    /// Does what [`owner`](Self::owner) does, but returns the error of a file that can't be read.
    fn try_owner(&self, ip: IpAddr) -> Result<Option<Holder>> {
        let name = ip.to_string();
        match files::read(self.fd(), &name) {
            Ok(Entry::Regular(bytes)) => Ok(Some(Holder::parse(&bytes))),
            Ok(Entry::Absent) => Ok(None),
            Ok(Entry::Foreign) => Ok(Some(Holder::Unknown)),
            Err(err) => Err(self.failed("reading", &name, err)),
        }
    }

    /// Returns the address that was given last from the range set with this number. `None` if there is none, or if the
    /// file can't be read.
    pub fn last(&self, set: usize) -> Option<IpAddr> {
        match files::read(self.fd(), &last_name(set)) {
            Ok(Entry::Regular(bytes)) => std::str::from_utf8(&bytes).ok()?.trim().parse().ok(),
            Ok(_) => None,
            Err(err) => {
                log::warn!("{}: {err}", self.path.join(last_name(set)).display());
                None
            }
        }
    }
}

/// Fails if no lease could be written below `path`, in the nearest directory that exists. Leaves nothing.
pub fn probe_writing(path: &Path) -> Result<()> {
    let mut ancestors =
        path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let nearest = ancestors
        .find(|path| !matches!(path.metadata(), Err(err) if err.kind() == io::ErrorKind::NotFound))
        .unwrap_or(Path::new("/"));
    File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(nearest)
        .and_then(|dir| files::probe(dir.as_fd()))
        .map_err(|source| StoreError::Io { what: "writing to", path: nearest.to_owned(), source })
}
