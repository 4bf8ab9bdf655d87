//! Turns the network that podman describes (`--subnet`, `--opt type=`) into a CNI network. podman's IPAM has chosen the
//! container's addresses, so the configuration contains them, and no leases are kept here.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use cnimble_cni::{NetworkList, cidr, names};

use crate::input::{Network, Subnet};
use crate::options::{self, Options};
use crate::{Failure, said};

/// The version that cnimble's plugins have, with STATUS and GC.
const VERSION: &str = "1.1.0";

/// The options of a described network.
const OPTIONS: &[&str] = &[
    "type",
    "parent",
    "mode",
    "mtu",
    "vlan",
    "isolate",
    options::PUBLISH,
    options::DEFAULT_ROUTE,
    options::PLUGIN_DIR,
    options::CONF_DIR,
];

/// The main plugin of a described network (`--opt type=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bridge,
    Ptp,
    Macvlan,
    Ipvlan,
}

impl Kind {
    fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "bridge" => Ok(Kind::Bridge),
            "ptp" => Ok(Kind::Ptp),
            "macvlan" => Ok(Kind::Macvlan),
            "ipvlan" => Ok(Kind::Ipvlan),
            _ => said(format!("type={text}: expected bridge, ptp, macvlan or ipvlan")),
        }
    }

    /// Returns the name of the plugin.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bridge => "bridge",
            Kind::Ptp => "ptp",
            Kind::Macvlan => "macvlan",
            Kind::Ipvlan => "ipvlan",
        }
    }

    /// Returns whether the host routes for the containers, rather than the parent's network.
    pub fn is_routed_here(self) -> bool {
        matches!(self, Kind::Bridge | Kind::Ptp)
    }

    /// Returns the options that mean something only for other types.
    fn foreign_options(self) -> &'static [&'static str] {
        match self {
            Kind::Bridge => &["parent", "mode"],
            Kind::Ptp => &["parent", "mode", "vlan", "isolate"],
            Kind::Macvlan | Kind::Ipvlan => &["vlan", "isolate"],
        }
    }
}

/// A described network, with its options read.
#[derive(Debug)]
pub struct Description<'a> {
    network: &'a Network,
    pub kind: Kind,
    mtu: Option<u32>,
    vlan: Option<u32>,
    isolate: bool,
    /// The interface that a macvlan or an ipvlan is on. Without one it is that of the host's default route.
    parent: Option<&'a str>,
    mode: Option<&'a str>,
}

/// One container, as far as its configuration depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    pub addresses: &'a [IpAddr],
    pub has_default_route: bool,
    pub publishes: bool,
    pub has_wished_mac: bool,
}

impl<'a> Description<'a> {
    /// Reads the options of a network.
    pub fn read(network: &'a Network) -> Result<Self, Failure> {
        let given = Options::new(network.options.as_ref());
        given.must_be_among(OPTIONS, "a network that podman describes")?;
        let kind = Kind::parse(given.get("type").unwrap_or("bridge"))?;
        if let Some(key) = kind.foreign_options().iter().find(|key| given.get(key).is_some()) {
            return said(format!("the option {key} is not for type={}", kind.name()));
        }
        if kind == Kind::Ptp && network.interface().is_some() {
            return said("--interface-name is not for type=ptp: each container has a pair of its own");
        }
        if !kind.is_routed_here() && given.flag(options::PUBLISH)? == Some(true) {
            return said(format!("publish=true: type={} publishes no ports", kind.name()));
        }
        if network.internal && given.flag(options::PUBLISH)? == Some(true) {
            return said("publish=true: an internal network publishes no ports");
        }
        if let Some(route) = network.routes().iter().find(|route| !route.leads_to_gateway()) {
            return said(format!(
                "--route {}: a CNI network has only routes that lead to a gateway",
                route.destination
            ));
        }
        let parent = match (given.get("parent"), network.interface().filter(|_| !kind.is_routed_here())) {
            (Some(one), Some(other)) if one != other => {
                return said(format!("parent={one} and --interface-name {other} name two parents"));
            }
            (Some(one), _) | (None, Some(one)) => Some(one),
            (None, None) => None,
        };
        Ok(Description {
            network,
            kind,
            mtu: given.number("mtu")?,
            vlan: given.number("vlan")?,
            isolate: given.flag("isolate")?.unwrap_or(false),
            parent,
            mode: given.get("mode"),
        })
    }

    /// Returns whether the network can publish ports: the host routes it, and it is not internal.
    pub fn can_publish(&self) -> bool {
        self.kind.is_routed_here() && !self.network.internal
    }

    /// Returns the CNI network for one container.
    pub fn list(&self, container: &Container<'_>) -> Result<NetworkList, Failure> {
        let mut plugins = vec![self.main_plugin(self.ipam(container)?)];
        if container.publishes && self.can_publish() {
            plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        }
        if self.kind.is_routed_here() && !self.network.internal {
            let mut firewall = json!({"type": "firewall"});
            if self.isolate {
                set(&mut firewall, "ingressPolicy", "same-bridge");
            }
            plugins.push(firewall);
        }
        // The plugin ptp takes no MAC. The others do, and need no further process for it.
        if container.has_wished_mac && self.kind == Kind::Ptp {
            plugins.push(json!({"type": "tuning", "capabilities": {"mac": true}}));
        }
        Ok(NetworkList::from_value(self.document(&plugins))?.complete()?)
    }

    /// Returns a network with the same subnets and addresses by host-local. The checks for overlaps read it.
    pub fn with_ranges(&self) -> Value {
        let ranges: Vec<Value> = self.network.subnets().iter().map(range).collect();
        self.document(&[self.main_plugin(json!({"type": "host-local", "ranges": ranges}))])
    }

    fn document(&self, plugins: &[Value]) -> Value {
        json!({"cniVersion": VERSION, "name": self.network.name, "plugins": plugins})
    }

    fn main_plugin(&self, ipam: Value) -> Value {
        let outwards = !self.network.internal;
        let bridge =
            self.network.interface().map_or_else(|| names::bridge_for(&self.network.name), str::to_owned);
        let mut plugin = match self.kind {
            Kind::Bridge => json!({
                "type": "bridge",
                "bridge": bridge,
                "isGateway": outwards,
                "ipMasq": outwards,
                "hairpinMode": true,
                "capabilities": {"mac": true},
            }),
            Kind::Ptp => json!({"type": "ptp", "ipMasq": outwards}),
            Kind::Macvlan => json!({"type": "macvlan", "capabilities": {"mac": true}}),
            Kind::Ipvlan => json!({"type": "ipvlan"}),
        };
        for (key, value) in [("mtu", self.mtu), ("vlan", self.vlan)] {
            if let Some(value) = value {
                set(&mut plugin, key, value);
            }
        }
        for (key, value) in [("master", self.parent), ("mode", self.mode)] {
            if let Some(value) = value {
                set(&mut plugin, key, value);
            }
        }
        set(&mut plugin, "ipam", ipam);
        plugin
    }

    /// Returns the configuration of the plugin `static` with the container's addresses and routes.
    fn ipam(&self, container: &Container<'_>) -> Result<Value, Failure> {
        let mut addresses = Vec::new();
        let mut routes: Vec<Value> = Vec::new();
        for ip in container.addresses {
            let subnet = self.subnet_of(*ip)?;
            let address = format!("{ip}/{}", subnet.subnet.prefix());
            let Some(gateway) = subnet.gateway.filter(|_| !self.network.internal) else {
                addresses.push(json!({"address": address}));
                continue;
            };
            addresses.push(json!({"address": address, "gateway": gateway}));
            let default = json!({"dst": cidr::default_route(subnet.subnet)});
            if container.has_default_route && !routes.contains(&default) {
                routes.push(default);
            }
        }
        for route in self.network.routes() {
            let mut wanted = json!({"dst": route.destination.to_string(), "gw": route.gateway});
            if let Some(metric) = route.metric {
                set(&mut wanted, "priority", metric);
            }
            routes.push(wanted);
        }
        Ok(json!({"type": "static", "addresses": addresses, "routes": routes}))
    }

    fn subnet_of(&self, ip: IpAddr) -> Result<&'a Subnet, Failure> {
        let found = self.network.subnets().iter().find(|subnet| subnet.subnet.contains(ip));
        match found {
            Some(subnet) => Ok(subnet),
            None => said(format!("{ip} is in no subnet of network {}", self.network.name)),
        }
    }
}

/// Returns a range set of host-local.
fn range(subnet: &Subnet) -> Value {
    let mut range = Map::new();
    range.insert("subnet".into(), cidr::network_of(subnet.subnet).to_string().into());
    if let Some(gateway) = subnet.gateway {
        range.insert("gateway".into(), gateway.to_string().into());
    }
    json!([range])
}

/// Returns an address of the subnet that a container could have, for a check of the configuration.
pub fn sample_address(subnet: IpNetwork) -> Option<IpAddr> {
    let number = cidr::number(subnet.network()).checked_add(2)?;
    let ip = match subnet {
        IpNetwork::V4(_) => IpAddr::V4(u32::try_from(number).ok()?.into()),
        IpNetwork::V6(_) => IpAddr::V6(number.into()),
    };
    subnet.contains(ip).then_some(ip)
}

/// Sets a key of an object. A value that is no object stays as it is.
fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(more: &Value) -> Network {
        let mut network = json!({
            "name": "web",
            "subnets": [{"subnet": "10.89.1.0/24", "gateway": "10.89.1.1"}],
        });
        network.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(network).unwrap()
    }

    fn list(network: &Network, addresses: &[IpAddr]) -> Result<NetworkList, Failure> {
        let container =
            Container { addresses, has_default_route: true, publishes: true, has_wished_mac: false };
        Description::read(network)?.list(&container)
    }

    #[test]
    fn a_bridge_has_podmans_addresses() {
        let network = network(&json!({}));
        let list = list(&network, &["10.89.1.7".parse().unwrap()]).unwrap();
        let types: Vec<&str> = list.plugins.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
        assert_eq!(types, ["bridge", "portmap", "firewall"]);
        let bridge = &list.plugins[0].document;
        assert_eq!(bridge["bridge"], "br-web");
        assert_eq!(
            bridge["ipam"],
            json!({
                "type": "static",
                "addresses": [{"address": "10.89.1.7/24", "gateway": "10.89.1.1"}],
                "routes": [{"dst": "0.0.0.0/0"}],
            })
        );
    }

    #[test]
    fn an_internal_network_has_no_way_out() {
        let network = network(&json!({"internal": true}));
        let list = list(&network, &["10.89.1.7".parse().unwrap()]).unwrap();
        assert_eq!(list.plugins.len(), 1);
        let bridge = &list.plugins[0].document;
        assert_eq!((&bridge["isGateway"], &bridge["ipMasq"]), (&json!(false), &json!(false)));
        assert_eq!(bridge["ipam"]["routes"], json!([]));
    }

    #[test]
    fn an_option_of_another_type_is_refused() {
        for (options, word) in [
            (json!({"type": "ptp", "vlan": "7"}), "vlan"),
            (json!({"parent": "eth0"}), "parent"),
            (json!({"type": "vxlan"}), "vxlan"),
            (json!({"mtu": "large"}), "large"),
            (json!({"isolate": "strict"}), "strict"),
            (json!({"metric": "5"}), "metric"),
            (json!({"type": "macvlan", "publish": "true"}), "publishes no ports"),
        ] {
            let network = network(&json!({ "options": options }));
            let refused = Description::read(&network).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn an_address_outside_is_refused() {
        let network = network(&json!({}));
        let refused = list(&network, &["10.90.0.1".parse().unwrap()]).unwrap_err().to_string();
        assert_eq!(refused, "10.90.0.1 is in no subnet of network web");
    }

    #[test]
    fn a_sample_is_inside() {
        for (subnet, sample) in
            [("10.1.0.0/24", Some("10.1.0.2")), ("fd00::/64", Some("fd00::2")), ("10.1.0.0/31", None)]
        {
            let expected: Option<IpAddr> = sample.map(|ip| ip.parse().unwrap());
            assert_eq!(sample_address(subnet.parse().unwrap()), expected);
        }
    }
}
