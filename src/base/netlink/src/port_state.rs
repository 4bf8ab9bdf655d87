//! The state of a bridge port, which decides whether frames pass: `bridge -d link show`.

use std::fmt;

use super::uapi::if_bridge::{
    BR_STATE_BLOCKING, BR_STATE_DISABLED, BR_STATE_FORWARDING, BR_STATE_LEARNING, BR_STATE_LISTENING,
};

/// The state of a port (`BR_STATE_…`, linux/if_bridge.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in bridge(8)
pub enum PortState {
    Disabled,
    Listening,
    Learning,
    Forwarding,
    Blocking,
    Other(u8),
}

impl PortState {
    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            BR_STATE_DISABLED => PortState::Disabled,
            BR_STATE_LISTENING => PortState::Listening,
            BR_STATE_LEARNING => PortState::Learning,
            BR_STATE_FORWARDING => PortState::Forwarding,
            BR_STATE_BLOCKING => PortState::Blocking,
            other => PortState::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Disabled => f.write_str("disabled"),
            PortState::Listening => f.write_str("listening"),
            PortState::Learning => f.write_str("learning"),
            PortState::Forwarding => f.write_str("forwarding"),
            PortState::Blocking => f.write_str("blocking"),
            PortState::Other(number) => write!(f, "state {number}"),
        }
    }
}
