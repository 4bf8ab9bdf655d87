//! Routes: `ip route`.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::{Netlink, Request, Result};

/// A route out of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // named as in `ip route`
pub struct NewRoute {
    pub dst: IpNetwork,
    pub via: Option<IpAddr>,
    pub index: u32,
    pub src: Option<IpAddr>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Bytes.
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u8>,
    /// `onlink`: the next hop need not be covered by an address of the link.
    pub onlink: bool,
}

/// `ip route add …`
pub fn add(_route: &NewRoute, _link: &str) -> Request {
    todo!()
}

/// `ip route del …`
pub fn del(_route: &NewRoute, _link: &str) -> Request {
    todo!()
}

impl Netlink {
    /// `ip route show dev LINK table TABLE`, both families; `table` `None` is main. The
    /// kernel filters (strict checking).
    ///
    /// # Errors
    /// The kernel's.
    pub fn routes(&mut self, _index: u32, _table: Option<u32>) -> Result<Vec<NewRoute>> {
        todo!()
    }
}
