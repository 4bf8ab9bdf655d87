//! The JSON of podman and netavark, as far as this driver reads it. A field that is not
//! set is `null` in netavark 1.17, and absent in 2.x. Unknown fields are ignored.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnimble_cni::fields;
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// A network of podman's.
#[derive(Debug, Clone, Deserialize)]
pub struct Network {
    pub name: String,
    /// The interface that `--interface-name` names.
    #[serde(default)]
    pub network_interface: Option<String>,
    #[serde(default)]
    pub subnets: Option<Vec<Subnet>>,
    /// The routes that `--route` adds.
    #[serde(default)]
    pub routes: Option<Vec<Route>>,
    #[serde(default)]
    pub ipv6_enabled: bool,
    #[serde(default)]
    pub internal: bool,
    /// `--ipam-driver` is the key `driver`.
    #[serde(default)]
    pub ipam_options: Option<BTreeMap<String, String>>,
    /// The pairs of `--opt`.
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
    /// The servers that `--dns` names. netavark's name server asks them.
    #[serde(default)]
    pub network_dns_servers: Option<Vec<IpAddr>>,
}

impl Network {
    /// Returns the subnets, of which there may be none.
    pub fn subnets(&self) -> &[Subnet] {
        self.subnets.as_deref().unwrap_or_default()
    }

    /// Returns the routes, of which there may be none.
    pub fn routes(&self) -> &[Route] {
        self.routes.as_deref().unwrap_or_default()
    }

    /// Returns the interface that was named. podman sends an empty name for none.
    pub fn interface(&self) -> Option<&str> {
        self.network_interface.as_deref().filter(|name| !name.is_empty())
    }

    /// Returns the IPAM driver that was named.
    pub fn ipam_driver(&self) -> Option<&str> {
        let driver = self.ipam_options.as_ref().and_then(|options| options.get("driver"));
        driver.map(String::as_str).filter(|driver| !driver.is_empty())
    }
}

/// A subnet of a network.
#[derive(Debug, Clone, Deserialize)]
pub struct Subnet {
    #[serde(deserialize_with = "fields::cidr")]
    pub subnet: IpNetwork,
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// A static route of a network.
#[derive(Debug, Clone, Deserialize)]
pub struct Route {
    #[serde(deserialize_with = "fields::cidr")]
    pub destination: IpNetwork,
    /// It is missing in a route of another type than `unicast`.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    #[serde(default)]
    pub metric: Option<u32>,
    /// `blackhole`, `unreachable` or `prohibit`, since netavark 2. Without a type the route is `unicast`.
    #[serde(default)]
    pub route_type: Option<String>,
}

impl Route {
    /// Returns whether packets take this route to its gateway. A route of another type drops them.
    pub fn leads_to_gateway(&self) -> bool {
        self.gateway.is_some() && self.route_type.as_deref().is_none_or(|of| of.is_empty() || of == "unicast")
    }
}

/// The input of `setup` and `teardown`: one container on one network.
#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    pub container_id: String,
    #[serde(default)]
    pub container_name: String,
    /// All ports that the container publishes. Each of its networks gets all of them.
    #[serde(default)]
    pub port_mappings: Option<Vec<PortMapping>>,
    pub network: Network,
    pub network_options: NetworkOptions,
}

impl Call {
    /// Returns whether the container publishes this port of the host, whatever the protocol and the address.
    pub fn publishes(&self, port: u16) -> bool {
        self.port_mappings.iter().flatten().any(|mapping| {
            let (port, first) = (u32::from(port), u32::from(mapping.host_port));
            (first..first + u32::from(mapping.range.max(1))).contains(&port)
        })
    }
}

/// The container's wishes for this network.
#[derive(Debug, Clone, Deserialize)]
pub struct NetworkOptions {
    pub interface_name: String,
    /// `--ip` and `--ip6`, or the addresses of podman's IPAM. At a reload, the addresses from before.
    #[serde(default)]
    pub static_ips: Option<Vec<IpAddr>>,
    /// `--mac-address`. At a reload, the MAC from before.
    #[serde(default)]
    pub static_mac: Option<String>,
    /// `--network NAME:KEY=VALUE`, apart from the keys that podman reads itself.
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
}

impl NetworkOptions {
    /// Returns the addresses that the container is to have, of which there may be none.
    pub fn static_ips(&self) -> &[IpAddr] {
        self.static_ips.as_deref().unwrap_or_default()
    }

    /// Returns the MAC that the container is to have.
    pub fn static_mac(&self) -> Option<&str> {
        self.static_mac.as_deref().filter(|mac| !mac.is_empty())
    }
}

/// A published range of ports.
#[derive(Debug, Clone, Deserialize)]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    /// Empty for all addresses.
    #[serde(default)]
    pub host_ip: String,
    /// One or several protocols, separated by commas. Empty for TCP.
    #[serde(default)]
    pub protocol: String,
    /// How many ports there are, from the two on. 0 is one.
    #[serde(default)]
    pub range: u16,
}
