//! A private procfs mount.
//!
//! The kernel keeps the directories of all namespaces in `/proc/sys/net` under the same names in one place. To find one
//! it walks past all that were ever looked at, half a microsecond each. A private mount has its own place, and can be
//! written where `/proc/sys` is read-only. Making it and taking it away costs about 80 µs, and on a busy machine
//! milliseconds: the kernel waits for a grace period.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{Error, Result};

/// The number of namespaces from which on a mount costs less than finding a key among them.
const MANY: i32 = 150;

/// Mounts a procfs for this process alone (fsopen(2), Linux 5.2). The mount belongs to no mount namespace and goes with
/// the descriptor. Fails with EPERM in a user namespace.
pub(super) fn mount() -> Result<OwnedFd> {
    mount_private("proc", MountAttrFlags::empty())
}

/// Mounts a file system for this process alone, with `more` flags than the usual ones.
pub(super) fn mount_private(kind: &str, more: MountAttrFlags) -> Result<OwnedFd> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount_detached(kind, flags | more)
        .map_err(|err| Error::new(format!("mount a private {kind}"), Errno::from_raw(err.raw_os_error())))
}

/// Makes a mount of a new file system with these flags, which is nowhere in the tree of directories.
fn mount_detached(kind: &str, flags: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Returns the private mount of this process, which is made once. Returns `None` if it does not [pay](pays), or can't
/// be made.
pub(super) fn open_private(namespace: Option<i32>) -> Option<BorrowedFd<'static>> {
    static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
    if !pays(namespace) {
        return None;
    }
    OWN.get_or_init(|| mount().ok()).as_ref().map(OwnedFd::as_fd)
}

/// Returns whether a private mount costs less. `namespace` is the number that a namespace has in its parent
/// ([`Link::peer_netnsid`](super::link::Link::peer_netnsid)), which is about the number of pods.
fn pays(namespace: Option<i32>) -> bool {
    namespace.is_some_and(|number| number >= MANY)
}
