//! `/proc/sys/net`: relative to the namespace of the thread that opens the file.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::{Error, Result, procfs};

const ROOT: &str = "/proc/sys";

/// Reads `net/ipv4/ip_forward` and so on (a path below /proc/sys), trimmed. The separator is
/// the slash, because the names of links, which are parts of keys, may have dots.
///
/// # Errors
/// ENOENT if the kernel has no such key; EINVAL for what can't be a key.
pub fn read(key: &str) -> Result<String> {
    let what = || format!("read sysctl {key}");
    let path = path(key).map_err(|reason| Error::new(what(), Errno::EINVAL).reason(reason))?;
    let value = File::open(path).and_then(value_of).map_err(|err| explained(Error::io(what(), &err)))?;
    Ok(trimmed(&value))
}

fn trimmed(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim().to_owned()
}

/// A value that fits into one piece, as nearly all do, is read in one system call: the kernel
/// gives a value whole or fills the buffer.
fn value_of(mut file: File) -> std::io::Result<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = loop {
        match file.read(&mut value) {
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => break outcome?,
        }
    };
    value.truncate(length);
    if length == 256 {
        file.read_to_end(&mut value)?;
    }
    Ok(value)
}

/// Writes a key.
///
/// # Errors
/// ENOENT if the kernel has no such key, EROFS where /proc/sys is read-only.
pub fn write(key: &str, value: &str) -> Result<()> {
    let what = || format!("set sysctl {key} to {value}");
    let path = path(key).map_err(|reason| Error::new(what(), Errno::EINVAL).reason(reason))?;
    put(File::options().write(true).open(path), value).map_err(|err| err.of(&what()))
}

/// In one piece: a second write would be a second value.
fn put(file: std::io::Result<File>, value: &str) -> std::result::Result<(), Refusal> {
    let length = file.and_then(|mut file| file.write(value.as_bytes()))?;
    if length == value.len() { Ok(()) } else { Err(Refusal::Short(length, value.len())) }
}

/// Why a value could not be written.
enum Refusal {
    Io(std::io::Error),
    Short(usize, usize),
}

impl From<std::io::Error> for Refusal {
    fn from(err: std::io::Error) -> Self {
        Refusal::Io(err)
    }
}

impl Refusal {
    fn of(self, what: &str) -> Error {
        match self {
            Refusal::Io(err) => explained(Error::io(what, &err)),
            Refusal::Short(taken, length) => {
                Error::new(what, Errno::EINVAL).reason(format!("the kernel took {taken} of {length} bytes"))
            }
        }
    }
}

/// A directory of keys, like `net/ipv6/conf/eth0`: on a host with many namespaces, finding it
/// costs more than all else, as the kernel walks past the directories of that name of all of
/// them; it is looked for in a mount of its own then.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    key: String,
}

impl Dir {
    /// Opens it, in the namespace of this thread. `number` is the namespace's number on the
    /// host ([`Link::far`](super::link::Link::far)), if that is known.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn open(key: &str, number: Option<i32>) -> Result<Self> {
        let what = || format!("open sysctls {key}");
        let path = path(key).map_err(|reason| Error::new(what(), Errno::EINVAL).reason(reason))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // Without the privilege to mount one, the one that is there serves.
        let own = if procfs::pays(number) { procfs::mount().ok() } else { None };
        let opened = match (&own, path.strip_prefix("/proc")) {
            (Some(own), Ok(below)) => openat(own, below, flags, Mode::empty()),
            _ => nix::fcntl::open(&path, flags, Mode::empty()),
        };
        match opened {
            Ok(fd) => Ok(Dir { fd, key: key.to_owned() }),
            Err(errno) => Err(explained(Error::new(what(), errno))),
        }
    }

    /// [`write()`] of a key in it.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn write(&self, name: &str, value: &str) -> Result<()> {
        let what = || format!("set sysctl {}/{name} to {value}", self.key);
        put(self.file(name, OFlag::O_WRONLY), value).map_err(|err| err.of(&what()))
    }

    /// [`ensure`] of a key in it.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn ensure(&self, name: &str, value: &str) -> Result<Option<String>> {
        let what = || format!("read sysctl {}/{name}", self.key);
        let old = self
            .file(name, OFlag::O_RDONLY)
            .and_then(value_of)
            .map_err(|err| explained(Error::io(what(), &err)))?;
        let old = trimmed(&old);
        if old == value {
            return Ok(None);
        }
        self.write(name, value)?;
        Ok(Some(old))
    }

    fn file(&self, name: &str, access: OFlag) -> std::io::Result<File> {
        // Keys here are constants of the callers; nothing leads out.
        if name.contains('/') || name == ".." {
            return Err(Errno::EINVAL.into());
        }
        Ok(openat(&self.fd, name, access | OFlag::O_CLOEXEC, Mode::empty())?.into())
    }
}

/// Writes a key only if it has another value: read-only file systems with the right value
/// are fine. Returns the old value if it was changed.
///
/// # Errors
/// Fails as [`write()`] does.
pub fn ensure(key: &str, value: &str) -> Result<Option<String>> {
    let old = read(key)?;
    if old == value {
        return Ok(None);
    }
    write(key, value)?;
    Ok(Some(old))
}

/// The file of a key. Keys have the names of links in them, which come from outside: nothing
/// may lead out of /proc/sys.
fn path(key: &str) -> std::result::Result<PathBuf, &'static str> {
    if key.contains('\0') {
        return Err("a key has no NUL");
    }
    if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("a key is a path below /proc/sys without empty, . or .. parts");
    }
    Ok(Path::new(ROOT).join(key))
}

/// The usual reasons, which the errno doesn't tell.
fn explained(err: Error) -> Error {
    match err.errno {
        Errno::ENOENT => err.reason("the kernel has no such key, or the link is gone"),
        Errno::EROFS => err.reason("/proc/sys is mounted read-only"),
        _ => err,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_netns;
    use crate::{NetNs, Netlink, link};

    #[test]
    fn keys_stay_below_proc_sys() {
        for key in ["", "/etc/passwd", "net/../../etc/passwd", "..", "net//x", "net/.", "a\0b"] {
            assert!(read(key).unwrap_err().is(Errno::EINVAL), "{key:?}");
            assert!(write(key, "1").unwrap_err().is(Errno::EINVAL), "{key:?}");
        }
    }

    /// With few namespaces and with many, by the procfs that is there and by one's own.
    #[test]
    fn directories_in_either_procfs() {
        in_netns("directories_in_either_procfs", || {
            let mounts = || std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let before = mounts();
            for (turn, number) in [None, Some(-1), Some(0), Some(1_000_000)].into_iter().enumerate() {
                let dir = Dir::open("net/ipv6/conf/lo", number).unwrap();
                let value = (turn % 2).to_string();
                dir.write("accept_dad", &value).unwrap();
                assert_eq!(read("net/ipv6/conf/lo/accept_dad").unwrap(), value, "{number:?}");
                assert_eq!(dir.ensure("accept_dad", &value).unwrap(), None);
                assert!(dir.write("../lo/accept_dad", "0").unwrap_err().is(Errno::EINVAL));
                let none = Dir::open("net/ipv6/conf/none", number).unwrap_err();
                assert!(none.is_missing(), "{none}");
            }
            assert_eq!(before, mounts(), "nobody sees the mount");
        });
    }

    #[test]
    fn every_namespace_has_its_own() {
        in_netns("every_namespace_has_its_own", || {
            let outside = NetNs::current().unwrap();
            in_netns("inner", move || {
                let key = "net/ipv4/ip_forward";
                assert_eq!(outside.enter(|| read(key)).unwrap().unwrap(), read(key).unwrap());
                let old = read(key).unwrap();
                let new = if old == "0" { "1" } else { "0" };
                assert_eq!(ensure(key, new).unwrap(), Some(old.clone()));
                assert_eq!(ensure(key, new).unwrap(), None);
                assert_eq!(read(key).unwrap(), new);
                assert_eq!(outside.enter(|| read(key)).unwrap().unwrap(), old);
            });
        });
    }

    #[test]
    fn names_with_dots_and_reasons() {
        in_netns("names_with_dots_and_reasons", || {
            let mut netlink = Netlink::open().unwrap();
            let bridge = link::NewBridge {
                name: "br.100",
                mtu: None,
                mac: link::Mac::random(),
                vlan_filtering: false,
            };
            netlink.create_link(link::add_bridge(&bridge)).unwrap();
            let key = "net/ipv6/conf/br.100/accept_ra";
            write(key, "0").unwrap();
            assert_eq!(read(key).unwrap(), "0");

            let err = write(key, "many").unwrap_err();
            assert!(err.is(Errno::EINVAL), "{err}");
            assert!(err.to_string().contains("set sysctl net/ipv6/conf/br.100/accept_ra to many"));

            let err = ensure("net/ipv6/conf/none/accept_ra", "0").unwrap_err();
            assert!(err.is_missing() && err.reason.contains("no such key"), "{err}");
        });
    }
}
