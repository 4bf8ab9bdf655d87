//! An ADD's changes on the disk, and their undo. A change of a lease or of `last_reserved_ip.N` is recorded *before* it
//! is made, so a panic loses none. A directory and the lock file are recorded right *after* they are made ([`Noted`]).
//! So the undo never removes one that another process has made.
//!
//! The undo respects concurrent verbs. It removes only our lease, restores `last_reserved_ip.N` only if no other ADD
//! has changed it, and removes only an empty directory. [`Store`] tolerates a directory that is removed while it waits
//! for the lock. A Go plugin that opens a new store at that moment fails cleanly.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use nix::sys::stat::Mode;

use cnimble_cni::{Code, Error};
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::files::{self, Entry};
use cnimble_leases::store::{Noted, Store, StoreError, last_name};

/// A lease that was removed to make room, with all that its file had.
#[derive(Debug)]
struct ReplacedLease {
    content: Vec<u8>,
    /// The mark of the boot in which the lease was made.
    mark: Vec<u8>,
    permissions: std::fs::Permissions,
    modified: SystemTime,
}

/// One change of the store, with what its reversal needs.
#[derive(Debug)]
enum StoreChange {
    MadeDirectory(PathBuf),
    MadeLock,
    Removed {
        ip: IpAddr,
        saved: ReplacedLease,
    },
    Gave {
        ip: IpAddr,
        content: Vec<u8>,
    },
    /// The file with the latest address of a set. `before` has its old content and mode, if it existed.
    Moved {
        name: String,
        before: Option<(Vec<u8>, u32)>,
        after: Vec<u8>,
    },
}

/// The changes of one ADD in their order. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Journal(Rc<RefCell<Vec<StoreChange>>>);

impl Journal {
    fn record(&self, change: StoreChange) {
        self.0.borrow_mut().push(change);
    }

    /// Removes the lease of an address. The caller has to know that it is from before this boot, the attachment's own,
    /// or broken. A missing lease is no error.
    pub(crate) fn remove(&self, store: &Store, ip: IpAddr, boot: &Boot) -> Result<(), StoreError> {
        let name = ip.to_string();
        let saved = save(store, &name, boot).map_err(|err| store.failed("reading", &name, err))?;
        if let Some(saved) = saved {
            self.record(StoreChange::Removed { ip, saved });
        }
        store.remove(ip)
    }

    /// Writes the lease of an address, with the mark of this boot. Returns false, and writes nothing, if a file has the
    /// name.
    pub(crate) fn write_lease(
        &self,
        store: &Store,
        ip: IpAddr,
        content: &[u8],
        boot: &Boot,
    ) -> Result<bool, StoreError> {
        let name = ip.to_string();
        self.record(StoreChange::Gave { ip, content: content.to_owned() });
        files::create(store.fd(), &name, content, |file| {
            boot.mark(file);
            Ok(())
        })
        .map_err(|err| store.failed("making lease", &name, err))
    }

    /// Records `ip` as the latest address of the range set with the number `set`.
    pub(crate) fn move_on(&self, store: &Store, set: usize, ip: IpAddr) -> Result<(), StoreError> {
        let name = last_name(set);
        let after = ip.to_string().into_bytes();
        let before = read_with_mode(store, &name).map_err(|err| store.failed("writing", &name, err))?;
        if before.as_ref().is_some_and(|(bytes, _)| *bytes == after) {
            return Ok(());
        }
        let mode = before.as_ref().map_or(files::MODE, |(_, mode)| Mode::from_bits_truncate(*mode));
        self.record(StoreChange::Moved { name: name.clone(), before, after: after.clone() });
        files::replace(store.fd(), &name, &after, mode).map_err(|err| store.failed("writing", &name, err))
    }

    /// Reverts all changes, the latest first, under the lock of the store at `path`. Continues after failures and
    /// returns all of them, with code 5. A second call does nothing.
    pub(crate) fn revert(&self, path: &Path) -> Result<(), Error> {
        let changes = self.0.take();
        if changes.is_empty() {
            return Ok(());
        }
        let mut failures = Vec::new();
        let mut directories = Vec::new();
        let store = Store::lock(path).unwrap_or_else(|err| {
            failures.push(err.to_string());
            None
        });
        for change in changes.into_iter().rev() {
            match (change, &store) {
                (StoreChange::MadeDirectory(path), _) => directories.push(path),
                (change, Some(store)) => {
                    failures.extend(revert_one(store, change).err().map(|err| err.to_string()));
                }
                (_, None) => {}
            }
        }
        if let Some(store) = store.filter(|_| !directories.is_empty()) {
            // Locking the store may have made the lock file again.
            failures.extend(store.remove_if_empty().err().map(|err| err.to_string()));
        }
        for path in directories {
            if let Err(err) = std::fs::remove_dir(&path)
                && !matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty)
            {
                failures.push(format!("removing {}: {err}", path.display()));
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::IO, failures.join("; ")))
    }
}

impl Noted for Journal {
    fn made_directory(&self, path: &Path) {
        self.record(StoreChange::MadeDirectory(path.to_owned()));
    }

    fn made_lock(&self) {
        self.record(StoreChange::MadeLock);
    }
}

/// Reverts one change in the locked store. Directories that were made are left to [`Journal::revert`].
fn revert_one(store: &Store, change: StoreChange) -> Result<(), StoreError> {
    match change {
        StoreChange::MadeDirectory(_) => Ok(()),
        StoreChange::MadeLock => store.remove_if_empty(),
        StoreChange::Gave { ip, content } => {
            let name = ip.to_string();
            let now = files::read(store.fd(), &name).map_err(|err| store.failed("reading", &name, err))?;
            if now == Entry::Regular(content) {
                store.remove(ip)?;
            }
            Ok(())
        }
        StoreChange::Removed { ip, saved } => {
            let name = ip.to_string();
            // False means that another pod has the address by now, which is as good.
            files::create(store.fd(), &name, &saved.content, |file| {
                boot::set_mark(file, &saved.mark);
                file.set_permissions(saved.permissions.clone())?;
                file.set_modified(saved.modified)
            })
            .map_err(|err| store.failed("restoring", &name, err))?;
            Ok(())
        }
        StoreChange::Moved { name, before, after } => {
            move_back(store, &name, before, after).map_err(|err| store.failed("restoring", &name, err))
        }
    }
}

/// Restores the file of the latest address, unless another ADD has written it since `after`. Without a file `before`,
/// removes it.
fn move_back(store: &Store, name: &str, before: Option<(Vec<u8>, u32)>, after: Vec<u8>) -> io::Result<()> {
    if files::read(store.fd(), name)? != Entry::Regular(after) {
        return Ok(());
    }
    match before {
        None => files::remove(store.fd(), name),
        Some((content, mode)) => files::replace(store.fd(), name, &content, Mode::from_bits_truncate(mode)),
    }
}

/// Reads a file and its mode. `None` if there is no regular file, or if it is too large.
fn read_with_mode(store: &Store, name: &str) -> io::Result<Option<(Vec<u8>, u32)>> {
    let Entry::Regular(file) = files::open_regular(store.fd(), name)? else {
        return Ok(None);
    };
    let Entry::Regular(content) = files::read_open(&file)? else {
        return Ok(None);
    };
    Ok(Some((content, file.metadata()?.permissions().mode())))
}

/// Reads a lease that is about to be removed. `None` if there is no regular file. A restored file gets a new inode, so
/// a lease without a mark is saved with that of an earlier boot.
fn save(store: &Store, name: &str, boot: &Boot) -> io::Result<Option<ReplacedLease>> {
    let Entry::Regular(file) = files::open_regular(store.fd(), name)? else {
        return Ok(None);
    };
    let Entry::Regular(content) = files::read_open(&file)? else {
        return Ok(None);
    };
    saved(&file, content, boot).map(Some)
}

/// Reads the properties of the file, for its restoration.
fn saved(file: &File, content: Vec<u8>, boot: &Boot) -> io::Result<ReplacedLease> {
    let meta = file.metadata()?;
    Ok(ReplacedLease {
        content,
        mark: boot::get_mark(file)?.unwrap_or_else(|| boot.earlier_mark()),
        permissions: meta.permissions(),
        modified: meta.modified()?,
    })
}
