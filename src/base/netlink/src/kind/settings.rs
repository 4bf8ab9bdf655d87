//! IFLA_INFO_DATA of the kinds: written and read.

use netlink_packet_route::link::{
    InfoData, InfoIpVlan, InfoMacVlan, InfoVlan, InfoVrf, IpVlanMode, MacVlanMode,
};

use super::{IpvlanMode, Kind, MacvlanMode};
use crate::uapi::if_link::{
    IFLA_IPVLAN_MODE, IFLA_MACVLAN_BC_QUEUE_LEN, IFLA_MACVLAN_MODE, IFLA_TUN_GROUP, IFLA_TUN_MULTI_QUEUE,
    IFLA_TUN_OWNER, IFLA_TUN_TYPE, IFLA_VLAN_ID, IFLA_VRF_TABLE, IPVLAN_MODE_L2, IPVLAN_MODE_L3,
    IPVLAN_MODE_L3S, MACVLAN_MODE_BRIDGE, MACVLAN_MODE_PASSTHRU, MACVLAN_MODE_PRIVATE, MACVLAN_MODE_VEPA,
};
use crate::uapi::if_tun::IFF_TAP;
use crate::wire::{Attributes, Malformed, u8_at, u16_ne, u32_ne};

/// The kind's own attributes (`IFLA_INFO_DATA`).
pub(super) fn data(kind: Kind) -> Option<InfoData> {
    Some(match kind {
        Kind::Dummy | Kind::Ifb | Kind::Tap { .. } => return None,
        Kind::Ipvlan(mode) => InfoData::IpVlan(vec![InfoIpVlan::Mode(match mode {
            IpvlanMode::L2 => IpVlanMode::L2,
            IpvlanMode::L3 => IpVlanMode::L3,
            IpvlanMode::L3s => IpVlanMode::L3S,
        })]),
        Kind::Macvlan { mode, bcqueuelen } => {
            let mode = InfoMacVlan::Mode(match mode {
                MacvlanMode::Bridge => MacVlanMode::Bridge,
                MacvlanMode::Private => MacVlanMode::Private,
                MacvlanMode::Vepa => MacVlanMode::Vepa,
                MacvlanMode::Passthru => MacVlanMode::Passthrough,
            });
            InfoData::MacVlan([mode].into_iter().chain(bcqueuelen.map(InfoMacVlan::BcQueueLen)).collect())
        }
        Kind::Vlan { id } => InfoData::Vlan(vec![InfoVlan::Id(id)]),
        Kind::Vrf { table } => InfoData::Vrf(vec![InfoVrf::TableId(table)]),
    })
}

/// A link's settings from the kernel; `None` for a kind without, and for a mode that isn't made here.
pub(crate) fn read(kind: &str, data: &[u8]) -> Result<Option<Kind>, Malformed> {
    let attribute = |wanted| Attributes::new(data).find(wanted);
    Ok(match kind {
        "ipvlan" => match attribute(IFLA_IPVLAN_MODE)?.and_then(|mode| u16_ne(mode, 0)) {
            Some(IPVLAN_MODE_L2) => Some(Kind::Ipvlan(IpvlanMode::L2)),
            Some(IPVLAN_MODE_L3) => Some(Kind::Ipvlan(IpvlanMode::L3)),
            Some(IPVLAN_MODE_L3S) => Some(Kind::Ipvlan(IpvlanMode::L3s)),
            _ => None,
        },
        "macvlan" => {
            let mode = match attribute(IFLA_MACVLAN_MODE)?.and_then(|mode| u32_ne(mode, 0)) {
                Some(MACVLAN_MODE_BRIDGE) => MacvlanMode::Bridge,
                Some(MACVLAN_MODE_PRIVATE) => MacvlanMode::Private,
                Some(MACVLAN_MODE_VEPA) => MacvlanMode::Vepa,
                Some(MACVLAN_MODE_PASSTHRU) => MacvlanMode::Passthru,
                _ => return Ok(None),
            };
            let bcqueuelen = attribute(IFLA_MACVLAN_BC_QUEUE_LEN)?.and_then(|length| u32_ne(length, 0));
            Some(Kind::Macvlan { mode, bcqueuelen })
        }
        "tun" => {
            let number = |wanted| Ok(attribute(wanted)?.and_then(|id| u32_ne(id, 0)));
            let flag = |wanted| Ok(attribute(wanted)?.and_then(|value| u8_at(value, 0)));
            (flag(IFLA_TUN_TYPE)? == Some(IFF_TAP as u8)).then_some(Kind::Tap {
                owner: number(IFLA_TUN_OWNER)?,
                group: number(IFLA_TUN_GROUP)?,
                multi_queue: flag(IFLA_TUN_MULTI_QUEUE)? == Some(1),
            })
        }
        "vlan" => attribute(IFLA_VLAN_ID)?.and_then(|id| u16_ne(id, 0)).map(|id| Kind::Vlan { id }),
        "vrf" => {
            attribute(IFLA_VRF_TABLE)?.and_then(|table| u32_ne(table, 0)).map(|table| Kind::Vrf { table })
        }
        _ => None,
    })
}
