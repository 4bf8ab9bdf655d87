//! Network namespaces: a handle, and a moment inside.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FileStat, fstat, stat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs, statfs};

use super::{Error, IfPresent as _, Result};

/// The namespace of the calling thread, not of the process's first one.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// The errors of a path without a namespace. The files in /proc of an ended process give ESRCH, and EACCES: see
/// [`has_ended`].
const GONE: [Errno; 6] =
    [Errno::ENOENT, Errno::ENOTDIR, Errno::EINVAL, Errno::ESRCH, Errno::ELOOP, Errno::ENAMETOOLONG];

const NOT_ONE: &str = "it is no network namespace";

/// Returns whether a path is in the /proc directory of a process that has ended (proc_pid_stat(5)): its directory is gone,
/// or it waits to be reaped.
fn has_ended(path: &Path) -> bool {
    let Ok(rest) = path.strip_prefix("/proc") else { return false };
    let Some(process) =
        rest.iter().next().filter(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    else {
        return false;
    };
    match fs::read_to_string(Path::new("/proc").join(process).join("stat")) {
        // The state follows the name, which is in parentheses and can contain some.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(err) => err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(Errno::ESRCH as i32),
    }
}

/// Device and inode of a namespace (namespaces(7)).
pub type Identity = (u64, u64);

/// An open network namespace.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    /// A thread inside returns here.
    home: Option<Arc<NetNs>>,
}

thread_local! {
    /// The namespace from which this thread has entered another, while it is inside. It has no destructor, whose
    /// registration would cost system calls and pages.
    static HOME: ManuallyDrop<RefCell<Option<Arc<NetNs>>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

impl NetNs {
    /// Opens the namespace at `path` (a bind mount or /proc/PID/ns/net).
    ///
    /// # Errors
    /// Fails with ENOENT if nothing is there, and with EINVAL if no network namespace is there (NS_GET_NSTYPE,
    /// ioctl_ns(2)).
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("open network namespace {}", path.display());
        // Before opening: opening a device or a FIFO can have effects or block for ever.
        let place = statfs(path).map_err(|errno| Error::new(what(), errno))?;
        if place.filesystem_type() != NSFS_MAGIC {
            return Err(Error::new(what(), Errno::EINVAL).reason(NOT_ONE));
        }
        let file = open(path).map_err(|err| Error::io(what(), &err))?;
        NetNs::checked(file.into(), what)
    }

    /// Makes a namespace, in which lo is down. It ends with this value, unless a process is in it by then.
    ///
    /// # Errors
    /// Fails with EPERM without CAP_SYS_ADMIN.
    pub fn create() -> Result<Self> {
        let _way_back = WayBack::to(Arc::new(NetNs::current()?));
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| Error::new("make a network namespace", errno))?;
        NetNs::current()
    }

    /// Returns a path that leads to the namespace, for any process, while this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Returns the namespace of a descriptor that another process has sent (unix(7), SCM_RIGHTS).
    ///
    /// # Errors
    /// Fails with EINVAL if it is no network namespace.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        const WHAT: &str = "use a network namespace of another process";
        // A descriptor of another file system may take the number of the ioctl for something else.
        let place = fstatfs(&fd).map_err(|errno| Error::new(WHAT, errno))?;
        if place.filesystem_type() != NSFS_MAGIC {
            return Err(Error::new(WHAT, Errno::EINVAL).reason(NOT_ONE));
        }
        NetNs::checked(fd, || WHAT.to_owned())
    }

    /// Returns the namespace of a descriptor of nsfs. Fails with EINVAL for a namespace of another type.
    fn checked(fd: OwnedFd, what: impl Fn() -> String) -> Result<Self> {
        // SAFETY: the descriptor is open, and this ioctl takes no argument.
        let kind = unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE) };
        match Errno::result(kind) {
            Ok(libc::CLONE_NEWNET) => Ok(NetNs { fd, home: None }),
            Ok(_) | Err(Errno::ENOTTY) => Err(Error::new(what(), Errno::EINVAL).reason(NOT_ONE)),
            Err(errno) => Err(Error::new(what(), errno)),
        }
    }

    /// Returns the namespace at `path` if it has this identity. Returns `None` if nothing or another file is there.
    fn find_identity(path: &Path, identity: Identity) -> Result<Option<Self>> {
        match stat(path) {
            Ok(there) if identity_of(&there) == identity => NetNs::find(path),
            _ => Ok(None),
        }
    }

    /// Returns the namespace with this [`identity`](Self::identity), if a process is in it or sees a mount of it.
    /// Otherwise returns `None`.
    ///
    /// # Errors
    /// Fails if /proc can't be read, and as [`find`](Self::find) does.
    pub fn by_identity(identity: Identity) -> Result<Option<Self>> {
        const WHAT: &str = "look for a network namespace in /proc";
        let processes = processes().map_err(|err| Error::io(WHAT, &err))?;
        for process in &processes {
            if let Some(found) = NetNs::find_identity(&process.join("ns/net"), identity)? {
                return Ok(Some(found));
            }
        }
        let inode = PathBuf::from(format!("net:[{}]", identity.1));
        let mut spaces = BTreeSet::new();
        for process in &processes {
            if !fs::read_link(process.join("ns/mnt")).is_ok_and(|space| spaces.insert(space)) {
                continue;
            }
            let text = match fs::read(process.join("mountinfo")) {
                // It has ended.
                Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EINVAL)) => {
                    continue;
                }
                text => text.map_err(|err| Error::io(WHAT, &err))?,
            };
            let mounts = mounts(&String::from_utf8_lossy(&text), &process.join("root"));
            for (_, path) in mounts.iter().filter(|(id, _)| *id == inode) {
                if let Some(found) = NetNs::find_identity(path, identity)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Returns the namespace at `path`, or `None` if nothing is there, or something else.
    ///
    /// # Errors
    /// Fails if it is unknown what is there (EMFILE, ENOMEM, EIO, and EACCES unless the process of a path in /proc has
    /// ended). A caller that took such a failure for a missing namespace would leave, or remove, the objects of a living
    /// one.
    pub fn find(path: &Path) -> Result<Option<Self>> {
        match NetNs::open(path) {
            Err(err) if err.is(Errno::EACCES) && has_ended(path) => Ok(None),
            opened => opened.map(Some).default_for(&GONE),
        }
    }

    /// Does what [`find`](Self::find) does, and returns `None` also if it is this namespace.
    ///
    /// # Errors
    /// Fails as [`find`](Self::find) does.
    pub fn find_another(&self, path: &Path) -> Result<Option<Self>> {
        let Some(there) = NetNs::find(path)? else { return Ok(None) };
        Ok((!there.same_as(self)?).then_some(there))
    }

    /// Opens the namespace of this thread.
    pub fn current() -> Result<Self> {
        let file = open(Path::new(CURRENT))
            .map_err(|err| Error::io("open the network namespace of this thread", &err))?;
        Ok(NetNs { fd: file.into(), home: None })
    }

    /// Sets the namespace to which [`enter`](Self::enter) returns. All threads of the process must be in it. Without
    /// it, each entry has to open the present one.
    #[must_use]
    pub fn with_home(mut self, home: Option<Arc<NetNs>>) -> Self {
        self.home = home;
        self
    }

    /// Runs `inside` with this thread in the namespace, then returns. The process must not start threads inside.
    ///
    /// # Errors
    /// Fails if the namespace can't be entered. If it can't be left again, the process aborts, because the wrong
    /// namespace would be worse.
    pub fn enter<T>(&self, inside: impl FnOnce() -> T) -> Result<T> {
        let origin = match &self.home {
            Some(home) => Arc::clone(home),
            None => Arc::new(NetNs::current()?),
        };
        setns(&self.fd, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::new("enter a network namespace", errno))?;
        // Dropped after `inside`, and also when that unwinds from a panic.
        let _way_back = WayBack::to(origin);
        Ok(inside())
    }

    /// Returns this thread to the namespace from which it has [entered](NetNs::enter) another. It does nothing outside
    /// of that call. It is for a panic hook, which runs inside, before anything unwinds.
    ///
    /// # Errors
    /// Fails if the namespace can't be left.
    pub fn leave_entered() -> Result<()> {
        let Some(home) = HOME.with(|noted| noted.take()) else { return Ok(()) };
        setns(&home.fd, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::new("return to the network namespace", errno))
    }

    /// Whether `path` leads to this namespace.
    pub fn is_at(&self, path: &Path) -> bool {
        let Ok(there) = stat(path) else { return false };
        self.identity().is_ok_and(|own| own == identity_of(&there))
    }

    /// Whether both are the same namespace (namespaces(7): same device and inode).
    pub fn same_as(&self, other: &NetNs) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// Device and inode, which tell namespaces apart while they are open.
    pub fn identity(&self) -> Result<Identity> {
        let stat = fstat(&self.fd).map_err(|errno| Error::new("tell network namespaces apart", errno))?;
        Ok(identity_of(&stat))
    }
}

pub(crate) fn identity_of(stat: &FileStat) -> Identity {
    // On machines of 32 bits the inode is a shorter number.
    fn same<N: Into<u64>>(number: N) -> u64 {
        number.into()
    }
    (same(stat.st_dev), same(stat.st_ino))
}

/// Returns this thread to a namespace on drop. Until then `HOME` has the namespace.
struct WayBack {
    home: Arc<NetNs>,
    /// What `HOME` had before, for an entry inside of another one.
    outer: Option<Arc<NetNs>>,
}

impl WayBack {
    fn to(home: Arc<NetNs>) -> Self {
        let outer = HOME.with(|noted| noted.replace(Some(Arc::clone(&home))));
        WayBack { home, outer }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(errno) = setns(&self.home.fd, CloneFlags::CLONE_NEWNET) {
            eprintln!("cnimble: can't return to the network namespace: {errno}");
            std::process::abort();
        }
        HOME.with(|noted| *noted.borrow_mut() = self.outer.take());
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn processes() -> io::Result<Vec<PathBuf>> {
    let all = fs::read_dir("/proc")?.map(|entry| entry.map(|entry| entry.path()));
    let mut processes = all.collect::<io::Result<Vec<_>>>()?;
    processes.retain(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    });
    Ok(processes)
}

/// Returns the paths of the network namespaces that are pinned by a mount in our mount namespace, one for each
/// namespace. Returns none if the mounts can't be read.
pub fn pinned() -> Vec<PathBuf> {
    let text = fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    let found: BTreeMap<PathBuf, PathBuf> =
        mounts(&String::from_utf8_lossy(&text), Path::new("/")).into_iter().collect();
    found.into_values().collect()
}

/// Returns the network namespaces in the text of a mountinfo (proc(5)). Each has the name of its inode, as in
/// `net:[4026531840]`, and the path of the mount below this root.
pub fn mounts(text: &str, below: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mounts = text.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let is_one = back.starts_with("nsfs ") && root.starts_with("net:[");
        let point = unescaped(point);
        is_one.then(|| (PathBuf::from(root), below.join(point.trim_start_matches('/'))))
    });
    mounts.collect()
}

/// Decodes escapes of mountinfo, such as `\040` for a space.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if *byte == b'\\' => {
                out.push(value);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_netns;

    #[test]
    fn a_thread_inside_can_return_before_anything_unwinds() {
        in_netns("a_thread_inside_can_return_before_anything_unwinds", || {
            let home = NetNs::current().unwrap();
            let other = NetNs::create().unwrap();
            let is_home = || NetNs::current().unwrap().same_as(&home).unwrap();
            other
                .enter(|| {
                    assert!(!is_home());
                    NetNs::leave_entered().unwrap();
                    assert!(is_home());
                })
                .unwrap();
            NetNs::leave_entered().unwrap();
            assert!(is_home());
        });
    }

    #[test]
    fn names_in_mountinfo() {
        assert_eq!(unescaped(r"/run/netns/a\040b\134c"), r"/run/netns/a b\c");
        assert_eq!(unescaped(r"/run/\04"), r"/run/\04");
    }
}
