//! Links in sysfs, which tells one link from all others. The inode number of a link's directory stays when the link
//! gets another name or namespace, and the kernel gives it to nothing else until the next boot (struct kernfs_node).
//! Users choose names, aliases, indexes and MAC addresses, but not this number.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat};
use rustix::mount::MountAttrFlags;

use super::link::bad_name;
use super::netns::identity_of;
use super::{Error, Result, procfs};

/// A private sysfs, which shows the links of one namespace. It goes with the value.
#[derive(Debug)]
pub struct Sysfs(OwnedFd);

/// The directory of a link in sysfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// `ifi_index`.
    pub index: u32,
    /// The number that no other link has.
    pub inode: u64,
    /// The directory that it is in, like `pci0000:00/0000:00:03.0/virtio1`; `virtual` if there is no hardware.
    pub bus: String,
}

impl Sysfs {
    /// Mounts the sysfs of this thread's namespace (fsopen(2), Linux 5.2).
    ///
    /// # Errors
    /// Fails with EPERM in a user namespace that sees only a part of its own sysfs, and with ENOSYS on an older kernel.
    pub fn mount() -> Result<Self> {
        procfs::mount_private("sysfs", MountAttrFlags::MOUNT_ATTR_RDONLY).map(Sysfs)
    }

    /// Returns the directory of the link called `name`, or `None` if there is no such link.
    ///
    /// # Errors
    /// Fails with any error but that of a missing link.
    pub fn device(&self, name: &str) -> Result<Option<Device>> {
        if bad_name(name).is_some() {
            return Ok(None);
        }
        match self.read(&Path::new("class/net").join(name)) {
            Ok(device) => Ok(device),
            // ENODEV: it has gone since.
            Err(Errno::ENOENT | Errno::ENODEV) => Ok(None),
            Err(errno) => Err(Error::new(format!("look up link {name} in sysfs"), errno)),
        }
    }

    fn read(&self, path: &Path) -> nix::Result<Option<Device>> {
        let target = readlinkat(&self.0, path)?;
        // By the place on the bus, so that it is the directory's, whatever is renamed meanwhile. It begins in class/net.
        let place = path.parent().unwrap_or(path).join(&target);
        let dir =
            openat(&self.0, &place, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        // By the directory, so that both numbers are of one link.
        let file = openat(&dir, "ifindex", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut text = [0; 16];
        let length = File::from(file)
            .read(&mut text)
            .map_err(|err| Errno::from_raw(err.raw_os_error().unwrap_or(libc::EIO)))?;
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default()).unwrap_or_default();
        let Ok(index) = text.trim().parse() else { return Ok(None) };
        Ok(Some(Device { index, inode: identity_of(&fstat(&dir)?).1, bus: bus(Path::new(&target)) }))
    }
}

/// The directory of the hardware in `../../devices/BUS/net/NAME`.
fn bus(target: &Path) -> String {
    let parent = target.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let text = String::from_utf8_lossy(parent.as_os_str().as_bytes()).into_owned();
    text.trim_start_matches("../").trim_start_matches("devices/").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_is_the_directory_of_the_hardware() {
        let of = |target: &str| bus(Path::new(target));
        assert_eq!(of("../../devices/virtual/net/lo"), "virtual");
        let virtio = "pci0000:00/0000:00:03.0/virtio1";
        assert_eq!(of(&format!("../../devices/{virtio}/net/eth0")), virtio);
        assert_eq!(of("lo"), "");
    }
}
