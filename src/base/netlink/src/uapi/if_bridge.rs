//! linux/if_bridge.h: vlans of a bridge and its ports.

/// `sizeof(struct br_vlan_msg)`
pub(crate) const BR_VLAN_MSG: usize = 8;
pub(crate) const BRIDGE_VLANDB_ENTRY: u16 = 1;
pub(crate) const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
pub(crate) const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;
pub(crate) const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

pub(crate) const BR_STATE_DISABLED: u8 = 0;
pub(crate) const BR_STATE_LISTENING: u8 = 1;
pub(crate) const BR_STATE_LEARNING: u8 = 2;
pub(crate) const BR_STATE_FORWARDING: u8 = 3;
pub(crate) const BR_STATE_BLOCKING: u8 = 4;
