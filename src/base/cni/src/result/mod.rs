//! The result of ADD, in the form of the newest version, and its conversion from and to older forms. `v02` is for 0.1.0
//! and 0.2.0, with one address per family, `v04` for 0.3.0 to 0.4.0, with lists that name the family, and `v10` for
//! 1.0.0 and 1.1.0.
//!
//! **Keys of newer versions.** The specification names `mtu`, `socketPath` and `pciID` of an interface, and the route
//! options `mtu`, `advmss`, `priority`, `table` and `scope`, in 1.1.0 only. As the Go library does, we write the former
//! from 1.0.0 on and the latter from 0.3.0 on. Dropping them would cut a chain: the `priority` in an IPAM plugin's
//! answer must reach the main plugin of a 0.4.0 network.

mod v02;
mod v04;
mod v10;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, Version, fields, json};

/// The result of ADD (specification 1.1.0, section 5 "ADD success").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CniResult {
    /// Links that were made, host and container side.
    pub interfaces: Vec<Interface>,
    /// The addresses of the interfaces.
    pub ips: Vec<IpConfig>,
    /// Routes inside the container.
    pub routes: Vec<Route>,
    /// The configuration of name resolution.
    pub dns: Dns,
}

/// A link, in the pod or on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Interface {
    /// The name of the link.
    pub name: String,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// MTU in bytes; written from 1.0.0 on.
    #[serde(deserialize_with = "fields::nonzero_opt", skip_serializing_if = "unset")]
    pub mtu: Option<u32>,
    /// Path of the namespace, to the letter of CNI_NETNS; empty on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Path of a socket, for vhost-user; written from 1.0.0 on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// PCI address; written from 1.0.0 on.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

impl Interface {
    /// A link in the namespace `sandbox`, or on the host if that is empty. `mac` may be empty.
    pub fn new(name: impl Into<String>, mac: impl Into<String>, sandbox: impl Into<String>) -> Self {
        Interface { name: name.into(), mac: mac.into(), sandbox: sandbox.into(), ..Interface::default() }
    }
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct IpConfig {
    /// The index into [`CniResult::interfaces`].
    #[serde(default, deserialize_with = "interface_index", skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
    /// Address and prefix length.
    #[serde(deserialize_with = "fields::cidr", serialize_with = "fields::display")]
    pub address: IpNetwork,
    /// Gateway of that network.
    #[serde(default, deserialize_with = "fields::ip_opt", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl IpConfig {
    /// An address that belongs to no interface of the result yet.
    pub fn new(address: IpNetwork, gateway: Option<IpAddr>) -> Self {
        IpConfig { interface: None, address, gateway }
    }
}

/// A route in the pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Route {
    /// Destination. Host bits stay as they were given.
    #[serde(deserialize_with = "fields::cidr", serialize_with = "fields::display")]
    pub dst: IpNetwork,
    /// The next hop's address.
    #[serde(default, deserialize_with = "fields::ip_opt", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes; 0 is not set. This and what follows is written from 0.3.0 on.
    #[serde(default, deserialize_with = "fields::nonzero_opt", skip_serializing_if = "unset")]
    pub mtu: Option<u32>,
    /// TCP maximum segment size in bytes; 0 is not set.
    #[serde(default, deserialize_with = "fields::nonzero_opt", skip_serializing_if = "unset")]
    pub advmss: Option<u32>,
    /// Metric; 0 is not set.
    #[serde(default, deserialize_with = "fields::nonzero_opt", skip_serializing_if = "unset")]
    pub priority: Option<u32>,
    /// The number of the routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope, as in rtnetlink(7) `rtm_scope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A route with only destination and next hop.
    pub fn new(dst: IpNetwork, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

/// The configuration of name resolution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Dns {
    /// Name servers, by address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains of the search list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options, as in resolv.conf(5).
    #[serde(skip_serializing_if = "Vec::is_empty")]
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

/// `dns` of a configuration, where a list that is there and empty is another thing than none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsKeys {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsKeys {
    /// The configured DNS settings, which replace IPAM's; `None` if no key is there.
    pub fn given(self) -> Option<Dns> {
        let DnsKeys { nameservers, domain, search, options } = self;
        let lists = [&nameservers, &search, &options];
        if domain.is_empty() && lists.iter().all(|list| list.is_none()) {
            return None;
        }
        Some(Dns {
            nameservers: nameservers.unwrap_or_default(),
            domain,
            search: search.unwrap_or_default(),
            options: options.unwrap_or_default(),
        })
    }
}

/// Returns whether a number is left out: Go leaves out a plain number that is 0.
fn unset(number: &Option<u32>) -> bool {
    number.unwrap_or(0) == 0
}

/// Reads the index of an interface. Early 0.3.0 plugins wrote -1 for none.
fn interface_index<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match Option::<i64>::deserialize(deserializer)? {
        None | Some(-1) => Ok(None),
        Some(index) => u32::try_from(index).map(Some).map_err(|_| {
            serde::de::Error::invalid_value(
                serde::de::Unexpected::Signed(index),
                &"an index into the list of interfaces",
            )
        }),
    }
}

impl CniResult {
    /// The result of an IPAM plugin, which has no interfaces.
    pub fn ipam(ips: Vec<IpConfig>, routes: Vec<Route>, dns: Dns) -> Self {
        CniResult { interfaces: Vec::new(), ips, routes, dns }
    }

    /// Reads a result of its own `cniVersion`, or of `fallback` where it has none. `path` is put in front of paths in
    /// error texts.
    ///
    /// # Errors
    /// Code 1 for an unknown version, 7 with the path for a bad value.
    pub fn from_value(value: &Value, fallback: Version, path: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Versioned {
            #[serde(default, deserialize_with = "fields::text_opt")]
            cni_version: Option<String>,
        }
        let own = json::from_value::<Versioned>(value, path)?.cni_version;
        let version = match own {
            None => fallback,
            Some(text) => Version::parse(&text).map_err(|_| unknown_version(&text, path))?,
        };
        match version {
            Version::V0_1_0 | Version::V0_2_0 => v02::read(value, path),
            // Between 0.3.0 and 0.4.0 an address has its `version`, too, which is ignored.
            _ => v10::read(value, path),
        }
    }

    /// The result as a document of `version`.
    ///
    /// # Errors
    /// Code 1: below 0.3.0, a result without an address can't be expressed.
    pub fn to_value(&self, version: Version) -> Result<Value, Error> {
        Ok(match version {
            Version::V0_1_0 | Version::V0_2_0 => value_of(&v02::form(self, version)?),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => value_of(&v04::form(self, version)),
            Version::V1_0_0 | Version::V1_1_0 => value_of(&v10::form(self, version)),
        })
    }

    /// The text that a plugin prints: the reference's bytes for `version`.
    ///
    /// # Errors
    /// Fails as [`CniResult::to_value`] does.
    pub fn to_json(&self, version: Version) -> Result<String, Error> {
        Ok(match version {
            Version::V0_1_0 | Version::V0_2_0 => json::to_pretty(&v02::form(self, version)?),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => json::to_pretty(&v04::form(self, version)),
            // A Value's keys are sorted, as Go sorts those of a map.
            Version::V1_0_0 | Version::V1_1_0 => json::to_pretty(&value_of(&v10::form(self, version))),
        })
    }
}

/// Returns the form as JSON. Only a map with keys other than text could fail here, and no form has one.
fn value_of<T: Serialize>(form: &T) -> Value {
    serde_json::to_value(form).unwrap_or_default()
}

fn unknown_version(text: &str, path: &str) -> Error {
    let dot = if path.is_empty() { "" } else { "." };
    Version::incompatible(text, Version::ALL).context(format_args!("{path}{dot}cniVersion"))
}

#[cfg(test)]
mod tests;
