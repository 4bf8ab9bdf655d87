//! Bridge ports and their vlans: `bridge link`, `bridge vlan`.

use super::{Netlink, Request, Result};

/// The flags of a bridge port that plugins care for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Port {
    /// `hairpin on`
    pub hairpin: bool,
    /// `isolated on`
    pub isolated: bool,
}

/// `bridge link set dev PORT hairpin … isolated …`
pub fn set(_index: u32, _name: &str, _port: Port) -> Request {
    todo!()
}

/// A vlan on a port or bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vlan {
    /// 1 to 4094.
    pub id: u16,
    /// Untagged frames that come in belong to it.
    pub pvid: bool,
    /// Its frames go out untagged.
    pub untagged: bool,
}

/// `bridge vlan add dev PORT vid FIRST[-LAST] [pvid] [untagged]`; `on_bridge` is `self`.
pub fn add_vlans(_index: u32, _name: &str, _first: Vlan, _last_id: u16, _on_bridge: bool) -> Request {
    todo!()
}

/// `bridge vlan del dev PORT vid FIRST[-LAST]`
pub fn del_vlans(_index: u32, _name: &str, _first: u16, _last: u16, _on_bridge: bool) -> Request {
    todo!()
}

impl Netlink {
    /// `bridge vlan show dev PORT`
    ///
    /// # Errors
    /// The kernel's.
    pub fn vlans(&mut self, _index: u32) -> Result<Vec<Vlan>> {
        todo!()
    }
}
