//! The records of a node: one file per attachment, written before the move. The name is the tag ([`Owner::tag`]) with
//! `.json`, so that GC knows the network by the name. The directory does not survive a reboot, and neither do
//! namespaces.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use cnimble_cni::{Code, Error, Owner};
use cnimble_leases::lock::{Lock, LockError};
use cnimble_os::files::{self, IfPresent as _, Links, is_absent};

use crate::record::DeviceRecord;
use crate::sysfs;

/// The beginning of the name of a device's lock file. The device's name follows.
const LOCK: &str = ".lock-";

/// The largest record that is read, in bytes.
const LIMIT: usize = 1 << 20;

/// The directory of the records.
#[derive(Debug, Clone)]
pub(crate) struct RecordStore(pub(crate) PathBuf);

impl RecordStore {
    fn file(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!("{}.json", owner.tag()))
    }

    /// Returns the path of a record until it is complete. A killed process leaves such a file.
    fn fresh(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!(".new-{}", owner.tag()))
    }

    /// Reads the record of an attachment. `None` if the file is missing or is no valid record. Fails with code 5 if it
    /// cannot be read.
    pub(crate) fn read(&self, owner: &Owner) -> Result<Option<DeviceRecord>, Error> {
        read(&self.file(owner))
    }

    /// Waits for the lock of a device, by its name on the host. A verb holds it while it moves or restores the device.
    /// The lock is released when the value is dropped.
    ///
    /// `None` if the directory is missing, because there are no records then. On a read-only or full file system the
    /// lock of the directory is taken in place of a file. DEL and GC need no more, and ADD fails there before it moves
    /// anything. Fails with code 11 after a signal, and with code 5 if the lock cannot be taken.
    pub(crate) fn lock_device(&self, device: &str) -> Result<Option<DeviceLock>, Error> {
        let own = self.0.join(format!("{LOCK}{device}"));
        let mut create = OpenOptions::new();
        create.write(true).create(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        loop {
            let (path, opened) = match create.open(&own) {
                Err(err) if takes_nothing(&err) => (&self.0, File::open(&self.0)),
                opened => (&own, opened),
            };
            let opened = opened.unless_absent().map_err(|err| Error::io("lock", path, &err))?;
            let Some(file) = opened else { return Ok(None) };
            let inode = file.metadata().map_err(|err| Error::io("lock", path, &err))?.ino();
            let lock = Lock::wait(file).map_err(|why| match why {
                LockError::Stopped(err) => err,
                LockError::Io(err) => Error::io("lock", path, &err),
            })?;
            // The previous holder may have removed the file while this process waited. Then the lock is worth nothing.
            if fs::symlink_metadata(path).is_ok_and(|named| named.ino() == inode) {
                return Ok(Some(DeviceLock { lock, file: (path == &own).then_some(own) }));
            }
        }
    }

    /// Reads the records with a file name that `is_wanted`. Files that are no valid records are skipped. Fails with
    /// code 5 if a file cannot be read.
    pub(crate) fn all(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<DeviceRecord>, Error> {
        let mut found = Vec::new();
        for name in sysfs::names(&self.0)? {
            if name.ends_with(".json") && is_wanted(&name) {
                found.extend(read(&self.0.join(&name))?);
            }
        }
        Ok(found)
    }

    /// Writes the record atomically. The directory has to exist ([`RecordStore::make_directory`]). Fails with code 5.
    pub(crate) fn write(&self, record: &DeviceRecord) -> Result<(), Error> {
        let owner = record.owner();
        let (fresh, file) = (self.fresh(&owner), self.file(&owner));
        let text =
            serde_json::to_vec_pretty(record).map_err(|err| Error::new(Code::INTERNAL, err.to_string()))?;
        files::replace(&file, &fresh, &text).map_err(|err| Error::io("write", &file, &err))
    }

    /// Makes the directory if it is missing. Fails with code 5.
    pub(crate) fn make_directory(&self) -> Result<(), Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|err| Error::io("make directory", &self.0, &err))
    }

    /// Removes the record, and the temporary file that a killed ADD has left. Missing files are no error. Fails with
    /// code 5.
    pub(crate) fn remove(&self, owner: &Owner) -> Result<(), Error> {
        remove(&self.fresh(owner)).and(remove(&self.file(owner)))
    }

    /// Removes temporary files with a stale tag, and the lock files of killed verbs. Waits for each lock, so a file in
    /// use stays until its verb ends.
    pub(crate) fn tidy(&self, is_stale: impl Fn(&str) -> bool) -> Result<(), Error> {
        for name in sysfs::names(&self.0)? {
            if name.strip_prefix(".new-").is_some_and(&is_stale) {
                remove(&self.0.join(&name))?;
            }
            if let Some(device) = name.strip_prefix(LOCK) {
                drop(self.lock_device(device)?);
            }
        }
        Ok(())
    }
}

/// The lock of a device. Dropping it removes the lock file, unless this thread holds the lock a second time.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    lock: Lock,
    /// `None` if the lock is that of the directory.
    file: Option<PathBuf>,
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.lock.is_nested()) {
            let _ = fs::remove_file(file);
        }
    }
}

/// Removes a file if it exists. On a read-only or full file system it may stay, with a warning: the record of a device
/// that is on the host again does no harm.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(err) if takes_nothing(&err) => {
            if path.exists() {
                log::warn!("{} stays: {err}", path.display());
            }
            Ok(())
        }
        Err(err) if !is_absent(&err) => Err(Error::io("remove", path, &err)),
        _ => Ok(()),
    }
}

/// Returns true if the file system refuses a change because it is read-only or full.
fn takes_nothing(err: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(err.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Reads a record. `None` if the file is missing, no regular file, too large or not valid. Fails with code 5 otherwise.
fn read(file: &Path) -> Result<Option<DeviceRecord>, Error> {
    match files::read(file, LIMIT, Links::Refuse) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(err) if is_absent(&err) || files::is_foreign(&err) => Ok(None),
        Err(err) => Err(Error::io("read", file, &err)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn a_record_is_written_read_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = RecordStore(dir.path().join("a/b"));
        let one = record("one");
        assert_eq!(records.read(&one.owner()).unwrap(), None);
        assert!(records.lock_device("eth7").unwrap().is_none(), "no directory, no lock");
        records.make_directory().unwrap();
        records.write(&one).unwrap();
        // As from a killed process.
        fs::write(records.fresh(&one.owner()), "{").unwrap();
        let again = DeviceRecord { mtu: 9000, ..one.clone() };
        records.write(&again).unwrap();
        assert_eq!(records.read(&one.owner()).unwrap(), Some(again.clone()));
        records.write(&record("two")).unwrap();
        let of_one = |name: &str| name.starts_with(&one.owner().tag());
        assert_eq!(records.all(of_one).unwrap(), [again]);
        fs::write(records.fresh(&one.owner()), "{").unwrap();
        records.tidy(|tag| tag != one.owner().tag()).unwrap();
        assert!(records.fresh(&one.owner()).exists());
        records.tidy(|_| true).unwrap();
        assert!(!records.fresh(&one.owner()).exists());
        fs::write(records.file(&one.owner()), "text").unwrap();
        assert_eq!(records.read(&one.owner()).unwrap(), None);
        records.remove(&one.owner()).unwrap();
        assert_eq!(records.all(|_| true).unwrap(), [record("two")]);
    }

    #[test]
    fn the_lock_of_a_device_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let records = RecordStore(dir.path().to_owned());
        let count = || fs::read_dir(dir.path()).unwrap().count();
        let one = records.lock_device("eth7").unwrap().unwrap();
        let two = records.lock_device("eth8").unwrap().unwrap();
        // The undo of a panicking ADD takes the lock again and keeps the file.
        drop(records.lock_device("eth7").unwrap().unwrap());
        assert_eq!(count(), 2);
        drop((one, two));
        assert_eq!(count(), 0);
        // As from a killed process.
        fs::write(dir.path().join(".lock-eth7"), "").unwrap();
        records.tidy(|_| false).unwrap();
        assert_eq!(count(), 0);
        // The previous holder's file is removed, so a waiter locks the next one.
        std::thread::scope(|scope| {
            let add = |_| {
                scope.spawn(|| (0..200).for_each(|_| drop(records.lock_device("eth7").unwrap().unwrap())))
            };
            (0..4).map(add).for_each(drop);
        });
        assert_eq!(count(), 0);
    }
}
