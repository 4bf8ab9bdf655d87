//! The keys of a firewall configuration, checked.

use serde::Deserialize;

use cnimble_cni::{CniResult, Error, PluginConfig, names};
use cnimble_rules::forward::{Backend, Forward, Policy};

const DEFAULT_ADMIN_CHAIN: &str = "CNI-ADMIN";
const DEFAULT_ZONE: &str = "trusted";
/// XT_EXTENSION_MAXNAMELEN without its NUL.
const MAX_CHAIN: usize = 28;

/// As it stands in the JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
}

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// `None` lets the library choose.
    pub(crate) backend: Option<Backend>,
    pub(crate) policy: Policy,
    pub(crate) zone: String,
    admin_chain: String,
    /// Whether the administrator's chain was named.
    pub(crate) admin_named: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            backend: None,
            policy: Policy::Open,
            zone: DEFAULT_ZONE.to_owned(),
            admin_chain: DEFAULT_ADMIN_CHAIN.to_owned(),
            admin_named: false,
        }
    }
}

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Code 7.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let backend = match keys.backend.as_str() {
            "" => None,
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            "firewalld" => Some(Backend::Firewalld),
            other => {
                return Err(Error::config(format!(
                    "backend: unknown backend \"{}\"",
                    other.escape_default()
                ))
                .details("allowed are nftables, iptables and firewalld"));
            }
        };
        let policy = match keys.ingress_policy.as_str() {
            "" | "open" => Policy::Open,
            "same-bridge" => Policy::SameBridge,
            "isolated" => Policy::Isolated,
            other => {
                return Err(Error::config(format!(
                    "ingressPolicy: unknown ingress policy \"{}\"",
                    other.escape_default()
                ))
                .details("allowed are open, same-bridge and isolated"));
            }
        };
        let mut admin_chain = keys.iptables_admin_chain_name;
        let admin_named = !admin_chain.is_empty();
        if !admin_named {
            DEFAULT_ADMIN_CHAIN.clone_into(&mut admin_chain);
        }
        // It becomes a word of iptables' input.
        let fits = admin_chain.len() <= MAX_CHAIN
            && admin_chain
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':'))
            && !admin_chain.starts_with(['-', ':']);
        if !fits {
            return Err(Error::config(format!(
                "iptablesAdminChainName: invalid chain name \"{}\"",
                admin_chain.escape_default()
            ))
            .details(format!("at most {MAX_CHAIN} letters, digits, and _ - . inside")));
        }
        let mut zone = keys.firewalld_zone;
        if zone.is_empty() {
            DEFAULT_ZONE.clone_into(&mut zone);
        }
        // D-Bus has no texts with a NUL, and would close the connection.
        if zone.contains('\0') {
            return Err(Error::config(format!("firewalldZone: invalid zone \"{}\"", zone.escape_default())));
        }
        Ok(Config { backend, policy, zone, admin_chain, admin_named })
    }

    /// What is wanted for the pod of `prev`.
    ///
    /// # Errors
    /// Code 7: a policy needs a bridge.
    pub(crate) fn forward(&self, prev: &CniResult) -> Result<Forward, Error> {
        let bridge = bridge(prev);
        if self.policy != Policy::Open && bridge.is_none() {
            return Err(Error::config("ingressPolicy: the first interface of prevResult is no bridge")
                .details("a policy other than open needs the plugin bridge in front of firewall"));
        }
        Ok(Forward {
            addrs: addrs(prev),
            policy: self.policy,
            bridge: bridge.map(str::to_owned),
            admin_chain: self.admin_chain.clone(),
            admin_named: self.admin_named,
            zone: self.zone.clone(),
        })
    }
}

/// The bridge, if the plugin bridge is in front: the first interface, on the host.
pub(crate) fn bridge(prev: &CniResult) -> Option<&str> {
    let first = prev.interfaces.first().filter(|first| first.sandbox.is_empty())?;
    // It becomes a word of iptables' input.
    names::interface_problem(&first.name).is_none().then_some(first.name.as_str())
}

/// The pod's addresses.
pub(crate) fn addrs(prev: &CniResult) -> Vec<std::net::IpAddr> {
    prev.ips.iter().map(|ip| ip.address.ip()).collect()
}
