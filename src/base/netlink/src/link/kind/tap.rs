//! Tap devices: `ip tuntap add NAME mode tap`, which the kernel calls `tun`. They are made by ioctl(2) on
//! `/dev/net/tun`, not by netlink (Documentation/networking/tuntap.rst, linux/if_tun.h).

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use crate::link::bad_name;
use crate::uapi::if_link::{IFLA_TUN_GROUP, IFLA_TUN_MULTI_QUEUE, IFLA_TUN_OWNER, IFLA_TUN_TYPE};
use crate::uapi::if_tun::{
    IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN_EXCL, TUNSETGROUP, TUNSETIFF, TUNSETOWNER, TUNSETPERSIST,
};
use crate::wire::{Attributes, Parsed};
use crate::{Error, Result};

pub(super) const NAME: &str = "tun";

const DEVICE: &str = "/dev/net/tun";

/// The settings of a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapSettings {
    /// The user that may attach to it without CAP_NET_ADMIN.
    pub owner: Option<u32>,
    /// The ID of the group that may attach to it without CAP_NET_ADMIN.
    pub group: Option<u32>,
    /// Whether it can have several queues. A program that attaches to it has to say the same.
    pub multi_queue: bool,
}

impl fmt::Display for TapSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(" mode tap")?;
        for (word, id) in [("user", self.owner), ("group", self.group)] {
            id.map_or(Ok(()), |id| write!(f, " {word} {id}"))?;
        }
        f.write_str(if self.multi_queue { " multi_queue" } else { "" })
    }
}

impl TapSettings {
    /// Whether a tap with the settings `now` has these. An owner or group that isn't wanted makes no difference.
    pub(super) fn is_met_by(self, now: TapSettings) -> bool {
        (self.owner.is_none() || self.owner == now.owner)
            && (self.group.is_none() || self.group == now.group)
            && self.multi_queue == now.multi_queue
    }
}

/// Reads the settings of a tap. `None` for a tun device, which has the same kind.
pub(super) fn read(data: Attributes<'_>) -> Parsed<Option<TapSettings>> {
    let is_tap = data.find_u8(IFLA_TUN_TYPE)? == Some(IFF_TAP as u8);
    let settings = TapSettings {
        owner: data.find_u32(IFLA_TUN_OWNER)?,
        group: data.find_u32(IFLA_TUN_GROUP)?,
        multi_queue: data.find_u8(IFLA_TUN_MULTI_QUEUE)? == Some(1),
    };
    Ok(is_tap.then_some(settings))
}

/// A tap that is removed when this is dropped, unless it is [kept](Tap::keep).
#[derive(Debug)]
pub struct Tap {
    device: File,
    name: String,
}

impl Tap {
    /// Makes a tap in the network namespace of this thread. It is down.
    ///
    /// # Errors
    /// Fails with EBUSY or EINVAL if the name is taken. Fails if /dev/net/tun can't be opened, or if the kernel refuses
    /// it otherwise. Then no tap remains.
    pub fn make(name: &str, settings: TapSettings) -> Result<Self> {
        let what = format!("add tap {name}");
        if let Some(reason) = bad_name(name) {
            return Err(Error::new(what, Errno::EINVAL).reason(reason));
        }
        let tap = Tap { device: open()?, name: name.to_owned() };
        let queues = if settings.multi_queue { IFF_MULTI_QUEUE } else { 0 };
        // SAFETY: all bytes zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // A name has 15 bytes at most; the last one stays 0.
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        let flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL | queues;
        // As the kernel has it; the highest bit is a flag like others.
        request.ifr_ifru.ifru_flags = flags.cast_signed();
        // SAFETY: the descriptor is open, and the request lives until the call returns.
        let done = unsafe { libc::ioctl(tap.device.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
        Errno::result(done).map_err(|errno| Error::new(what, errno))?;
        for (set, value, word) in
            [(TUNSETOWNER, settings.owner, "user"), (TUNSETGROUP, settings.group, "group")]
        {
            if let Some(value) = value {
                tap.set(set, value, word)?;
            }
        }
        Ok(tap)
    }

    /// Makes the tap stay when this is dropped.
    pub fn keep(self) -> Result<()> {
        self.set(TUNSETPERSIST, 1, "persist")
    }

    fn set(&self, request: u32, value: u32, word: &str) -> Result<()> {
        // SAFETY: the descriptor is open, and these requests take a number.
        let done = unsafe { libc::ioctl(self.device.as_raw_fd(), request as _, libc::c_ulong::from(value)) };
        Errno::result(done)
            .map(drop)
            .map_err(|errno| Error::new(format!("set tap {} {word} {value}", self.name), errno))
    }
}

/// Checks that taps can be made: /dev/net/tun is there, and may be opened.
///
/// # Errors
/// Fails if it can't be opened.
pub fn usable() -> Result<()> {
    open().map(drop)
}

fn open() -> Result<File> {
    let opened = File::options().read(true).write(true).open(DEVICE);
    opened.map_err(|err| Error::io(format!("open {DEVICE}"), &err))
}
