//! A disk that loses power: a real file system on a loop device, shut down without warning.
//!
//! The ioctl `EXT4_IOC_SHUTDOWN`, which xfs also has, stops all writes and discards what was only in memory. The file
//! systems' own developers cut the power with it (xfstests, "godown"). The next mount replays the journal, as after a
//! reboot.
//!
//! The btrfs file system has no journal, and few kernels can shut it down. There the disk is copied at that moment, and
//! the copy is mounted instead.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use cnimble_tests::{PATIENCE, wait_until};

use crate::points::Chance;

/// How much of the unsynced data is lost.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// Everything since the last commit of the journal, which happens every five seconds.
    Everything = 2,
    /// The journal has just been committed, but the data has not been written. Names and lengths survive, contents may
    /// not.
    Data = 1,
}

/// A file system, and how it is mounted.
#[derive(Debug, Clone, Copy)]
pub struct FileSystem {
    /// The name that mount(8) and mkfs(8) use.
    pub name: &'static str,
    pub options: &'static str,
    /// In MiB, the smallest size that mkfs accepts.
    size: u64,
}

pub const EXT4: FileSystem = FileSystem { name: "ext4", options: "data=ordered", size: 32 };
/// The weakest guarantee: data may be written after the names of files.
pub const EXT4_WRITEBACK: FileSystem =
    FileSystem { name: "ext4", options: "data=writeback,noauto_da_alloc", size: 32 };
pub const XFS: FileSystem = FileSystem { name: "xfs", options: "relatime", size: 320 };
/// No commit happens while the copy is made.
pub const BTRFS: FileSystem = FileSystem { name: "btrfs", options: "commit=300", size: 256 };

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.name, self.options)
    }
}

impl FileSystem {
    pub fn mkfs(&self) -> String {
        format!("mkfs.{}", self.name)
    }
}

/// A disk image, its mount point and the number of boots.
pub struct Disk {
    dir: TempDir,
    fs: FileSystem,
    /// The number of boots so far.
    pub boots: u32,
}

impl Disk {
    /// Creates a disk with this file system, mounted only for this thread and its children.
    ///
    /// # Errors
    /// Fails if there is no mount namespace, no loop device or no file system of this kind.
    pub fn new(fs: FileSystem) -> Result<Self, String> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|err| format!("no mount namespace: {err}"))?;
        let none: Option<&str> = None;
        nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let disk =
            Disk { dir: tempfile::Builder::new().prefix("cnimble-disk-").tempdir().unwrap(), fs, boots: 0 };
        File::create(disk.image()).unwrap().set_len(fs.size << 20).unwrap();
        let force = if fs.name == "ext4" { "-F" } else { "-f" };
        run(&fs.mkfs(), &["-q", force, disk.image().to_str().unwrap()])?;
        fs::create_dir(disk.path()).unwrap();
        let mut disk = disk;
        disk.boot()?;
        Ok(disk)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Mounts the disk, with a new boot ID.
    fn boot(&mut self) -> Result<(), String> {
        let options = format!("loop,{}", self.fs.options);
        run(
            "mount",
            &[
                "-t",
                self.fs.name,
                "-o",
                &options,
                self.image().to_str().unwrap(),
                self.path().to_str().unwrap(),
            ],
        )?;
        self.boots += 1;
        // A boot ID on a file system other than proc means that the machine shares its kernel with others. This
        // thread's name is a file of proc.
        fs::write("/proc/thread-self/comm", format!("boot {}", self.boots)).unwrap();
        if self.boots == 1 {
            let (none, name) = (None::<&str>, fs::canonicalize("/proc/thread-self").unwrap().join("comm"));
            nix::mount::mount(Some(&name), "/proc/sys/kernel/random/boot_id", none, MsFlags::MS_BIND, none)
                .map_err(|err| format!("no boot ID of its own: {err}"))?;
        }
        Ok(())
    }

    /// Cuts the power and boots again.
    pub fn cut(&mut self, cut: Cut, chance: &mut Chance) {
        if matches!(cut, Cut::Data) {
            write_back(&self.path(), chance);
        }
        let copy = self.dir.path().join("copy");
        if self.fs.name == "btrfs" {
            self.copy(cut, &copy);
        } else {
            self.shut_down(cut);
        }
        // A child that another test is starting may still hold a copy of a descriptor.
        let gone = wait_until(PATIENCE, || nix::mount::umount(&self.path()).is_ok());
        assert!(gone, "{} can't be unmounted", self.path().display());
        if self.fs.name == "btrfs" {
            fs::rename(copy, self.image()).unwrap();
            // Kernels that remember the disk refuse an older state of it under another name.
            let _ = run("btrfs", &["device", "scan", "--forget"]);
        }
        // Another test may take loop devices at the same time.
        let mut why = String::new();
        let booted = wait_until(PATIENCE, || self.boot().map_err(|err| why = err).is_ok());
        assert!(booted, "{why}");
    }

    fn shut_down(&self, cut: Cut) {
        let root = File::open(self.path()).unwrap();
        let flags = cut as u32;
        // SAFETY: the descriptor is open, and this ioctl reads a 32-bit number.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const flags) };
        assert_eq!(done, 0, "EXT4_IOC_SHUTDOWN: {}", std::io::Error::last_os_error());
    }

    /// Copies the disk, after a commit if `cut` is [`Cut::Data`].
    fn copy(&self, cut: Cut, to: &Path) {
        if matches!(cut, Cut::Data) {
            let root = File::open(self.path()).unwrap();
            let mut transaction = 0_u64;
            // SAFETY: the descriptor is open, and these ioctls write and read a 64-bit number.
            let done = unsafe {
                libc::ioctl(root.as_raw_fd(), START_SYNC, &raw mut transaction)
                    | libc::ioctl(root.as_raw_fd(), WAIT_SYNC, &raw const transaction)
            };
            assert_eq!(done, 0, "BTRFS_IOC_START_SYNC: {}", std::io::Error::last_os_error());
        }
        run("cp", &["--sparse=always", self.image().to_str().unwrap(), to.to_str().unwrap()]).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The loop device is detached with the mount.
        let _ = nix::mount::umount(&self.path());
    }
}

/// `_IOR('X', 125, __u32)` (fs/ext4/ext4.h, fs/xfs/libxfs/xfs_fs.h, which have the same flags).
const SHUTDOWN: libc::c_ulong = (2 << 30) | (4 << 16) | ((b'X' as libc::c_ulong) << 8) | 125;
/// `_IOR(0x94, 24, __u64)` and `_IOW(0x94, 22, __u64)` (linux/btrfs.h). They commit metadata, but not data that is not
/// yet allocated on the disk.
const START_SYNC: libc::c_ulong = (2 << 30) | (8 << 16) | (0x94 << 8) | 24;
const WAIT_SYNC: libc::c_ulong = (1 << 30) | (8 << 16) | (0x94 << 8) | 22;

/// Writes some files to the disk, because the kernel may have written any of them by now.
fn write_back(dir: &Path, chance: &mut Chance) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            write_back(&path, chance);
        } else if meta.is_file() && chance.below(3) == 0 {
            let file = File::open(&path).unwrap();
            let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: the descriptor is open.
            unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|err| format!("{program}: {err}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
