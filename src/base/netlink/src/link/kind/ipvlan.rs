//! `type ipvlan mode MODE`: shares its parent's hardware address and takes the packets to its own addresses.

use netlink_packet_route::link::{InfoData, InfoIpVlan, IpVlanMode};

use crate::uapi::if_link::{IFLA_IPVLAN_MODE, IPVLAN_MODE_L2, IPVLAN_MODE_L3, IPVLAN_MODE_L3S};
use crate::wire::{Attributes, Malformed, u16_ne};

pub(super) const NAME: &str = "ipvlan";

/// The mode of an ipvlan (linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum IpvlanMode {
    /// The interface answers ARP and neighbour solicitations itself.
    L2 = IPVLAN_MODE_L2,
    /// The parent routes for the interface, which gets no broadcasts.
    L3 = IPVLAN_MODE_L3,
    /// L3 through the host's netfilter.
    L3s = IPVLAN_MODE_L3S,
}

impl IpvlanMode {
    /// All modes, for texts of errors.
    pub const ALL: [IpvlanMode; 3] = [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s];

    /// Returns the name as in `ip link add … type ipvlan mode …`.
    pub fn name(self) -> &'static str {
        match self {
            IpvlanMode::L2 => "l2",
            IpvlanMode::L3 => "l3",
            IpvlanMode::L3s => "l3s",
        }
    }

    pub(super) fn data(self) -> InfoData {
        InfoData::IpVlan(vec![InfoIpVlan::Mode(IpVlanMode::from(self as u16))])
    }
}

/// Reads the mode of an ipvlan. `None` for a mode that isn't known here.
pub(super) fn read(data: Attributes<'_>) -> Result<Option<IpvlanMode>, Malformed> {
    let number = data.find(IFLA_IPVLAN_MODE)?.and_then(|mode| u16_ne(mode, 0));
    Ok(IpvlanMode::ALL.into_iter().find(|mode| Some(*mode as u16) == number))
}
