//! Reading files of which nobody knows who put them there, and writing them whole.
//!
//! A plain `read` of a path waits for ever on a pipe, reads a device without an end into
//! memory, and follows a link to wherever it leads. What is read here is a regular file, and
//! not a huge one, or it is an error.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether the last part of a path may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// For what administrators write: configurations are often links.
    Follow,
    /// For what we wrote ourselves, which never is one.
    Refuse,
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// The system's; [`is_foreign`] tells what isn't a regular file, or is larger.
pub fn read(path: &Path, limit: usize, links: Links) -> io::Result<Vec<u8>> {
    let no_link = match links {
        Links::Follow => 0,
        Links::Refuse => libc::O_NOFOLLOW,
    };
    // Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
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
    let too_large = || foreign(format!("is larger than {limit} bytes"));
    let length = usize::try_from(meta.len()).ok().filter(|length| *length <= limit).ok_or_else(too_large)?;
    let mut bytes = Vec::with_capacity(length.saturating_add(1));
    // It may have grown meanwhile, and files in /proc say nothing of their length.
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(too_large());
    }
    Ok(bytes)
}

fn foreign(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Writes a file, all of it or nothing: under the name `fresh` in the same directory first, which is then
/// renamed. What has that name already is removed: a process that was killed has left it, or somebody wants
/// another file to be written. Nothing is synced to disk.
///
/// # Errors
/// The system's; then there is no `fresh`.
pub fn replace(file: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    let create = || File::options().write(true).create_new(true).mode(0o600).open(fresh);
    let opened = match create() {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(fresh).and_then(|()| create())
        }
        opened => opened,
    };
    let written = opened.and_then(|mut new| new.write_all(bytes)).and_then(|()| std::fs::rename(fresh, file));
    if written.is_err() {
        // The error is what counts.
        let _ = std::fs::remove_file(fresh);
    }
    written
}

/// Whether an error of [`read`] says that what is there can't be a file of ours.
pub fn is_foreign(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::InvalidData
}

/// Whether an error says that there is no file of that name, and can be none: also where a
/// part of the path is no directory, or the name is longer than names can be.
pub fn is_absent(err: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(err.kind(), NotFound | NotADirectory | InvalidFilename)
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
            }
        }
        assert_eq!(read(&at("link"), 4, Links::Follow).unwrap(), b"text");
        assert!(is_foreign(&read(&at("link"), 4, Links::Refuse).unwrap_err()));
        assert!(!is_foreign(&read(&at("loop"), 4, Links::Follow).unwrap_err()));
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
