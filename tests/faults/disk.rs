//! A disk whose power fails: a real file system on a loop device, shut down without warning.
//!
//! `EXT4_IOC_SHUTDOWN` is how the file systems' own developers cut the power (xfstests,
//! "godown"): nothing is written from that moment on, and what was only in memory is lost. The
//! next mount replays the journal, as after a reboot.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use cnimble_tests::{PATIENCE, wait_until};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::points::Chance;

/// How much of what wasn't synced is lost.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// All since the last commit of the journal, which is made every five seconds.
    Everything = 2,
    /// The journal has just been committed, but data hadn't been written: names and lengths
    /// are there, contents not necessarily.
    Data = 1,
}

/// Names, files and boots.
pub struct Disk {
    dir: TempDir,
    options: &'static str,
    /// How often this machine has booted.
    pub boots: u32,
}

impl Disk {
    /// One with ext4, mounted for this thread and its children alone.
    ///
    /// # Errors
    /// Why it can't be had.
    pub fn new(options: &'static str) -> Result<Self, String> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|err| format!("no mount namespace: {err}"))?;
        let none: Option<&str> = None;
        nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let disk = Disk {
            dir: tempfile::Builder::new().prefix("cnimble-disk-").tempdir().unwrap(),
            options,
            boots: 0,
        };
        File::create(disk.image()).unwrap().set_len(32 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", disk.image().to_str().unwrap()])?;
        fs::create_dir(disk.path()).unwrap();
        fs::write(disk.boot_id(), "").unwrap();
        let mut disk = disk;
        disk.boot()?;
        Ok(disk)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn boot_id(&self) -> PathBuf {
        self.dir.path().join("boot_id")
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Mounts it, in a boot with another ID than the last.
    fn boot(&mut self) -> Result<(), String> {
        let options = format!("loop,{}", self.options);
        run(
            "mount",
            &["-t", "ext4", "-o", &options, self.image().to_str().unwrap(), self.path().to_str().unwrap()],
        )?;
        self.boots += 1;
        let id = format!("00000000-0000-4000-8000-{:012}\n", self.boots);
        fs::write(self.boot_id(), id).unwrap();
        if self.boots == 1 {
            let (none, path) = (None::<&str>, self.boot_id());
            nix::mount::mount(Some(&path), "/proc/sys/kernel/random/boot_id", none, MsFlags::MS_BIND, none)
                .map_err(|err| format!("no boot ID of its own: {err}"))?;
        }
        Ok(())
    }

    /// Cuts the power, and boots again.
    pub fn cut(&mut self, cut: Cut, chance: &mut Chance) {
        if matches!(cut, Cut::Data) {
            write_back(&self.path(), chance);
        }
        let root = File::open(self.path()).unwrap();
        let flags = cut as u32;
        // SAFETY: the descriptor is open, and this ioctl reads a 32-bit number.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const flags) };
        assert_eq!(done, 0, "EXT4_IOC_SHUTDOWN: {}", std::io::Error::last_os_error());
        drop(root);
        // Another test's child that is about to begin may still have a copy of a descriptor.
        let gone = wait_until(PATIENCE, || nix::mount::umount(&self.path()).is_ok());
        assert!(gone, "{} can't be unmounted", self.path().display());
        // Somebody else may be taking loop devices at the same time.
        let mut why = String::new();
        let booted = wait_until(PATIENCE, || self.boot().map_err(|err| why = err).is_ok());
        assert!(booted, "{why}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The loop device goes with the mount.
        let _ = nix::mount::umount(&self.path());
    }
}

/// `_IOR('X', 125, __u32)` (fs/ext4/ext4.h).
const SHUTDOWN: libc::c_ulong = (2 << 30) | (4 << 16) | ((b'X' as libc::c_ulong) << 8) | 125;

/// The kernel writes data out when it likes: some of it has been by now.
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
