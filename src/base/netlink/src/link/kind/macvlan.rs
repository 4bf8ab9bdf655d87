//! `type macvlan mode MODE bcqueuelen LENGTH`: takes the frames to its own hardware address.

use std::fmt;

use netlink_packet_route::link::{InfoData, InfoMacVlan, MacVlanMode};

use crate::uapi::if_link::{
    IFLA_MACVLAN_BC_QUEUE_LEN, IFLA_MACVLAN_MODE, MACVLAN_MODE_BRIDGE, MACVLAN_MODE_PASSTHRU,
    MACVLAN_MODE_PRIVATE, MACVLAN_MODE_VEPA,
};
use crate::wire::{Attributes, Malformed};

pub(super) const NAME: &str = "macvlan";

/// The settings of a macvlan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Macvlan {
    /// The mode, which decides which of a parent's macvlans reach each other.
    pub mode: MacvlanMode,
    /// The number of broadcast frames that may wait. `None` is the kernel's default. Kernels before 5.11 ignore it, and
    /// don't report it.
    pub bcqueuelen: Option<u32>,
}

/// The mode of a macvlan (linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MacvlanMode {
    /// The macvlans of a parent hear each other.
    Bridge = MACVLAN_MODE_BRIDGE,
    /// The macvlans of a parent do not hear each other.
    Private = MACVLAN_MODE_PRIVATE,
    /// The macvlans of a parent hear each other by way of a switch that sends frames back.
    Vepa = MACVLAN_MODE_VEPA,
    /// One macvlan has its parent to itself.
    Passthru = MACVLAN_MODE_PASSTHRU,
}

impl MacvlanMode {
    /// All modes, for texts of errors.
    pub const ALL: [MacvlanMode; 4] =
        [MacvlanMode::Bridge, MacvlanMode::Private, MacvlanMode::Vepa, MacvlanMode::Passthru];

    /// Returns the name as in `ip link add … type macvlan mode …`.
    pub fn name(self) -> &'static str {
        match self {
            MacvlanMode::Bridge => "bridge",
            MacvlanMode::Private => "private",
            MacvlanMode::Vepa => "vepa",
            MacvlanMode::Passthru => "passthru",
        }
    }
}

impl fmt::Display for Macvlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " mode {}", self.mode.name())?;
        self.bcqueuelen.map_or(Ok(()), |length| write!(f, " bcqueuelen {length}"))
    }
}

impl Macvlan {
    pub(super) fn data(self) -> InfoData {
        let mode = InfoMacVlan::Mode(MacVlanMode::from(self.mode as u32));
        InfoData::MacVlan([mode].into_iter().chain(self.bcqueuelen.map(InfoMacVlan::BcQueueLen)).collect())
    }

    /// Whether a macvlan with the settings `now` has these. A queue length that isn't wanted or isn't reported makes no
    /// difference.
    pub(super) fn is_met_by(self, now: Macvlan) -> bool {
        self.mode == now.mode && self.bcqueuelen.zip(now.bcqueuelen).is_none_or(|(wanted, now)| wanted == now)
    }
}

/// Reads the settings of a macvlan. `None` for a mode that isn't known here.
pub(super) fn read(data: Attributes<'_>) -> Result<Option<Macvlan>, Malformed> {
    let number = data.find_u32(IFLA_MACVLAN_MODE)?;
    let bcqueuelen = data.find_u32(IFLA_MACVLAN_BC_QUEUE_LEN)?;
    let mode = MacvlanMode::ALL.into_iter().find(|mode| Some(*mode as u32) == number);
    Ok(mode.map(|mode| Macvlan { mode, bcqueuelen }))
}
