//! `/proc/sys/net`: relative to the namespace of the thread that opens the file.
//!
//! Where `/proc/sys` is read-only (Kata, hardened hosts, containers), a key is written in a private procfs. Mounting
//! one takes root of the first user namespace. Elsewhere a key that has the value already counts as written.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::{Error, Result, procfs};

const ROOT: &str = "/proc/sys";

/// Reads `net/ipv4/ip_forward` and so on (a path below /proc/sys), trimmed. The separator is the slash, because the
/// names of links may have dots.
///
/// # Errors
/// ENOENT if the kernel has no such key; EINVAL for what can't be a key.
pub fn read(key: &str) -> Result<String> {
    let path =
        path(key).map_err(|reason| Error::new(format!("read sysctl {key}"), Errno::EINVAL).reason(reason))?;
    let value = File::open(path)
        .and_then(value_of)
        .map_err(|err| explained(Error::io(format!("read sysctl {key}"), &err)))?;
    Ok(trimmed(&value))
}

fn trimmed(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim().to_owned()
}

/// Nearly all values fit into one piece, which is read in one system call: the kernel gives a value whole or fills the
/// buffer.
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

/// Writes the value of a key.
///
/// # Errors
/// Fails with ENOENT if the kernel has no such key. Fails with EROFS if /proc/sys is read-only, no private procfs can
/// be mounted, and the key has another value.
pub fn write(key: &str, value: &str) -> Result<()> {
    let what = || format!("set sysctl {key} to {value}");
    let path = path(key).map_err(|reason| Error::new(what(), Errno::EINVAL).reason(reason))?;
    match write_value(File::options().write(true).open(&path), value) {
        Err(Refusal::Io(err)) if is_read_only(&err) => put_privately(key, value),
        outcome => outcome,
    }
    .map_err(|err| err.into_error(&what()))
}

/// Does what [`write()`] does. If the host has many namespaces, uses a private procfs like [`Dir::open`].
///
/// # Errors
/// Fails as [`write()`] does.
pub fn write_among(number: Option<i32>, key: &str, value: &str) -> Result<()> {
    if let (Some(own), Ok(_)) = (procfs::open_private(number), path(key)) {
        let file = openat(own, &below_proc(key), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        if write_value(file.map(File::from).map_err(Into::into), value).is_ok() {
            return Ok(());
        }
    }
    write(key, value)
}

fn is_read_only(err: &std::io::Error) -> bool {
    err.raw_os_error() == Some(Errno::EROFS as i32)
}

/// Writes a key in a private procfs. Succeeds also if that fails and the key has this value already.
fn put_privately(key: &str, value: &str) -> std::result::Result<(), Refusal> {
    let written = match procfs::mount() {
        Ok(own) => {
            let file = openat(own, &below_proc(key), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
            write_value(file.map(File::from).map_err(Into::into), value)
        }
        Err(err) => Err(Refusal::ReadOnly(err.errno)),
    };
    match written {
        Err(_) if read(key).is_ok_and(|now| same(&now, value)) => Ok(()),
        written => written,
    }
}

/// Compares a value as [`read`] returns it with a wanted one. The kernel separates numbers by tabs, however written.
pub fn same(now: &str, wanted: &str) -> bool {
    now.split_whitespace().eq(wanted.split_whitespace())
}

/// Returns whether /proc/sys is mounted read-only (statfs(2)).
pub fn is_mounted_read_only() -> bool {
    statvfs(ROOT).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_RDONLY))
}

/// Writes the value in one piece, because a second write would be a second value.
fn write_value(file: std::io::Result<File>, value: &str) -> std::result::Result<(), Refusal> {
    let length = file.and_then(|mut file| file.write(value.as_bytes()))?;
    if length == value.len() { Ok(()) } else { Err(Refusal::Short(length, value.len())) }
}

/// Why a value could not be written.
enum Refusal {
    Io(std::io::Error),
    Short(usize, usize),
    /// /proc/sys is read-only, and a private procfs is refused with this errno.
    ReadOnly(Errno),
}

impl From<std::io::Error> for Refusal {
    fn from(err: std::io::Error) -> Self {
        Refusal::Io(err)
    }
}

impl Refusal {
    fn into_error(self, what: &str) -> Error {
        match self {
            Refusal::Io(err) => explained(Error::io(what, &err)),
            Refusal::Short(taken, length) => {
                Error::new(what, Errno::EINVAL).reason(format!("the kernel took {taken} of {length} bytes"))
            }
            Refusal::ReadOnly(errno) => Error::new(what, Errno::EROFS).reason(format!(
                "/proc/sys is mounted read-only, and a private procfs is refused: {errno:?}"
            )),
        }
    }
}

/// A directory of keys, like `net/ipv6/conf/eth0`. Where a host has many namespaces, it is looked for in a private
/// mount: the kernel walks past the directories of that name of all of them.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    key: String,
}

impl Dir {
    /// Opens it, in the namespace of this thread. `number` is the namespace's number on the host
    /// ([`Link::peer_netnsid`](super::link::Link::peer_netnsid)), if known.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn open(key: &str, number: Option<i32>) -> Result<Self> {
        let path = path(key)
            .map_err(|reason| Error::new(format!("open sysctls {key}"), Errno::EINVAL).reason(reason))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // Without the privilege to mount one, the one that is there serves.
        let own = procfs::open_private(number);
        let opened = match &own {
            Some(own) => openat(own, &below_proc(key), flags, Mode::empty()),
            None => nix::fcntl::open(&path, flags, Mode::empty()),
        };
        match opened {
            Ok(fd) => Ok(Dir { fd, key: key.to_owned() }),
            Err(errno) => Err(explained(Error::new(format!("open sysctls {key}"), errno))),
        }
    }

    /// [`write()`] of a key in it.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn write(&self, name: &str, value: &str) -> Result<()> {
        match write_value(self.file(name, OFlag::O_WRONLY), value) {
            Err(Refusal::Io(err)) if is_read_only(&err) => write(&format!("{}/{name}", self.key), value),
            outcome => {
                outcome.map_err(|err| err.into_error(&format!("set sysctl {}/{name} to {value}", self.key)))
            }
        }
    }

    /// [`ensure`] of a key in it.
    ///
    /// # Errors
    /// Fails as [`write()`] does.
    pub fn ensure(&self, name: &str, value: &str) -> Result<Option<String>> {
        let old = self
            .file(name, OFlag::O_RDONLY)
            .and_then(value_of)
            .map_err(|err| explained(Error::io(format!("read sysctl {}/{name}", self.key), &err)))?;
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

/// Writes a key only if it has another value. Returns the old value if it was changed.
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

/// Keys have the names of links in them, which come from outside: nothing may lead out of /proc/sys.
fn path(key: &str) -> std::result::Result<PathBuf, &'static str> {
    if key.contains('\0') {
        return Err("a key has no NUL");
    }
    if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("a key is a path below /proc/sys without empty, . or .. parts");
    }
    Ok(Path::new(ROOT).join(key))
}

/// The file of a key that [`path`] has checked, relative to the root of a procfs.
fn below_proc(key: &str) -> PathBuf {
    Path::new("sys").join(key)
}

/// Adds the usual reasons for ENOENT, which the errno doesn't tell.
fn explained(err: Error) -> Error {
    match err.errno {
        Errno::ENOENT => err.reason("the kernel has no such key, or the link is gone"),
        _ => err,
    }
}

#[cfg(test)]
mod tests {
    use nix::mount::MsFlags;
    use nix::sched::{CloneFlags, unshare};
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

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
                write_among(number, "net/ipv6/conf/lo/accept_ra", &value).unwrap();
                assert_eq!(read("net/ipv6/conf/lo/accept_ra").unwrap(), value, "{number:?}");
                assert!(write_among(number, "net/ipv6/conf/none/accept_ra", "0").unwrap_err().is_missing());
                assert!(write_among(number, "net/../lo", "0").unwrap_err().is(Errno::EINVAL));
                assert!(dir.write("../lo/accept_dad", "0").unwrap_err().is(Errno::EINVAL));
                let none = Dir::open("net/ipv6/conf/none", number).unwrap_err();
                assert!(none.is_missing(), "{none}");
            }
            assert_eq!(before, mounts(), "nobody sees the mount");
        });
    }

    /// Runs `test` on a thread whose mount namespace has a read-only /proc/sys.
    fn read_only(name: &str, test: impl FnOnce() + Send + 'static) {
        in_netns(name, || {
            // A mount namespace takes a thread with a working directory of its own (unshare(2)).
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            let mount = |source: Option<&str>, target: &str, flags: MsFlags| {
                nix::mount::mount(source, target, none, flags, none).unwrap();
            };
            mount(none, "/", MsFlags::MS_REC | MsFlags::MS_PRIVATE);
            mount(Some(ROOT), ROOT, MsFlags::MS_BIND);
            mount(none, ROOT, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
            test();
        });
    }

    #[test]
    fn a_read_only_proc_sys_is_written_in_a_private_procfs() {
        read_only("a_read_only_proc_sys_is_written_in_a_private_procfs", || {
            assert!(is_mounted_read_only());
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap_err();
            for value in ["1", "0"] {
                write("net/ipv4/ip_forward", value).unwrap();
                assert_eq!(read("net/ipv4/ip_forward").unwrap(), value);
                Dir::open("net/ipv6/conf/lo", None).unwrap().write("accept_dad", value).unwrap();
                assert_eq!(read("net/ipv6/conf/lo/accept_dad").unwrap(), value);
            }
            assert!(write("net/ipv4/none", "1").unwrap_err().is_missing());
        });
    }

    /// CAP_SYS_ADMIN is what fsopen(2) asks for.
    #[test]
    fn without_a_private_procfs_only_the_value_that_is_there_can_be_written() {
        read_only("without_a_private_procfs_only_the_value_that_is_there_can_be_written", || {
            write("net/ipv4/ip_forward", "0").unwrap();
            let net_admin = CapabilitySet::NET_ADMIN;
            let inheritable = CapabilitySet::empty();
            let sets = CapabilitySets { effective: net_admin, permitted: net_admin, inheritable };
            set_capabilities(None, sets).unwrap();
            write("net/ipv4/ip_forward", "0").unwrap();
            let err = write("net/ipv4/ip_forward", "1").unwrap_err();
            assert!(
                err.is(Errno::EROFS) && err.reason.contains("a private procfs is refused: EPERM"),
                "{err}"
            );
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
                group: None,
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
