//! What ADD returns, in the form of the newest version; older forms are made from and
//! turned into it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use super::{Error, Version};

/// The result of ADD (specification 1.1.0, section 5 "ADD success").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    /// Links that were made, host and container side.
    pub interfaces: Vec<Interface>,
    /// Addresses.
    pub ips: Vec<IpConfig>,
    /// Routes inside the container.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
}

/// One link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`; empty if it has none.
    pub mac: String,
    /// MTU in bytes; written from 1.1.0 on.
    pub mtu: Option<u32>,
    /// Path of the namespace, to the letter of CNI_NETNS; empty on the host.
    pub sandbox: String,
    /// Path of a socket, for vhost-user; from 1.1.0 on.
    pub socket_path: String,
    /// PCI address; from 1.1.0 on.
    pub pci_id: String,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Index into [`CniResult::interfaces`].
    pub interface: Option<u32>,
    /// Address and prefix length.
    pub address: IpNetwork,
    /// Gateway of that network.
    pub gateway: Option<IpAddr>,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNetwork,
    /// Next hop.
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes; from 1.1.0 on.
    pub mtu: Option<u32>,
    /// TCP maximum segment size in bytes; from 1.1.0 on.
    pub advmss: Option<u32>,
    /// Metric; from 1.1.0 on.
    pub priority: Option<u32>,
    /// Routing table; from 1.1.0 on.
    pub table: Option<u32>,
    /// Scope, as in rtnetlink(7) `rtm_scope`; from 1.1.0 on.
    pub scope: Option<u8>,
}

impl Route {
    /// A route with only destination and next hop.
    pub fn new(dst: IpNetwork, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

/// Name resolution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Name servers, by address.
    pub nameservers: Vec<String>,
    /// Local domain.
    pub domain: String,
    /// Search list.
    pub search: Vec<String>,
    /// resolv.conf(5) options.
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

impl CniResult {
    /// Reads a result of any version; its own `cniVersion` says which, `fallback` where it
    /// has none. `path` is put in front of paths in error texts.
    ///
    /// # Errors
    /// Code 1 for an unknown version, 7 with the path for a bad value.
    pub fn from_value(value: &Value, fallback: Version, path: &str) -> Result<Self, Error> {
        todo!("{value} {fallback} {path}")
    }

    /// The result as a document of `version`.
    ///
    /// # Errors
    /// Below 0.3.0, a result without an address can't be expressed.
    pub fn to_value(&self, version: Version) -> Result<Value, Error> {
        todo!("{version}")
    }

    /// The text that a plugin prints: the reference's bytes for `version`.
    ///
    /// # Errors
    /// As [`CniResult::to_value`].
    pub fn to_json(&self, version: Version) -> Result<String, Error> {
        todo!("{version}")
    }
}
