//! `type vlan id ID`: takes the frames with this tag (802.1Q).

use std::fmt;

use netlink_packet_route::link::{InfoData, InfoVlan};

use super::Settings;
use crate::uapi::if_link::IFLA_VLAN_ID;
use crate::wire::{Attributes, Malformed, u16_ne};

pub(super) const NAME: &str = "vlan";

/// The settings of a vlan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN ID, from 0 to 4094.
    pub id: u16,
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " id {}", self.id)
    }
}

impl Settings for Vlan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn data(&self) -> Option<InfoData> {
        Some(InfoData::Vlan(vec![InfoVlan::Id(self.id)]))
    }
}

pub(super) fn read(data: Attributes<'_>) -> Result<Option<Vlan>, Malformed> {
    Ok(data.find(IFLA_VLAN_ID)?.and_then(|id| u16_ne(id, 0)).map(|id| Vlan { id }))
}
