//! Constants of linux/if_tun.h.

pub(crate) const TUNSETIFF: u32 = 0x4004_54ca;
pub(crate) const TUNSETPERSIST: u32 = 0x4004_54cb;
pub(crate) const TUNSETOWNER: u32 = 0x4004_54cc;
pub(crate) const TUNSETGROUP: u32 = 0x4004_54ce;

pub(crate) const IFF_TAP: u16 = 0x0002;
pub(crate) const IFF_MULTI_QUEUE: u16 = 0x0100;
pub(crate) const IFF_NO_PI: u16 = 0x1000;
pub(crate) const IFF_TUN_EXCL: u16 = 0x8000;
