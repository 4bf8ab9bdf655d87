//! Tap devices: `ip tuntap add NAME mode tap`. They are made by ioctl(2) on `/dev/net/tun`, not by
//! netlink (Documentation/networking/tuntap.rst, linux/if_tun.h).

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::request::bad_name;
use super::{Error, Result};
use crate::uapi::if_tun::{
    IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN_EXCL, TUNSETGROUP, TUNSETIFF, TUNSETOWNER, TUNSETPERSIST,
};

const DEVICE: &str = "/dev/net/tun";

/// A tap to make, down.
#[derive(Debug, Clone, Copy)]
pub struct NewTap<'a> {
    /// The name of the device.
    pub name: &'a str,
    /// The user that may attach to it without CAP_NET_ADMIN.
    pub owner: Option<u32>,
    /// The ID of the group that may open it.
    pub group: Option<u32>,
    /// Whether it can have several queues, and has to be attached to so.
    pub multi_queue: bool,
}

/// A tap that goes again when this is dropped, unless it is [kept](Tap::keep).
#[derive(Debug)]
pub struct Tap {
    device: File,
    name: String,
}

impl Tap {
    /// Makes it in the namespace of this thread.
    ///
    /// # Errors
    /// EBUSY or EINVAL if the name is taken; the kernel's.
    pub fn make(new: &NewTap<'_>) -> Result<Self> {
        let what = format!("add tap {}", new.name);
        if let Some(reason) = bad_name(new.name) {
            return Err(Error::new(what, Errno::EINVAL).reason(reason));
        }
        let tap = Tap { device: open()?, name: new.name.to_owned() };
        let queues = if new.multi_queue { IFF_MULTI_QUEUE } else { 0 };
        // SAFETY: all bytes zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // A name has 15 bytes at most; the last one stays 0.
        for (place, byte) in request.ifr_name.iter_mut().zip(new.name.bytes()) {
            *place = byte as libc::c_char;
        }
        let flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL | queues;
        // As the kernel has it; the highest bit is a flag like others.
        request.ifr_ifru.ifru_flags = flags.cast_signed();
        // SAFETY: the descriptor is open, and the request lives until the call returns.
        let done = unsafe { libc::ioctl(tap.device.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
        Errno::result(done).map_err(|errno| Error::new(what, errno))?;
        for (set, value, word) in [(TUNSETOWNER, new.owner, "user"), (TUNSETGROUP, new.group, "group")] {
            if let Some(value) = value {
                tap.set(set, value, word)?;
            }
        }
        Ok(tap)
    }

    /// Has the device stay.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request.
    pub fn keep(self) -> Result<()> {
        self.set(TUNSETPERSIST, 1, "persist")
    }

    fn set(&self, request: u32, value: u32, word: &str) -> Result<()> {
        // SAFETY: the descriptor is open, and these requests take a number.
        let done = unsafe { libc::ioctl(self.device.as_raw_fd(), request as _, libc::c_ulong::from(value)) };
        let what = || format!("set tap {} {word} {value}", self.name);
        Errno::result(done).map(drop).map_err(|errno| Error::new(what(), errno))
    }
}

/// Taps can be made: the device is there, and may be opened.
///
/// # Errors
/// Fails with the reason.
pub fn usable() -> Result<()> {
    open().map(drop)
}

fn open() -> Result<File> {
    let opened = File::options().read(true).write(true).open(DEVICE);
    opened.map_err(|err| Error::io(format!("open {DEVICE}"), &err))
}
