//! Addresses: `ip address`.

use ipnetwork::IpNetwork;

use super::{Netlink, Request, Result};

/// An address on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addr {
    /// Address and prefix length.
    pub net: IpNetwork,
    /// IFA_F_TENTATIVE or IFA_F_DADFAILED: not usable (yet).
    pub tentative: bool,
    /// `scope`, as in rtnetlink(7).
    pub scope: u8,
}

/// `ip address add NET dev LINK [nodad]`; `nodad` matters for IPv6 only. The broadcast
/// address is left out, as the reference plugins do.
pub fn add(_index: u32, _link: &str, _net: IpNetwork, _nodad: bool) -> Request {
    todo!()
}

/// `ip address del NET dev LINK`
pub fn del(_index: u32, _link: &str, _net: IpNetwork) -> Request {
    todo!()
}

impl Netlink {
    /// `ip address show dev LINK`; the kernel filters by index.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addrs(&mut self, _index: u32) -> Result<Vec<Addr>> {
        todo!()
    }
}
