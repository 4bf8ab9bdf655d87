//! The configuration of a bridge network.

mod trunk;

use std::net::IpAddr;

use serde::Deserialize;

use cnimble_cni::{CniResult, Dns, DnsKeys, Error, PluginConfig, names};
use cnimble_netlink::link::Mac;
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair_mtu::Mtu;
use cnimble_plugin::interface::{mac, named};
use cnimble_rules::filters::Masqueraded;
use cnimble_rules::masquerade::Settings;
use cnimble_rules::objects::bridge;

use trunk::Trunk;

/// The highest VLAN ID. 4095 is reserved (IEEE 802.1Q), and the key `vlan` has 0 for "no VLAN".
pub(crate) const MAX_VLAN: u16 = 4094;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    mtu: i64,
    mtu_auto: bool,
    mtu_overhead: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: u16,
    vlan_trunk: Option<Vec<Trunk>>,
    preserve_default_vlan: bool,
    #[serde(rename = "macspoofchk")]
    mac_spoof_check: bool,
    port_isolation: bool,
    #[serde(rename = "enabledad")]
    enable_dad: bool,
    disable_container_interface: bool,
    remove_unused_bridge: bool,
    uplink: String,
    dns: DnsKeys,
    args: Args,
    runtime_config: MacKey,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: MacKey,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MacKey {
    mac: String,
}

impl Keys {
    /// Fails with code 7 if a value is impossible or if keys contradict each other.
    fn check(&self, config: &PluginConfig) -> Result<(), Error> {
        if self.vlan > MAX_VLAN {
            return Err(Error::config(format!(
                "vlan: invalid VLAN ID {} (must be between 0 and {MAX_VLAN})",
                self.vlan
            )));
        }
        if self.hairpin_mode && self.promisc_mode {
            return Err(Error::config(
                "hairpinMode, promiscMode: cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        if self.disable_container_interface && config.ipam().is_some() {
            return Err(Error::config(
                "disableContainerInterface: cannot be used with IPAM: addresses need an interface that is up",
            ));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) bridge: String,
    /// Whether the bridge is the gateway of the pods. `isDefaultGateway` implies it.
    pub(crate) is_gateway: bool,
    pub(crate) is_default_gateway: bool,
    pub(crate) force_address: bool,
    pub(crate) masquerade: Settings,
    pub(crate) mtu: Mtu,
    pub(crate) hairpin: bool,
    pub(crate) promisc: bool,
    /// The VLAN of the network and of its gateway. `None` without the key, or for 0.
    pub(crate) vlan: Option<u16>,
    /// The VLAN of untagged frames: `vlan`, or the default VLAN of a trunk. `None` if ports use no VLANs.
    pub(crate) native: Option<u16>,
    /// The tagged VLANs as sorted ranges (first and last ID), without overlap and without the native VLAN.
    pub(crate) trunk: Vec<(u16, u16)>,
    /// Whether a new bridge filters VLANs. An empty `vlanTrunk` asks for that, although its ports use none.
    pub(crate) filters_vlans: bool,
    pub(crate) preserve_default_vlan: bool,
    pub(crate) mac_spoof_check: bool,
    pub(crate) isolated: bool,
    pub(crate) enable_dad: bool,
    /// False for `disableContainerInterface`: the pod's interface stays down.
    pub(crate) container_up: bool,
    /// Whether a new bridge is removed with its last pod.
    pub(crate) remove_unused: bool,
    /// The interface of the host that becomes a port of a new bridge.
    pub(crate) uplink: Option<String>,
    /// `None` keeps the value of the IPAM plugin's result.
    pub(crate) dns: Option<Dns>,
    /// The name of the IPAM plugin. `None` makes a layer 2 network, without addresses.
    pub(crate) ipam: Option<String>,
    /// The text of `runtimeConfig.mac`, else of `args.cni.mac`.
    mac: Option<String>,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the invalid or contradicting keys.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let bridge = named("bridge", &keys.bridge)?.unwrap_or_else(|| bridge::DEFAULT_NAME.to_owned());
        let uplink = named("uplink", &keys.uplink)?;
        keys.check(config)?;
        let overhead = keys.mtu_auto.then_some(keys.mtu_overhead);
        let trunk = trunk::ranges(keys.vlan_trunk.as_deref().unwrap_or_default())?;
        let vlan = Some(keys.vlan).filter(|vlan| *vlan != 0);
        let native = vlan.or((!trunk.is_empty()).then_some(trunk::NATIVE));
        if keys.vlan != 0 && (keys.is_gateway || keys.is_default_gateway) {
            let name = vlan_gateway_name(&bridge, keys.vlan);
            if let Some(problem) = names::new_interface_problem(&name) {
                return Err(Error::config(format!(
                    "bridge, vlan: the gateway interface would be \"{name}\""
                ))
                .details(problem));
            }
        }
        let mac = [keys.runtime_config.mac, keys.args.cni.mac].into_iter().find(|mac| !mac.is_empty());
        Ok(Config {
            bridge,
            is_gateway: keys.is_gateway || keys.is_default_gateway,
            is_default_gateway: keys.is_default_gateway,
            force_address: keys.force_address,
            masquerade: Settings::read(config)?,
            mtu: Mtu::read(keys.mtu, overhead)?,
            hairpin: keys.hairpin_mode,
            promisc: keys.promisc_mode,
            vlan,
            native,
            trunk: trunk::without(trunk, native),
            filters_vlans: vlan.is_some() || keys.vlan_trunk.is_some(),
            preserve_default_vlan: keys.preserve_default_vlan,
            mac_spoof_check: keys.mac_spoof_check,
            isolated: keys.port_isolation,
            enable_dad: keys.enable_dad,
            container_up: !keys.disable_container_interface,
            remove_unused: keys.remove_unused_bridge,
            uplink,
            dns: keys.dns.given(),
            ipam: config.ipam().map(str::to_owned),
            mac,
        })
    }

    /// Returns the first MAC of `runtimeConfig.mac`, `args.cni.mac` and `MAC` of CNI_ARGS. `None` leaves the MAC to the
    /// plugin. Fails with code 7 if a key is invalid, and with code 4 for CNI_ARGS.
    pub(crate) fn requested_mac(&self, call: &Call) -> Result<Option<Mac>, Error> {
        mac::requested(call, self.mac.as_deref().unwrap_or_default(), "")
    }

    /// Returns true if ports have VLANs, so that a bridge which is found must filter them. See
    /// [`Config::filters_vlans`] for new ones.
    pub(crate) fn uses_vlans(&self) -> bool {
        self.native.is_some()
    }

    /// Returns what to masquerade for the addresses of the pod, or `None` if the network does not masquerade.
    pub(crate) fn masquerade(&self, result: &CniResult) -> Option<Masqueraded<'_>> {
        self.masquerades().then(|| self.masquerade.for_addresses(result.ips.iter().map(|ip| ip.address)))
    }

    /// Returns true if the configuration asks for masquerading and the network has addresses.
    pub(crate) fn masquerades(&self) -> bool {
        self.masquerade.wanted && self.layer3()
    }

    /// Returns the addresses for the rules that isolate the pod, or `None` if there are no such rules. A layer 2
    /// network has none: there the port's flag isolates alone.
    pub(crate) fn isolated_addresses(&self, result: &CniResult) -> Option<Vec<IpAddr>> {
        (self.isolated && self.layer3()).then(|| result.ips.iter().map(|ip| ip.address.ip()).collect())
    }

    /// Returns true if an IPAM plugin gives the pods addresses.
    pub(crate) fn layer3(&self) -> bool {
        self.ipam.is_some()
    }
}

/// Returns the name of the interface with the gateway addresses of a VLAN.
pub(crate) fn vlan_gateway_name(bridge: &str, vlan: u16) -> String {
    format!("{bridge}.{vlan}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn defaults_are_the_reference_ones() {
        let config = read(r#"{"cniVersion":"1.1.0","name":"n","type":"bridge"}"#).unwrap();
        assert_eq!(config.bridge, "cni0");
        assert_eq!(config.mtu, Mtu::Fixed(None));
        assert!(!config.preserve_default_vlan && config.container_up);
        assert!(!config.is_gateway && !config.layer3() && !config.uses_vlans());
    }

    #[test]
    fn keys_match_in_any_case_and_null_is_absent() {
        let config = read(
            r#"{"cniVersion":"1.1.0","name":"n","type":"bridge","ISDEFAULTGATEWAY":true,"Bridge":"br7",
                "mtu":null,"ipam":null,"args":null,"dns":{}}"#,
        )
        .unwrap();
        assert!(config.is_gateway && config.is_default_gateway);
        assert_eq!(config.bridge, "br7");
    }
}
