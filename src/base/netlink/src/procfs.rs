//! A private procfs mount.
//!
//! `/proc/sys/net` shows each namespace its own directories, and the kernel keeps those of all
//! namespaces under the same names in the same place: to find one it walks past all that were
//! ever looked at, half a microsecond each. A mount of one's own has its own place, where there
//! is one. Making it and taking it away costs about 80 µs. It can be written where `/proc/sys` is
//! read-only.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{Error, Result};

/// From so many namespaces on, finding a key among all of them takes longer than a mount.
const MANY: i32 = 150;

/// Mounts one (fsopen(2), Linux 5.2). It belongs to no mount namespace and goes with the
/// descriptor.
///
/// # Errors
/// EPERM in a user namespace, ENOSYS in an older kernel.
pub(super) fn mount() -> Result<OwnedFd> {
    mount_private("proc", MountAttrFlags::empty())
}

/// Mounts a file system of this kind, with `more` flags than the usual ones.
///
/// # Errors
/// As [`mount`].
pub(super) fn mount_private(kind: &str, more: MountAttrFlags) -> Result<OwnedFd> {
    let mounted = || {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags | more)
    };
    mounted().map_err(|err: rustix::io::Errno| {
        Error::new(format!("mount a private {kind}"), Errno::from_raw(err.raw_os_error()))
    })
}

/// Whether it pays: `namespace` is the number that a namespace has in the one it was made from
/// ([`Link::far`](super::link::Link::far)), about the number of pods.
pub(super) fn pays(namespace: Option<i32>) -> bool {
    namespace.is_some_and(|number| number >= MANY)
}
