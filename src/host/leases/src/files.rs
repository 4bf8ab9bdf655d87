//! Makes files that appear whole or not at all, and reads files without being stopped by links, pipes or huge files.
//!
//! A new file is written without a name (`O_TMPFILE`) and then linked into the directory, so a kill leaves nothing. On
//! a file system without unnamed files it has a temporary name first, which [`crate::is_temporary`] recognises later.
//! `cnimble_os::files` writes under a name, which another ADD would have to clear away.
//!
//! Nothing is synced to disk. A lease is valid until the next boot, so a power failure removes nothing that is needed.
//! It can leave an empty file under a lease's name; [`crate::holder`] takes that for a lease without an owner.
//! docs/RELIABILITY.md has the details, and the cost of an `fsync`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::TEMPORARY;

/// The maximum size of a file, in bytes. A lease has less: a container ID and the name of an interface.
pub const LIMIT: usize = 4096;

/// The buffer for a file. One byte more than the limit detects a larger file.
pub(crate) type Buffer = [u8; LIMIT + 1];

pub(crate) const BUFFER: Buffer = [0; LIMIT + 1];

/// The mode of leases. Only root may read them, as with the Go plugin.
pub const MODE: Mode = Mode::from_bits_truncate(0o600);

static COUNTER: AtomicU32 = AtomicU32::new(0);

fn temporary_name() -> String {
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{TEMPORARY}{}-{count}", std::process::id())
}

/// The device, inode and times of a file. Another file under the same name has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub(crate) place: (u64, u64),
    /// The times of the content and of the inode, each in seconds and nanoseconds.
    pub(crate) times: [i64; 4],
}

impl Identity {
    /// Converts the numbers, which are shorter on machines of 32 bits.
    pub(crate) fn from_stat(stat: &FileStat) -> Self {
        fn same<N, M: From<N>>(number: N) -> M {
            M::from(number)
        }
        Identity {
            place: (same(stat.st_dev), same(stat.st_ino)),
            times: [
                same(stat.st_mtime),
                same(stat.st_mtime_nsec),
                same(stat.st_ctime),
                same(stat.st_ctime_nsec),
            ],
        }
    }
}

/// What is under a name in a directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<T> {
    /// Nothing.
    Absent,
    /// Something that is no regular file, or a file larger than [`LIMIT`].
    Foreign,
    /// A regular file.
    Regular(T),
}

impl<T> Entry<T> {
    /// Returns the same entry with another form of the regular file.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Entry<U> {
        match self {
            Entry::Absent => Entry::Absent,
            Entry::Foreign => Entry::Foreign,
            Entry::Regular(file) => Entry::Regular(change(file)),
        }
    }

    fn and_then<U>(self, next: impl FnOnce(T) -> io::Result<Entry<U>>) -> io::Result<Entry<U>> {
        match self {
            Entry::Absent => Ok(Entry::Absent),
            Entry::Foreign => Ok(Entry::Foreign),
            Entry::Regular(file) => next(file),
        }
    }
}

/// The content of a small file.
pub type Content = Entry<Vec<u8>>;

/// Opens `name` in `dir` for reading, if it is a regular file. Never follows a symbolic link or waits for the writer of
/// a pipe.
pub fn open_regular(dir: BorrowedFd<'_>, name: &str) -> io::Result<Entry<File>> {
    open(dir, name, OFlag::O_RDONLY)?.and_then(|file| {
        let kind = fstat(&file)?.st_mode & SFlag::S_IFMT.bits();
        Ok(if kind == SFlag::S_IFREG.bits() { Entry::Regular(file) } else { Entry::Foreign })
    })
}

/// Opens `name` without following a symbolic link. The result may also be a directory or the end of a pipe.
fn open(dir: BorrowedFd<'_>, name: &str, access: OFlag) -> io::Result<Entry<File>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    match openat(dir, name, access | flags, Mode::empty()) {
        Ok(file) => Ok(Entry::Regular(file.into())),
        Err(Errno::ENOENT) => Ok(Entry::Absent),
        // This is a symbolic link (ELOOP), or a socket or a device without a driver (ENXIO, ENODEV). A directory can't
        // be written to (EISDIR).
        Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV | Errno::EISDIR) => Ok(Entry::Foreign),
        Err(err) => Err(err.into()),
    }
}

/// Reads a small file.
///
/// # Errors
/// Fails if the system refuses it.
pub fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<Content> {
    open_regular(dir, name)?.and_then(|file| read_open(&file))
}

/// Reads a small file that is open.
///
/// # Errors
/// Fails if the system refuses it.
pub fn read_open(file: &File) -> io::Result<Content> {
    let mut buffer = BUFFER;
    Ok(fill(file, &mut buffer)?.map(<[u8]>::to_vec))
}

/// Reads a file that the directory lists as a regular one. This takes three system calls, because verbs do it for each
/// lease.
pub(crate) fn read_known<'b>(
    dir: BorrowedFd<'_>,
    name: &str,
    buffer: &'b mut Buffer,
) -> io::Result<Entry<&'b [u8]>> {
    open(dir, name, OFlag::O_RDONLY)?.and_then(|file| fill(&file, buffer))
}

/// Reads the whole file in one call. A file that is too large is [`Entry::Foreign`].
fn fill<'b>(mut file: &File, buffer: &'b mut Buffer) -> io::Result<Entry<&'b [u8]>> {
    let length = loop {
        match file.read(buffer) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            outcome => break outcome?,
        }
    };
    Ok(buffer.get(..length).filter(|bytes| bytes.len() <= LIMIT).map_or(Entry::Foreign, Entry::Regular))
}

/// Makes `name` in `dir` with `content`. Calls `prepare` with the file before it has its name. Returns false if the
/// name exists.
pub fn create(
    dir: BorrowedFd<'_>,
    name: &str,
    content: &[u8],
    prepare: impl Fn(&File) -> io::Result<()>,
) -> io::Result<bool> {
    let fill = |file: OwnedFd| -> io::Result<File> {
        let mut file = File::from(file);
        file.write_all(content)?;
        prepare(&file)?;
        Ok(file)
    };
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    match openat(dir, ".", flags, MODE) {
        Ok(file) => {
            let file = fill(file)?;
            // The short way needs CAP_DAC_READ_SEARCH. Without it, the kernel answers ENOENT.
            match linkat(&file, "", dir, name, AtFlags::AT_EMPTY_PATH) {
                Ok(()) => return Ok(true),
                Err(Errno::EEXIST) => return Ok(false),
                Err(_) => {}
            }
            // Otherwise the way is by /proc, as open(2) says.
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            match linkat(AT_FDCWD, unnamed.as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW) {
                Ok(()) => return Ok(true),
                Err(Errno::EEXIST) => return Ok(false),
                // There is no /proc, so the file needs a temporary name.
                Err(Errno::ENOENT) => {}
                Err(err) => return Err(err.into()),
            }
        }
        // A kernel or file system without O_TMPFILE answers with one of these.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => {}
        Err(err) => return Err(err.into()),
    }
    create_by_name(dir, name, fill)
}

/// Does what [`create`] does, with a temporary name.
fn create_by_name(
    dir: BorrowedFd<'_>,
    name: &str,
    fill: impl Fn(OwnedFd) -> io::Result<File>,
) -> io::Result<bool> {
    let temporary = Temporary::new(dir)?;
    fill(temporary.open()?)?;
    match linkat(dir, temporary.name.as_str(), dir, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

/// Makes `name` in `dir` with `content`, and replaces an old file. Only a new file gets `mode`.
///
/// If the old text is not longer, it is overwritten in a single write, which a kill cannot split. Renaming a new file
/// would be as safe, but ext4 then writes its data at once (`auto_da_alloc`), which takes milliseconds.
pub fn replace(dir: BorrowedFd<'_>, name: &str, content: &[u8], mode: Mode) -> io::Result<()> {
    if let Entry::Regular(file) = open(dir, name, OFlag::O_WRONLY)? {
        let meta = file.metadata()?;
        // A file with several hard links has its content under another name, too.
        if meta.is_file() && meta.nlink() == 1 && meta.len() <= content.len() as u64 {
            return match file.write_at(content, 0)? {
                written if written == content.len() => Ok(()),
                _ => Err(io::ErrorKind::WriteZero.into()),
            };
        }
    }
    let temporary = Temporary::new(dir)?;
    let mut file = File::from(temporary.open()?);
    file.write_all(content)?;
    if mode != MODE {
        fchmod(&file, mode)?;
    }
    renameat(dir, temporary.name.as_str(), dir, name)?;
    Ok(())
}

/// Removes `name` from `dir`. A missing file is no error.
pub fn remove(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Fails if no file can be written in `dir`. It writes a few bytes, so a full disk counts. Leaves nothing.
pub(crate) fn probe(dir: BorrowedFd<'_>) -> io::Result<()> {
    let file = match openat(dir, ".", OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC, MODE) {
        Ok(file) => file,
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL) => {
            return File::from(Temporary::new(dir)?.open()?).write_all(b"probe");
        }
        Err(err) => return Err(err.into()),
    };
    File::from(file).write_all(b"probe")
}

/// A temporary name, which is removed on drop unless the file was renamed.
struct Temporary<'a> {
    dir: BorrowedFd<'a>,
    name: String,
}

impl<'a> Temporary<'a> {
    fn new(dir: BorrowedFd<'a>) -> io::Result<Self> {
        let temporary = Temporary { dir, name: temporary_name() };
        // A file of this name is from a dead process that had our process ID.
        remove(dir, &temporary.name)?;
        Ok(temporary)
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(self.dir, self.name.as_str(), flags, MODE)?)
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // What can't be removed now is removed by a later ADD, DEL or GC.
        let _ = remove(self.dir, &self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn listing(dir: &tempfile::TempDir) -> Vec<String> {
        let names = std::fs::read_dir(dir.path()).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_once_with_all_of_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        assert!(create(fd.as_fd(), "a", b"one", |_| Ok(())).unwrap());
        assert!(!create(fd.as_fd(), "a", b"two", |_| Ok(())).unwrap());
        assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Regular(b"one".to_vec()));
        let mode = std::fs::metadata(dir.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // Longer, as long, shorter, shorter again; the mode stays through the first two.
        for text in ["three", "seven", "two", "x"] {
            replace(fd.as_fd(), "a", text.as_bytes(), MODE).unwrap();
            assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Regular(text.into()));
        }
        replace(fd.as_fd(), "a", b"three", MODE).unwrap();
        assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Regular(b"three".to_vec()));
        // Another name of the file keeps what it had.
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        replace(fd.as_fd(), "a", b"seven", MODE).unwrap();
        assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Regular(b"seven".to_vec()));
        assert_eq!(read(fd.as_fd(), "b").unwrap(), Content::Regular(b"three".to_vec()));
        remove(fd.as_fd(), "b").unwrap();
        assert_eq!(listing(&dir), ["a"]);
        remove(fd.as_fd(), "a").unwrap();
        remove(fd.as_fd(), "a").unwrap();
        assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Absent);
    }

    #[test]
    fn nothing_is_left_when_preparing_fails() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        create(fd.as_fd(), "a", b"one", |_| Err(io::Error::other("no"))).unwrap_err();
        assert!(listing(&dir).is_empty());
    }

    #[test]
    fn file_systems_without_unnamed_files_get_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let fill = |file: OwnedFd| {
            let mut file = File::from(file);
            file.write_all(b"one").map(|()| file)
        };
        assert!(create_by_name(fd.as_fd(), "a", fill).unwrap());
        assert!(!create_by_name(fd.as_fd(), "a", fill).unwrap());
        create_by_name(fd.as_fd(), "b", |_| Err(io::Error::other("no"))).unwrap_err();
        assert_eq!(listing(&dir), ["a"]);
        assert_eq!(read(fd.as_fd(), "a").unwrap(), Content::Regular(b"one".to_vec()));
    }

    #[test]
    fn reading_isnt_fooled_by_what_is_no_lease() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let fd = File::open(dir.path()).unwrap();
        std::fs::write(at("secret"), "c1").unwrap();
        symlink(at("secret"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::fs::write(at("large"), vec![b'x'; 5000]).unwrap();
        for name in ["link", "dangling", "directory", "pipe", "socket", "large"] {
            assert_eq!(read(fd.as_fd(), name).unwrap(), Content::Foreign, "{name}");
        }
        for name in ["link", "dangling", "directory", "pipe", "socket"] {
            assert!(!create(fd.as_fd(), name, b"c1", |_| Ok(())).unwrap(), "{name}");
        }
    }
}
