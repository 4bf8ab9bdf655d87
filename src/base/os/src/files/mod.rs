//! Reads untrusted files, and writes files whole or not at all. A plain `read` of a path waits for ever on a pipe,
//! reads an endless device into memory, and follows links. Here only a regular file of a bounded size is read.

pub mod begun;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// Whether the last part of a path may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follows links, for files of administrators: configurations are often links.
    Follow,
    /// Refuses links, for files that we wrote ourselves, which are never links.
    Refuse,
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// Fails with the system's error. [`is_foreign`] recognizes the error for what isn't a regular file, or is larger.
pub fn read(path: &Path, limit: usize, links: Links) -> io::Result<Vec<u8>> {
    let no_link = match links {
        Links::Follow => 0,
        Links::Refuse => libc::O_NOFOLLOW,
    };
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | no_link;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|err| {
        match err.raw_os_error() {
            Some(libc::ELOOP) if links == Links::Refuse => foreign("is a symbolic link"),
            // A socket; a device without a driver.
            Some(libc::ENXIO | libc::ENODEV) => foreign("is not a regular file"),
            _ => err,
        }
    })?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(foreign("is not a regular file"));
    }
    let length = usize::try_from(meta.len())
        .ok()
        .filter(|length| *length <= limit)
        .ok_or_else(|| foreign(format!("is larger than {limit} bytes")))?;
    let mut bytes = Vec::with_capacity(length.saturating_add(1));
    // It may have grown meanwhile, and files in /proc say nothing of their length.
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(foreign(format!("is larger than {limit} bytes")));
    }
    Ok(bytes)
}

fn foreign(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Replaces the content of `file`, all of it or nothing. The new content is written to `fresh`, a name in the same
/// directory, which is then renamed. The mode is 0600. Nothing is synced to disk.
///
/// # Errors
/// Fails with the system's error. The file is then unchanged, and there is no `fresh`.
pub fn replace(file: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    draft(fresh, bytes, 0o600, false).and_then(|()| place(fresh, || std::fs::rename(fresh, file)))
}

/// Makes `file`, all of it or nothing, and only if there is no file of that name. The content is written to `fresh`, a
/// name in the same directory, and synced to disk; then it is linked.
///
/// # Errors
/// Fails with the system's error, which is [`io::ErrorKind::AlreadyExists`] if the name is taken. In any case there is
/// no `fresh` in the end.
pub fn create(file: &Path, fresh: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    draft(fresh, bytes, mode, true)?;
    // Unlike a rename, a link fails where the name is taken.
    let linked = std::fs::hard_link(fresh, file);
    let _ = std::fs::remove_file(fresh);
    linked
}

/// Writes a new file `fresh` with this content, and syncs it to disk if `sync`. Removes an old file of that name from a
/// killed process.
///
/// # Errors
/// Fails with the system's error. Then there is no `fresh`.
pub fn draft(fresh: &Path, bytes: &[u8], mode: u32, sync: bool) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(mode);
    let mut new = match options.open(fresh) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(fresh)?;
            options.open(fresh)?
        }
        opened => opened?,
    };
    place(fresh, || {
        new.write_all(bytes)?;
        if sync { new.sync_all() } else { Ok(()) }
    })
}

/// Removes `fresh` if `work` fails. The first error counts.
fn place(fresh: &Path, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    work().inspect_err(|_| {
        let _ = std::fs::remove_file(fresh);
    })
}

/// Returns the names in a directory, except `.` and `..`. Without the directory there are none. The standard library's
/// type for directories panics if closing one fails, so it is not used.
///
/// # Errors
/// Fails with the system's error.
pub fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = Dir::open(dir, flags, Mode::empty()).map_err(io::Error::from);
    let Some(mut entries) = opened.unless_absent()? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns true if and only if an error of [`read`] says that the file isn't regular, or is too large.
pub fn is_foreign(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::InvalidData
}

/// Whether an error says that the file cannot exist. That includes a part of the path that is no directory, and a
/// name that is too long.
pub fn is_absent(err: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(err.kind(), NotFound | NotADirectory | InvalidFilename)
}

/// Makes a missing file a value, for requests about files that may be missing.
pub trait IfPresent<T> {
    /// `None` without the file.
    ///
    /// # Errors
    /// All others.
    fn if_present(self) -> io::Result<Option<T>>;

    /// `None` if the file cannot exist ([`is_absent`]).
    ///
    /// # Errors
    /// All others.
    fn unless_absent(self) -> io::Result<Option<T>>;
}

impl<T> IfPresent<T> for io::Result<T> {
    fn if_present(self) -> io::Result<Option<T>> {
        match self {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    fn unless_absent(self) -> io::Result<Option<T>> {
        match self {
            Err(err) if is_absent(&err) => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_of_a_reasonable_size() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        File::create(at("large")).unwrap().set_len(1 << 40).unwrap();
        for links in [Links::Follow, Links::Refuse] {
            assert_eq!(read(&at("file"), 4, links).unwrap(), b"text");
            for name in ["pipe", "socket", "large", "."] {
                let err = read(&at(name), 1000, links).unwrap_err();
                assert!(is_foreign(&err) && !is_absent(&err), "{name}: {err}");
            }
            assert!(is_foreign(&read(&at("file"), 3, links).unwrap_err()));
            assert!(is_foreign(&read(Path::new("/dev/zero"), 1000, links).unwrap_err()));
            assert!(is_foreign(&read(Path::new("/proc/self/status"), 10, links).unwrap_err()));
            for name in ["nothing", "file/below", &"x".repeat(300)] {
                assert!(is_absent(&read(&at(name), 10, links).unwrap_err()), "{name}");
                assert_eq!(names(&at(name)), [""; 0], "{name}");
            }
        }
        assert!(read(&at("pipe"), 1, Links::Refuse).unless_absent().is_err());
        assert_eq!(read(&at("link"), 4, Links::Follow).unwrap(), b"text");
        assert!(is_foreign(&read(&at("link"), 4, Links::Refuse).unwrap_err()));
        assert!(!is_foreign(&read(&at("loop"), 4, Links::Follow).unwrap_err()));
    }

    /// The names in a directory.
    fn names(dir: &Path) -> Vec<String> {
        let found = super::names(dir).unwrap();
        let mut names: Vec<_> = found.into_iter().map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // A draft that a killed process has left, and a draft that is a link to something else.
        std::fs::write(at("fresh"), "a longer text than the new one").unwrap();
        replace(&at("file"), &at("fresh"), b"one").unwrap();
        std::fs::write(at("other"), "other").unwrap();
        symlink(at("other"), at("fresh")).unwrap();
        replace(&at("file"), &at("fresh"), b"two").unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"two");
        assert_eq!(std::fs::read(at("other")).unwrap(), b"other");
        assert_eq!(names(dir.path()), ["file", "other"]);
        // A directory can't be replaced by a file.
        std::fs::create_dir(at("dir")).unwrap();
        assert!(replace(&at("dir"), &at("fresh"), b"three").is_err());
        assert_eq!(names(dir.path()), ["dir", "file", "other"]);
    }

    #[test]
    fn a_file_is_created_whole_or_not_at_all() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("fresh"), "left").unwrap();
        create(&at("file"), &at("fresh"), b"one", 0o600).unwrap();
        let taken = create(&at("file"), &at("fresh"), b"two", 0o600).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(at("file")).unwrap(), b"one");
        assert_eq!(std::fs::metadata(at("file")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(dir.path()), ["file"]);
    }
}
