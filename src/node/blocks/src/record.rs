use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use cnimble_leases::cluster::number;
use serde::{Deserialize, Serialize};

/// The identity of a store, and its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fence {
    /// The ID of the etcd cluster.
    pub(crate) cluster: u64,
    /// The log's index minus the revision. It only falls when a restored backup begins the log anew.
    pub(crate) offset: i64,
    /// The number of host bits of a block, which has two to the power of it addresses.
    pub(crate) host_bits: u32,
    /// Why nothing may be claimed until all nodes have had time to claim again what they own. It is `None` in the usual
    /// case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suspect: Option<String>,
    /// The time at which the latest restored backup was noticed, in milliseconds since 1970. Revisions of two epochs
    /// don't compare.
    pub(crate) epoch: u64,
    /// The longest time `offline` of a node in milliseconds.
    pub(crate) offline: u64,
}

/// The repetition of a claim that was made before a restored backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Again {
    /// The epoch that it was repeated in.
    pub(crate) epoch: u64,
    /// The epoch and the revision that the owner saw last before. A later owner has seen more.
    pub(crate) seen: (u64, i64),
}

/// The value of a block or of a single address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) node: String,
    pub(crate) instance: String,
    /// How long the node gives addresses without the store, in milliseconds.
    pub(crate) offline: u64,
    /// The time from which on others may claim a released one, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) free: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<Again>,
}

impl Owner {
    /// Returns whether others may claim it by now.
    pub(crate) fn is_free(&self) -> bool {
        self.free.is_some_and(|free| free <= unix_now())
    }
}

/// Returns how long others wait after a node's last confirmation, in milliseconds. Clocks may differ by a tenth.
pub(crate) fn patience(offline: u64) -> u64 {
    offline.saturating_add(offline / 10)
}

/// Returns an address as part of a key or an object's name, such as `4-0a000040`. The digits have one width, so texts
/// sort as addresses do.
pub(crate) fn text(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(_) => format!("4-{:08x}", number(ip)),
        IpAddr::V6(_) => format!("6-{:032x}", number(ip)),
    }
}

/// The addresses by which others reach a node and its pods. They change seldom and all nodes watch them, so they have a
/// key of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) ips: Vec<IpAddr>,
}

/// The new state of a block, of a single address, or of a node's addresses. A `None` in it means that there is none any
/// more. `Fence` means that the fence may have changed, and has to be read.
pub(crate) enum Change {
    Block(IpAddr, Option<Owner>),
    Single(IpAddr, Option<Owner>),
    Host(String, Option<Vec<IpAddr>>),
    Fence,
}

impl Change {
    /// Returns whether the block, address or node has no owner or address any more.
    pub(crate) fn removes(&self) -> bool {
        match self {
            Change::Block(_, owner) | Change::Single(_, owner) => owner.is_none(),
            Change::Host(_, ips) => ips.is_none(),
            Change::Fence => false,
        }
    }
}

/// Returns milliseconds since 1970.
pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
