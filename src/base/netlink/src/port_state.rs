//! The state of a bridge port, which decides whether frames pass: `bridge -d link show`.

use std::fmt;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;

use super::link::read::without_statistics;
use super::request::encode;
use super::uapi::if_bridge::{
    BR_STATE_BLOCKING, BR_STATE_DISABLED, BR_STATE_FORWARDING, BR_STATE_LEARNING, BR_STATE_LISTENING,
};
use super::uapi::if_link::{
    IFLA_BRPORT_ISOLATED, IFLA_BRPORT_LEARNING, IFLA_BRPORT_STATE, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND,
};
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{IFINFOMSG, RTM_NEWLINK};
use super::wire::{Attributes, Message, Parsed, text};
use super::{Netlink, Result};

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
    fn from_number(number: u8) -> Self {
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

/// A port of a bridge as far as it decides about frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgePort {
    /// The state of the port. Only a port that is forwarding lets frames pass.
    pub state: PortState,
    /// Whether the bridge learns addresses from the port's frames.
    pub learning: bool,
    /// Whether the port gets no frames of other isolated ports.
    pub isolated: bool,
}

impl Netlink {
    /// The port at `index`. `None` if that link is no port of a bridge.
    pub fn bridge_port(&mut self, index: u32) -> Result<Option<BridgePort>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(without_statistics());
        let message = encode(RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST);
        self.get(&format!("look up bridge port number {index}"), message, read)
    }
}

pub(super) fn read(message: &Message<'_>) -> Parsed<Option<BridgePort>> {
    if message.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let info = Attributes::behind(message.body, IFINFOMSG).find(libc::IFLA_LINKINFO)?;
    let info = Attributes::new(info.unwrap_or_default());
    if info.find(IFLA_INFO_SLAVE_KIND)?.map(text).as_deref() != Some("bridge") {
        return Ok(None);
    }
    let data = Attributes::new(info.find(IFLA_INFO_SLAVE_DATA)?.unwrap_or_default());
    let state = data.find_u8(IFLA_BRPORT_STATE)?;
    Ok(Some(BridgePort {
        state: PortState::from_number(state.unwrap_or(BR_STATE_DISABLED)),
        learning: data.find_u8(IFLA_BRPORT_LEARNING)? != Some(0),
        isolated: data.find_u8(IFLA_BRPORT_ISOLATED)?.is_some_and(|on| on != 0),
    }))
}
