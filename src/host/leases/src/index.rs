//! An index beside the leases. It lists the addresses that a container may have.
//!
//! A lease file names its owner, so to find a container's leases all of them must be read, which is slow for fifty
//! thousand. From `MANY` leases on, the file `.cnimble-index` lists the addresses of each container. It is a hash table
//! with fixed slots, so a verb reads one block and writes a few bytes. The Go plugin takes the file for no lease.
//!
//! **It is verified before use.** After each change, under the lock, the directory gets a time of modification that no
//! other program would set. It is a second or two in the past, with random nanoseconds. The index holds that time, the
//! directory's time of change, its inode and the boot. If a Go plugin or `rm` changes the directory, the time of
//! modification changes, even within one tick of the kernel's clock. If a program restores that time, the time of
//! change is another one. The index is then ignored. So is an index that a killed process left half-written, because
//! the directory changes first and the header is written last.
//!
//! **It is rebuilt** by the next ADD or DEL that had to read everything. It is removed with the last of its entries.
//!
//! **It is never needed.** It only proposes addresses, and the leases themselves are read. An address is given by
//! making its file, which fails if one exists. Before a verb reports a missing lease, it reads all leases. It also does
//! so without an index, on file systems that several machines may share or that keep no nanoseconds, and after any
//! error here.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, futimens};
use nix::sys::time::TimeSpec;

use crate::files::Identity;
use crate::{INDEX, boot, files};

/// The least number of leases for which there is an index. Reading fewer leases is as quick.
pub(crate) const MANY: usize = 64;

/// The beginning of the file. It changes with the format.
const MAGIC: u64 = u64::from_le_bytes(*b"cnimidx2");
/// The size of the header, in bytes.
const HEADER: usize = 80;
/// The offset of the number of entries in the header, behind all fields that are compared.
const COUNT: usize = 72;
/// The size of a slot, in bytes: the key, the address and the state.
const SLOT: usize = 32;
/// The number of slots in which an entry may lie, from its own slot on.
const WINDOW: usize = 96;
/// The maximum number of slots. They take 512 MB.
const MAX_SLOTS: u64 = 1 << 24;

/// The state of a slot, in its byte 24.
const FREE: u8 = 0;
const REMOVED: u8 = 1;
const V4: u8 = 4;
const V6: u8 = 6;

/// An entry: a container, as a hash of its ID, may have an address.
type Entry = (u64, IpAddr);

/// Returns the hash of a container's ID (FNV-1a and a last mixing). All versions of all plugins must compute the same
/// hash.
pub fn key(container_id: &str) -> u64 {
    let hash = container_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An index that was verified at the moment of opening it.
#[derive(Debug)]
pub struct Index {
    file: File,
    /// The number of slots, a power of two.
    slots: u64,
    /// The number of entries.
    entries: Cell<u64>,
}

impl Index {
    /// Opens the index of `dir`. Returns `None` if there is none, or if it does not belong to the present state of
    /// `dir`.
    pub(crate) fn open(dir: BorrowedFd<'_>) -> Option<Self> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = File::from(openat(dir, INDEX, OFlag::O_RDWR | flags, Mode::empty()).ok()?);
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        let slots = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
        let stat = fstat(&file).ok()?;
        let size = length_for(slots)?;
        let is_ours = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()
            && stat.st_nlink == 1
            && u64::try_from(stat.st_size).ok()? == size;
        let (said, entries) = header.split_at(COUNT);
        let entries = Cell::new(u64::from_le_bytes(entries.try_into().ok()?));
        let is_true = is_ours && said == header_for(dir, slots, 0)?.get(..COUNT)?;
        is_true.then_some(Index { file, slots, entries })
    }

    /// Returns the addresses that the container with this key may have. Other containers with the same hash are among
    /// them. Returns `None` if the index can't be read.
    pub(crate) fn find(&self, key: u64) -> Option<Vec<IpAddr>> {
        let window = self.window(key).ok()?;
        let entries = window.chunks_exact(SLOT).map_while(|slot| match kind(slot) {
            FREE => None,
            _ => Some(entry(slot)),
        });
        Some(entries.flatten().filter(|(own, _)| *own == key).map(|(_, ip)| ip).collect())
    }

    /// Notes changes that were made in `dir`. The caller holds the lock of `dir`. The index is removed with its last
    /// entry. Returns `None` after a failure; later readers then ignore the index.
    pub(crate) fn change(
        &self,
        dir: BorrowedFd<'_>,
        key: u64,
        added: &[IpAddr],
        removed: &[IpAddr],
    ) -> Option<()> {
        for ip in removed {
            self.remove((key, *ip))?;
        }
        for ip in added {
            self.insert((key, *ip))?;
        }
        if self.entries.get() == 0 {
            discard(dir);
            return Some(());
        }
        seal(&self.file, dir, self.slots, self.entries.get())
    }

    #[cfg(feature = "fuzzing")]
    fn over(file: File) -> Self {
        Index { file, slots: 1, entries: Cell::new(0) }
    }

    /// Reads the slots in which the entries of `key` may lie.
    fn window(&self, key: u64) -> io::Result<Vec<u8>> {
        let mut window = vec![0; WINDOW * SLOT];
        self.file.read_exact_at(&mut window, self.place(key))?;
        Ok(window)
    }

    /// Returns the offset in the file at which the window of `key` begins, in bytes.
    fn place(&self, key: u64) -> u64 {
        HEADER as u64 + home(key, self.slots) * SLOT as u64
    }

    fn write_slot(&self, key: u64, at: usize, slot: &[u8]) -> Option<()> {
        self.file.write_all_at(slot, self.place(key) + (at * SLOT) as u64).ok()
    }

    /// Adds an entry. Returns `None` if its window is full, or can't be read or written.
    fn insert(&self, new: Entry) -> Option<()> {
        let window = self.window(new.0).ok()?;
        let at = window.chunks_exact(SLOT).position(|slot| matches!(kind(slot), FREE | REMOVED))?;
        self.write_slot(new.0, at, &slot(new))?;
        self.entries.set(self.entries.get().saturating_add(1));
        Some(())
    }

    /// Removes an entry, if it is there. Returns `None` if its window can't be read or written.
    fn remove(&self, old: Entry) -> Option<()> {
        let window = self.window(old.0).ok()?;
        let mut gone = [0; SLOT];
        *gone.get_mut(24)? = REMOVED;
        match window.chunks_exact(SLOT).position(|slot| entry(slot) == Some(old)) {
            Some(at) => self.write_slot(old.0, at, &gone)?,
            None => return Some(()),
        }
        self.entries.set(self.entries.get().saturating_sub(1));
        Some(())
    }
}

/// Replaces the index of `dir` by one with these entries. The caller holds the lock of `dir`. Does nothing on a file
/// system that several machines may share. After a failure it removes the index. A failure of that is only logged.
pub(crate) fn rebuild(dir: BorrowedFd<'_>, entries: &[Entry]) {
    if boot::is_shared(dir) {
        return;
    }
    if try_rebuild(dir, entries).is_none() {
        log::debug!("no index could be made of {} leases", entries.len());
        discard(dir);
    }
}

/// Removes the index of `dir`. A failure is only logged, because a changed directory makes the index invalid anyway.
pub(crate) fn discard(dir: BorrowedFd<'_>) {
    if let Err(err) = files::remove(dir, INDEX) {
        log::debug!("removing {INDEX}: {err}");
    }
}

fn try_rebuild(dir: BorrowedFd<'_>, entries: &[Entry]) -> Option<()> {
    // The table is at most a quarter full at first, so it has room to grow.
    let slots = (entries.len() as u64 * 4).next_power_of_two().max(1024);
    let mut table = vec![0; usize::try_from(length_for(slots)?).ok()?];
    for new in entries {
        let start = HEADER + usize::try_from(home(new.0, slots)).ok()? * SLOT;
        let window = table.get_mut(start..start + WINDOW * SLOT)?;
        window.chunks_exact_mut(SLOT).find(|slot| kind(slot) == FREE)?.copy_from_slice(&slot(*new));
    }
    files::remove(dir, INDEX).ok()?;
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = File::from(openat(dir, INDEX, flags, files::MODE).ok()?);
    file.write_all_at(&table, 0).ok()?;
    seal(&file, dir, slots, entries.len() as u64)
}

/// Gives `dir` a time of modification of its own, and writes the header with that time. Returns `None` if the file
/// system does not keep the nanoseconds, or something else fails.
fn seal(file: &File, dir: BorrowedFd<'_>, slots: u64, entries: u64) -> Option<()> {
    let mut random = [0; 4];
    // SAFETY: the buffer is as long as said.
    let length = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    if length != 4 {
        return None;
    }
    let nanos = u32::from_ne_bytes(random) % 1_000_000_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let time = TimeSpec::from(Duration::new(now.as_secs().checked_sub(2)?, nanos));
    futimens(dir, &TimeSpec::UTIME_OMIT, &time).ok()?;
    let stat = fstat(dir).ok()?;
    if (stat.st_mtime, stat.st_mtime_nsec) != (time.tv_sec(), time.tv_nsec()) {
        return None;
    }
    file.write_all_at(&header_for(dir, slots, entries)?, 0).ok()
}

/// Returns the header that belongs to the present state of `dir`.
fn header_for(dir: BorrowedFd<'_>, slots: u64, entries: u64) -> Option<[u8; HEADER]> {
    let Identity { place: (dev, ino), times } = Identity::from_stat(&fstat(dir).ok()?);
    let boot = boot_key()?;
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times.map(i64::cast_unsigned);
    let mut header = [0; HEADER];
    let words = [MAGIC, slots, dev, ino, mtime, mtime_nsec, ctime, ctime_nsec, boot, entries];
    for (place, word) in header.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Some(header)
}

/// Returns the hash of this boot's ID. An index of an earlier boot is invalid, because a power failure may have lost
/// changes.
fn boot_key() -> Option<u64> {
    static BOOT: OnceLock<Option<u64>> = OnceLock::new();
    *BOOT.get_or_init(|| boot::boot_id().ok().map(|id| key(&id)))
}

/// Returns the length of the file in bytes, or `None` for an invalid number of slots.
fn length_for(slots: u64) -> Option<u64> {
    let valid = slots.is_power_of_two() && slots <= MAX_SLOTS;
    // The last slot has a whole window behind it, too.
    valid.then(|| HEADER as u64 + (slots + WINDOW as u64) * SLOT as u64)
}

/// Returns the number of an entry's own slot. The entry lies there if that slot is free.
fn home(key: u64, slots: u64) -> u64 {
    (key >> 32) & (slots - 1)
}

fn kind(slot: &[u8]) -> u8 {
    slot.get(24).copied().unwrap_or(FREE)
}

fn slot((key, ip): Entry) -> [u8; SLOT] {
    let (kind, octets) = match ip {
        IpAddr::V4(ip) => (V4, u128::from(u32::from(ip))),
        IpAddr::V6(ip) => (V6, u128::from(ip)),
    };
    let mut slot = [0; SLOT];
    let bytes = key.to_le_bytes().into_iter().chain(octets.to_le_bytes()).chain([kind]);
    for (place, byte) in slot.iter_mut().zip(bytes) {
        *place = byte;
    }
    slot
}

/// Reads a slot. `None` if it has no valid entry.
fn entry(slot: &[u8]) -> Option<Entry> {
    let key = u64::from_le_bytes(slot.get(..8)?.try_into().ok()?);
    let octets = u128::from_le_bytes(slot.get(8..24)?.try_into().ok()?);
    let ip = match kind(slot) {
        V4 => IpAddr::V4(u32::try_from(octets).ok()?.into()),
        V6 => IpAddr::V6(octets.into()),
        _ => return None,
    };
    Some((key, ip))
}

/// Puts an entry into an index with these bytes for entries, and takes it out. Fuzzers call it.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: File, entries: &[u8], key: u64, ip: IpAddr) -> io::Result<()> {
    let length = length_for(1).unwrap_or_default();
    file.set_len(0)?;
    file.set_len(length)?;
    let room = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(HEADER);
    file.write_all_at(entries.get(..room).unwrap_or(entries), HEADER as u64)?;
    let index = Index::over(file);
    let before = index.count(key, ip);
    if index.insert((key, ip)).is_some() {
        assert_eq!(index.count(key, ip), before.map(|count| count + 1));
        assert!(index.remove((key, ip)).is_some());
    }
    assert_eq!(index.count(key, ip), before);
    Ok(())
}
