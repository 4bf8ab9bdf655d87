//! linux/if_link.h, with the flags of linux/if.h and the indexes of linux/ip.h and linux/ipv6.h.

pub(crate) const IFF_UP: u32 = 0x1;
pub(crate) const IFF_DEBUG: u32 = 0x4;
pub(crate) const IFF_LOOPBACK: u32 = 0x8;
pub(crate) const IFF_NOTRAILERS: u32 = 0x20;
pub(crate) const IFF_NOARP: u32 = 0x80;
pub(crate) const IFF_PROMISC: u32 = 0x100;
pub(crate) const IFF_LOWER_UP: u32 = 0x10000;
pub(crate) const IFF_ALLMULTI: u32 = 0x200;
pub(crate) const IFF_MULTICAST: u32 = 0x1000;
pub(crate) const IFF_PORTSEL: u32 = 0x2000;
pub(crate) const IFF_AUTOMEDIA: u32 = 0x4000;
pub(crate) const IFF_DYNAMIC: u32 = 0x8000;
pub(crate) const IF_OPER_UP: u8 = 6;

pub(crate) const IFLA_LINKMODE: u16 = 17;
pub(crate) const IFLA_GSO_MAX_SEGS: u16 = 40;
pub(crate) const IFLA_GSO_MAX_SIZE: u16 = 41;
pub(crate) const IFLA_XDP: u16 = 43;
pub(crate) const IFLA_PROP_LIST: u16 = 52;
pub(crate) const IFLA_ALT_IFNAME: u16 = 53;
pub(crate) const IFLA_PERM_ADDRESS: u16 = 54;
pub(crate) const IFLA_GRO_MAX_SIZE: u16 = 58;
pub(crate) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub(crate) const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

pub(crate) const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub(crate) const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub(crate) const IFLA_BR_VLAN_FILTERING: u16 = 7;
pub(crate) const IFLA_BRPORT_STATE: u16 = 1;
pub(crate) const IFLA_BRPORT_MODE: u16 = 4;
pub(crate) const IFLA_BRPORT_LEARNING: u16 = 8;
pub(crate) const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
pub(crate) const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
pub(crate) const IFLA_BRPORT_BCAST_FLOOD: u16 = 30;
pub(crate) const IFLA_BRPORT_GROUP_FWD_MASK: u16 = 31;
pub(crate) const IFLA_BRPORT_ISOLATED: u16 = 33;
pub(crate) const IFLA_INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_FORWARDING - 1`
pub(crate) const DEVCONF_FORWARDING: usize = 0;
pub(crate) const IPV4_DEVCONF_ARPFILTER: u16 = 13;
pub(crate) const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;
pub(crate) const IFLA_INET6_CONF: u16 = 2;
pub(crate) const DEVCONF_ACCEPT_RA: usize = 3;
pub(crate) const DEVCONF_DISABLE_IPV6: usize = 26;

pub(crate) const IFLA_MACVLAN_MODE: u16 = 1;
pub(crate) const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
pub(crate) const MACVLAN_MODE_PRIVATE: u32 = 1;
pub(crate) const MACVLAN_MODE_VEPA: u32 = 2;
pub(crate) const MACVLAN_MODE_BRIDGE: u32 = 4;
pub(crate) const MACVLAN_MODE_PASSTHRU: u32 = 8;
pub(crate) const IFLA_IPVLAN_MODE: u16 = 1;
pub(crate) const IPVLAN_MODE_L2: u16 = 0;
pub(crate) const IPVLAN_MODE_L3: u16 = 1;
pub(crate) const IPVLAN_MODE_L3S: u16 = 2;
pub(crate) const IFLA_TUN_OWNER: u16 = 1;
pub(crate) const IFLA_TUN_GROUP: u16 = 2;
pub(crate) const IFLA_TUN_TYPE: u16 = 3;
pub(crate) const IFLA_TUN_MULTI_QUEUE: u16 = 7;
pub(crate) const IFLA_VLAN_ID: u16 = 1;
pub(crate) const IFLA_VRF_TABLE: u16 = 1;

/// `sizeof(struct if_stats_msg)`
pub(crate) const IF_STATS_MSG: usize = 12;
pub(crate) const IFLA_STATS_LINK_64: u16 = 1;
/// `IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)`
pub(crate) const FILTER_LINK_64: u32 = 1;

pub(crate) const IFLA_XDP_ATTACHED: u16 = 2;
pub(crate) const IFLA_XDP_PROG_ID: u16 = 4;
pub(crate) const IFLA_XDP_DRV_PROG_ID: u16 = 5;
pub(crate) const IFLA_XDP_SKB_PROG_ID: u16 = 6;
pub(crate) const IFLA_XDP_HW_PROG_ID: u16 = 7;
pub(crate) const XDP_ATTACHED_NONE: u8 = 0;
