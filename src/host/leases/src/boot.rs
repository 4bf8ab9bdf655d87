//! Tells which leases are from before this boot. No namespace outlives a boot, so such a lease is void: its DEL will
//! never come. The address may then be given again. In doubt a lease stays.
//!
//! **Our own leases carry the boot's ID** (`/proc/sys/kernel/random/boot_id`) in an extended attribute. So the content
//! is exactly that of the Go plugin, and no clock matters. Another ID is another boot.
//!
//! **Machines of one kernel** (systemd-nspawn, LXC) may have boot IDs of their own and share a directory. All their
//! pods live in one boot, so such a machine marks its leases as a machine's. Those leases, and all leases that it finds
//! with another ID, are judged by their times.
//!
//! **Leases without a mark** are judged by their times. They are from the Go plugins, or on a file system without
//! extended attributes. NTP or a resume from a snapshot may have set the clock, so "now minus uptime" can be hours
//! after the boot. The moment of boot is the *earliest* of now minus uptime and the times of /proc, /sys and /dev. A
//! lease is older only if the times of its content and of its inode are both a `MARGIN` before that. A restored backup
//! has a new inode.
//!
//! On a file system that several machines may share ([`is_shared`]), no lease may be taken back: another machine may
//! use it.

use std::cell::OnceCell;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::statfs::fstatfs;
use nix::time::{ClockId, clock_gettime};

/// The name of the extended attribute.
const MARK: &CStr = c"user.cnimble.boot";

/// The beginning of a mark with an ID that is not the kernel's own.
const MACHINE: &[u8] = b"machine ";

/// The beginning of the mark of a lease that is known to be of an earlier boot.
const BEFORE: &[u8] = b"before ";

/// The largest correction of the clock shortly after booting.
const MARGIN: i128 = Duration::from_secs(60).as_nanos() as i128;

/// File systems that several kernels may have mounted, or that hide the one below, such as NFS and FUSE
/// (linux/magic.h and the file systems' own headers).
const SHARED: &[u32] = &[
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x00C3_6400,
    0x6573_5546,
    0x0102_1997,
    0x5346_414F,
    0x7461_636F,
    0x0116_1970,
    0x0BD0_0BD0,
];

/// This boot, for a comparison with the marks of leases.
#[derive(Debug, Clone)]
pub struct Boot {
    /// The boot's ID, or `None` if it can't be read.
    id: Option<String>,
    /// Whether the ID is the kernel's own, rather than a file that a container manager has mounted over it.
    is_kernels: bool,
    /// The earliest moment of the boot, in nanoseconds since 1970. It is read only when it matters.
    began: OnceCell<i128>,
}

impl Boot {
    /// Returns this boot. If its ID can't be read, leases get no mark, and a lease with a mark counts as one of this
    /// boot.
    pub fn current() -> Self {
        let file = File::open(BOOT_ID);
        let is_kernels = file.as_ref().is_ok_and(|file| {
            fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::PROC_SUPER_MAGIC)
        });
        let id = file.and_then(|file| read_id(&file)).ok().filter(|id| !id.is_empty());
        Boot { id, is_kernels, began: OnceCell::new() }
    }

    /// Marks a lease as one of this boot. A failure is only logged.
    pub fn mark(&self, file: &File) {
        if let Some(mark) = self.own_mark() {
            set_mark(file, &mark);
        }
    }

    /// Returns the mark of this boot's leases, or `None` without an ID.
    fn own_mark(&self) -> Option<Vec<u8>> {
        let id = self.id.as_ref()?.as_bytes();
        Some(if self.is_kernels { id.to_vec() } else { [MACHINE, id].concat() })
    }

    /// Returns a mark for a lease that is known to be of some earlier boot.
    pub fn earlier_mark(&self) -> Vec<u8> {
        [BEFORE, self.id.as_deref().unwrap_or_default().as_bytes()].concat()
    }

    /// Returns whether the lease in `file` was made before this boot. False in doubt.
    pub fn is_after(&self, file: &File) -> bool {
        let (mark, own) = match (get_mark(file), self.own_mark()) {
            (Ok(None), _) => return self.is_older(file),
            (Ok(Some(mark)), Some(own)) => (mark, own),
            (Ok(Some(_)), None) | (Err(_), _) => return false,
        };
        if mark == own {
            false
        } else if mark.starts_with(BEFORE) || self.is_kernels && !mark.starts_with(MACHINE) {
            true
        } else {
            self.is_older(file)
        }
    }

    /// Returns whether the file's times are from before this boot. False in doubt.
    fn is_older(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| {
            let changed = nanos(meta.ctime(), meta.ctime_nsec());
            let written = nanos(meta.mtime(), meta.mtime_nsec());
            changed.max(written) + MARGIN < *self.began.get_or_init(began)
        })
    }
}

/// Returns whether other machines may hold leases in `dir`, by the kind of its file system. True if that can't be read.
pub fn is_shared(dir: impl AsFd) -> bool {
    // The kernel's number has 32 bits. Its type in C has 32 or 64 bits, and may be signed.
    fstatfs(dir).map_or(true, |fs| SHARED.contains(&(fs.filesystem_type().0 as u32)))
}

/// Returns the time of a clock in nanoseconds.
fn read_clock(id: ClockId) -> nix::Result<i128> {
    clock_gettime(id).map(|time| nanos(time.tv_sec(), time.tv_nsec()))
}

fn nanos(seconds: impl Into<i128>, nanos: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + nanos.into()
}

/// The file with the ID of this boot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the ID of this boot.
///
/// # Errors
/// Fails if the file can't be read, for example without /proc.
pub fn boot_id() -> io::Result<String> {
    read_id(&File::open(BOOT_ID)?)
}

fn read_id(mut file: &File) -> io::Result<String> {
    let mut text = [0; 64];
    let length = file.read(&mut text)?;
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
    Ok(text.trim().to_owned())
}

/// Returns the moment of boot, in nanoseconds since 1970, as the module says. Times that can't be read are left out.
/// Without a clock it is the earliest possible one, so that no lease is older.
fn began() -> i128 {
    let (Ok(now), Ok(up)) = (read_clock(ClockId::CLOCK_REALTIME), read_clock(ClockId::CLOCK_BOOTTIME)) else {
        return i128::MIN;
    };
    let mounts = ["/proc", "/sys"]
        .into_iter()
        .filter_map(|path| std::fs::metadata(path).ok())
        .map(|meta| nanos(meta.ctime(), meta.ctime_nsec()));
    // /dev itself changes, so the time at which its file system was made counts. Old kernels don't report that.
    let dev = std::fs::metadata("/dev")
        .and_then(|meta| meta.created())
        .ok()
        .and_then(|born| born.duration_since(UNIX_EPOCH).ok())
        .map(|since| since.as_nanos() as i128);
    mounts.chain(dev).fold(now - up, i128::min)
}

/// Writes a mark. A failure is only logged: on a file system without extended attributes the times must do.
pub fn set_mark(file: &File, value: &[u8]) {
    // SAFETY: the name ends with NUL, the value is as long as said, the descriptor is open.
    let done =
        unsafe { libc::fsetxattr(file.as_raw_fd(), MARK.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done != 0 {
        log::debug!("marking a lease with the boot's ID: {}", io::Error::last_os_error());
    }
}

/// Returns the mark of a lease. `None` if it has none, or if the file system has no extended attributes.
pub fn get_mark(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; 128];
    // SAFETY: the name ends with NUL, the buffer is as long as said, the descriptor is open.
    let length =
        unsafe { libc::fgetxattr(file.as_raw_fd(), MARK.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match usize::try_from(length) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            err if matches!(err.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
            err => Err(err),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn boot(id: &str, began: SystemTime) -> Boot {
        Boot {
            id: Some(id.into()),
            is_kernels: true,
            began: OnceCell::from(began.duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128),
        }
    }

    #[test]
    fn the_boot_id_decides_whatever_the_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("10.0.0.2")).unwrap();
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        let (this, next) = (boot("a", tomorrow), boot("b", UNIX_EPOCH));
        this.mark(&file);
        assert_eq!(get_mark(&file).unwrap().as_deref(), Some(&b"a"[..]));
        assert!(!this.is_after(&file));
        assert!(next.is_after(&file));
        // Without an ID of our own there is nothing to compare with.
        assert!(
            !Boot {
                id: None,
                is_kernels: false,
                began: OnceCell::from(tomorrow.duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128)
            }
            .is_after(&file)
        );
        set_mark(&file, &this.earlier_mark());
        assert!(this.is_after(&file));
    }

    #[test]
    fn on_one_kernel_another_machine_is_no_other_boot() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("10.0.0.2")).unwrap();
        let machine = |id, began| Boot { is_kernels: false, ..boot(id, began) };
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        // Made by a machine, by its host, or read by one.
        for maker in [machine("a", UNIX_EPOCH), boot("k", UNIX_EPOCH)] {
            maker.mark(&file);
            assert!(!maker.is_after(&file));
            assert!(!machine("b", UNIX_EPOCH).is_after(&file));
            // The kernel has booted since.
            assert!(machine("b", tomorrow).is_after(&file));
        }
        machine("a", UNIX_EPOCH).mark(&file);
        assert!(!boot("k", UNIX_EPOCH).is_after(&file));
        assert!(boot("k", tomorrow).is_after(&file));
        set_mark(&file, &boot("k", UNIX_EPOCH).earlier_mark());
        assert!(machine("b", UNIX_EPOCH).is_after(&file));
    }

    #[test]
    fn without_a_mark_both_times_must_be_well_before_the_boot() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("10.0.0.2")).unwrap();
        let now = SystemTime::now();
        assert!(!boot("a", now).is_after(&file));
        assert!(!boot("a", now + Duration::from_secs(30)).is_after(&file));
        assert!(boot("a", now + Duration::from_secs(90)).is_after(&file));
        // Restored from a backup today: the content is old, the inode isn't.
        file.set_modified(now - Duration::from_secs(864_000)).unwrap();
        assert!(!boot("a", now).is_after(&file));
        // Made by a program that sets a time in the future.
        file.set_modified(now + Duration::from_secs(864_000)).unwrap();
        assert!(!boot("a", now + Duration::from_secs(90)).is_after(&file));
    }

    #[test]
    fn this_boot_began_before_this_test() {
        let boot = Boot::current();
        assert_eq!(boot.id.as_ref().unwrap().len(), 36);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128;
        assert!(0 < began() && began() < now);
        let dir = tempfile::tempdir().unwrap();
        assert!(!boot.is_after(&File::create(dir.path().join("x")).unwrap()));
        assert!(!is_shared(File::open(dir.path()).unwrap()));
    }
}
