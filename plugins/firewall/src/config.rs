use serde::Deserialize;

use cnimble_cni::{CniResult, Error, PluginConfig, names};
use cnimble_rules::forward::{Admin, Backend, Forward, Policy};

const DEFAULT_ZONE: &str = "trusted";
/// The longest name of an iptables chain in bytes: XT_EXTENSION_MAXNAMELEN without its NUL.
const MAX_CHAIN: usize = 28;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
}

#[derive(Debug)]
pub(crate) struct Config {
    /// `None` lets `cnimble_rules` choose one that works on this host.
    pub(crate) backend: Option<Backend>,
    /// The key `ingressPolicy`: which other pods may reach this one.
    pub(crate) policy: Policy,
    /// The zone of firewalld for the addresses of the pod.
    pub(crate) zone: String,
    /// The chain of iptables for rules of the administrator, which precede those of the plugin.
    pub(crate) admin: Admin,
}

impl Default for Config {
    fn default() -> Self {
        Config { backend: None, policy: Policy::Open, zone: DEFAULT_ZONE.to_owned(), admin: Admin::Default }
    }
}

impl Config {
    /// Reads the configuration. Fails with code 7 if a key is invalid. An unknown backend only causes a warning.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let backend = match keys.backend.as_str() {
            "" => None,
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            "firewalld" => Some(Backend::Firewalld),
            // The Go plugin accepts an unknown backend, too, and says nothing about it.
            other => {
                let other = other.escape_default();
                log::warn!("backend: {other} is none of nftables, iptables and firewalld; one is chosen");
                None
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
        let mut zone = keys.firewalld_zone;
        if zone.is_empty() {
            DEFAULT_ZONE.clone_into(&mut zone);
        }
        // D-Bus strings have no NUL. The message bus would close the connection.
        if zone.contains('\0') {
            return Err(Error::config(format!("firewalldZone: invalid zone \"{}\"", zone.escape_default())));
        }
        Ok(Config { backend, policy, zone, admin: admin(keys.iptables_admin_chain_name)? })
    }

    /// Returns the rules that ADD makes for the addresses in `prev`. Fails with code 7 for a policy other than `open`
    /// if the first interface of `prev` is not on the host. The plugins bridge and ptp list such an interface first.
    pub(crate) fn forward(&self, prev: &CniResult) -> Result<Forward, Error> {
        let interfaces = interfaces(prev);
        if self.policy != Policy::Open && interfaces.is_empty() {
            return Err(Error::config(
                "ingressPolicy: the first interface of prevResult is none of the host",
            )
            .details("hint: a policy other than open needs the plugin bridge or ptp in front of firewall"));
        }
        Ok(Forward {
            addrs: addrs(prev),
            policy: self.policy,
            interfaces,
            admin: self.admin.clone(),
            zone: self.zone.clone(),
            published: None,
        })
    }
}

/// Returns the administrator's chain, or the default for an empty name. Fails with code 7 for a name that iptables
/// would refuse or misread.
fn admin(chain: String) -> Result<Admin, Error> {
    if chain.is_empty() {
        return Ok(Admin::Default);
    }
    // The name becomes a word of iptables' input.
    let fits = chain.len() <= MAX_CHAIN
        && chain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':'))
        && !chain.starts_with(['-', ':']);
    if !fits {
        return Err(Error::config(format!(
            "iptablesAdminChainName: invalid chain name \"{}\"",
            chain.escape_default()
        ))
        .details(format!("at most {MAX_CHAIN} letters, digits, and _ - . inside")));
    }
    Ok(Admin::Named(chain))
}

/// Returns the interfaces of the host that the policy is for. These are the bridge and the gateway interfaces of its
/// VLANs, which the plugin bridge lists after it. With ptp it is the host's end.
///
/// Empty if the first interface of `prev` is not on the host.
pub(crate) fn interfaces(prev: &CniResult) -> Vec<String> {
    // The names become words of iptables' input, so only valid names are used.
    let mut outside = prev
        .interfaces
        .iter()
        .filter(|interface| {
            interface.sandbox.is_empty() && names::interface_problem(&interface.name).is_none()
        })
        .map(|interface| interface.name.as_str());
    let Some(first) =
        outside.next().filter(|first| prev.interfaces.first().is_some_and(|i| i.name == *first))
    else {
        return Vec::new();
    };
    let gateways = outside.filter(|name| vlan_of(name).is_some_and(|bridge| bridge == first));
    std::iter::once(first).chain(gateways).map(str::to_owned).collect()
}

/// Returns the bridge in the name of a gateway interface, `BRIDGE.VLAN`. `None` for any other name.
pub(crate) fn vlan_of(name: &str) -> Option<&str> {
    let (bridge, vlan) = name.rsplit_once('.')?;
    (vlan.parse::<u16>().is_ok() && !bridge.is_empty()).then_some(bridge)
}

/// Returns all addresses in the result, without their prefix lengths.
pub(crate) fn addrs(prev: &CniResult) -> Vec<std::net::IpAddr> {
    prev.ips.iter().map(|ip| ip.address.ip()).collect()
}
