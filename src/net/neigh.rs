//! Neighbours: `ip neighbour`.

use std::net::IpAddr;

use super::{Netlink, Request, Result, link::Mac};

/// `ip neighbour replace IP lladdr MAC dev LINK nud permanent`
pub fn add_permanent(_index: u32, _link: &str, _ip: IpAddr, _mac: Mac) -> Request {
    todo!()
}

impl Netlink {
    /// `ip neighbour show dev LINK`
    ///
    /// # Errors
    /// The kernel's.
    pub fn neighbours(&mut self, _index: u32) -> Result<Vec<(IpAddr, Mac)>> {
        todo!()
    }
}
