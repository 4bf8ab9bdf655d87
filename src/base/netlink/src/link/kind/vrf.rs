//! `type vrf table TABLE`: its ports have a routing table of their own.

use std::fmt;

use netlink_packet_route::link::{InfoData, InfoVrf};

use super::Settings;
use crate::uapi::if_link::IFLA_VRF_TABLE;
use crate::wire::{Attributes, Malformed, u32_ne};

pub(super) const NAME: &str = "vrf";

/// The settings of a VRF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vrf {
    /// The number of the routing table.
    pub table: u32,
}

impl fmt::Display for Vrf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " table {}", self.table)
    }
}

impl Settings for Vrf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn data(&self) -> Option<InfoData> {
        Some(InfoData::Vrf(vec![InfoVrf::TableId(self.table)]))
    }
}

pub(super) fn read(data: Attributes<'_>) -> Result<Option<Vrf>, Malformed> {
    Ok(data.find(IFLA_VRF_TABLE)?.and_then(|table| u32_ne(table, 0)).map(|table| Vrf { table }))
}
