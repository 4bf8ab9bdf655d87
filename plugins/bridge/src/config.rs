//! The keys of a bridge configuration, checked.

use serde::Deserialize;

use cnimble_cni::{Dns, Error, PluginConfig, names};
use cnimble_netlink::link::Mac;
use cnimble_plugin::Call;

const DEFAULT_BRIDGE: &str = "cni0";
/// 4095 is reserved (IEEE 802.1Q); 0 means "no vlan".
const MAX_VLAN: u16 = 4094;
/// What the kernel takes for a veth (ETH_MIN_MTU, ETH_MAX_MTU).
const MTU_RANGE: std::ops::RangeInclusive<u32> = 68..=65535;

/// As it stands in the JSON.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: u16,
    vlan_trunk: Vec<Trunk>,
    preserve_default_vlan: bool,
    #[serde(rename = "macspoofchk")]
    mac_spoof_check: bool,
    port_isolation: bool,
    #[serde(rename = "enabledad")]
    enable_dad: bool,
    disable_container_interface: bool,
    dns: Dns,
    args: Args,
    runtime_config: MacKey,
}

impl Default for Keys {
    fn default() -> Self {
        Keys {
            bridge: String::new(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: String::new(),
            mtu: 0,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            vlan_trunk: Vec::new(),
            // The one flag that is on unless it is switched off.
            preserve_default_vlan: true,
            mac_spoof_check: false,
            port_isolation: false,
            enable_dad: false,
            disable_container_interface: false,
            dns: Dns::default(),
            args: Args::default(),
            runtime_config: MacKey::default(),
        }
    }
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

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trunk {
    #[serde(rename = "minID")]
    min_id: Option<u16>,
    #[serde(rename = "maxID")]
    max_id: Option<u16>,
    id: Option<u16>,
}

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) bridge: String,
    pub(crate) is_gateway: bool,
    pub(crate) is_default_gateway: bool,
    pub(crate) force_address: bool,
    pub(crate) ip_masq: bool,
    /// As configured; `None` lets the library choose.
    pub(crate) ip_masq_backend: Option<String>,
    /// Bytes; `None` is the kernel's.
    pub(crate) mtu: Option<u32>,
    pub(crate) hairpin: bool,
    pub(crate) promisc: bool,
    /// The untagged vlan of the port.
    pub(crate) vlan: Option<u16>,
    /// Tagged vlans of the port, as ranges, sorted, without overlap.
    pub(crate) trunk: Vec<(u16, u16)>,
    pub(crate) preserve_default_vlan: bool,
    pub(crate) mac_spoof_check: bool,
    pub(crate) isolated: bool,
    pub(crate) enable_dad: bool,
    /// Whether the container's end comes up.
    pub(crate) container_up: bool,
    pub(crate) dns: Dns,
    /// `None` is a layer 2 network.
    pub(crate) ipam: Option<String>,
    /// The MAC that `runtimeConfig`, else `args.cni` asks for.
    mac: Option<String>,
}

impl Config {
    /// Reads the configuration for a verb that needs all of it.
    ///
    /// # Errors
    /// Code 7 with the path or the keys that don't go together.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        if let Some(problem) = names::interface_problem(&keys.bridge).filter(|_| !keys.bridge.is_empty()) {
            return Err(Error::config(format!("bridge: invalid name \"{}\"", keys.bridge)).details(problem));
        }
        if keys.mtu != 0 && !MTU_RANGE.contains(&keys.mtu) {
            return Err(Error::config(format!(
                "mtu: {} is outside {} to {} bytes",
                keys.mtu,
                MTU_RANGE.start(),
                MTU_RANGE.end()
            )));
        }
        if keys.vlan > MAX_VLAN {
            return Err(Error::config(format!(
                "vlan: invalid VLAN ID {} (must be between 0 and {MAX_VLAN})",
                keys.vlan
            )));
        }
        let trunk = trunk_ranges(&keys.vlan_trunk)?;
        if keys.vlan != 0 && !trunk.is_empty() {
            return Err(Error::config("vlan, vlanTrunk: cannot set vlan and vlanTrunk at the same time"));
        }
        if keys.hairpin_mode && keys.promisc_mode {
            return Err(Error::config(
                "hairpinMode, promiscMode: cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        if keys.disable_container_interface && !config.ipam_type.is_empty() {
            return Err(Error::config(
                "disableContainerInterface: cannot be used with IPAM: addresses need an interface that is up",
            ));
        }
        if !matches!(keys.ip_masq_backend.as_str(), "" | "iptables" | "nftables") {
            return Err(Error::config(format!(
                "ipMasqBackend: unknown backend \"{}\", expected iptables or nftables",
                keys.ip_masq_backend
            )));
        }
        let bridge = if keys.bridge.is_empty() { DEFAULT_BRIDGE.to_owned() } else { keys.bridge };
        if keys.vlan != 0 && (keys.is_gateway || keys.is_default_gateway) {
            let name = vlan_gateway_name(&bridge, keys.vlan);
            if let Some(problem) = names::interface_problem(&name) {
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
            ip_masq: keys.ip_masq,
            ip_masq_backend: Some(keys.ip_masq_backend).filter(|backend| !backend.is_empty()),
            mtu: Some(keys.mtu).filter(|mtu| *mtu != 0),
            hairpin: keys.hairpin_mode,
            promisc: keys.promisc_mode,
            vlan: Some(keys.vlan).filter(|vlan| *vlan != 0),
            trunk,
            preserve_default_vlan: keys.preserve_default_vlan,
            mac_spoof_check: keys.mac_spoof_check,
            isolated: keys.port_isolation,
            enable_dad: keys.enable_dad,
            container_up: !keys.disable_container_interface,
            dns: keys.dns,
            ipam: Some(config.ipam_type.clone()).filter(|kind| !kind.is_empty()),
            mac,
        })
    }

    /// The MAC that the container's end is to have: `runtimeConfig.mac`, then
    /// `args.cni.mac`, then `MAC` of CNI_ARGS.
    ///
    /// # Errors
    /// Code 7, or 4 if CNI_ARGS is to blame.
    pub(crate) fn requested_mac(&self, call: &Call) -> Result<Option<Mac>, Error> {
        let args = call.args()?;
        let (text, source) = match &self.mac {
            Some(mac) => (mac.as_str(), "mac"),
            None => (args.get("MAC").unwrap_or_default(), "CNI_ARGS: MAC"),
        };
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = |why: &str| {
            let msg = format!("{source}: invalid hardware address \"{text}\"");
            let code = if self.mac.is_some() {
                cnimble_cni::Code::INVALID_CONFIG
            } else {
                cnimble_cni::Code::INVALID_ENVIRONMENT
            };
            Error::new(code, msg).details(why)
        };
        let mac = Mac::parse(text).ok_or_else(|| invalid("expected six bytes like 02:00:5e:10:00:01"))?;
        if mac.0.first().is_some_and(|byte| byte & 1 == 1) {
            return Err(invalid("it is a multicast address"));
        }
        if mac.0 == [0; 6] {
            return Err(invalid("it is all zero"));
        }
        Ok(Some(mac))
    }

    /// Whether the bridge has to tell vlans apart.
    pub(crate) fn uses_vlans(&self) -> bool {
        self.vlan.is_some() || !self.trunk.is_empty()
    }

    /// Whether the pod gets addresses.
    pub(crate) fn layer3(&self) -> bool {
        self.ipam.is_some()
    }
}

/// The interface that holds the gateway addresses of a vlan.
pub(crate) fn vlan_gateway_name(bridge: &str, vlan: u16) -> String {
    format!("{bridge}.{vlan}")
}

fn trunk_ranges(items: &[Trunk]) -> Result<Vec<(u16, u16)>, Error> {
    let mut ranges = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let bad = |why: String| Error::config(format!("vlanTrunk[{index}]{why}"));
        let id = |key: &str, id: u16| {
            if (1..=MAX_VLAN).contains(&id) {
                return Ok(id);
            }
            Err(bad(format!(".{key}: invalid VLAN ID {id} (must be between 1 and {MAX_VLAN})")))
        };
        match (item.min_id, item.max_id) {
            (Some(min), Some(max)) => {
                let (min, max) = (id("minID", min)?, id("maxID", max)?);
                if max < min {
                    return Err(bad(format!(": minID {min} is greater than maxID {max}")));
                }
                ranges.push((min, max));
            }
            (None, Some(_)) => return Err(bad(": maxID without minID".to_owned())),
            (Some(_), None) => return Err(bad(": minID without maxID".to_owned())),
            (None, None) if item.id.is_none() => {
                return Err(bad(": needs id, or minID and maxID".to_owned()));
            }
            (None, None) => {}
        }
        if let Some(single) = item.id {
            let single = id("id", single)?;
            ranges.push((single, single));
        }
    }
    Ok(merge(ranges))
}

/// Sorts ranges and joins those that touch or overlap.
fn merge(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
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
        assert_eq!(config.mtu, None);
        assert!(config.preserve_default_vlan && config.container_up);
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

    #[test]
    fn trunks_merge_and_are_checked() {
        assert_eq!(merge(vec![(7, 9), (1, 3), (4, 5), (8, 12)]), [(1, 5), (7, 12)]);
        for (trunk, part) in [
            (r#"[{"minID":5,"maxID":4}]"#, "vlanTrunk[0]: minID 5 is greater than maxID 4"),
            (r#"[{"id":1},{"maxID":4}]"#, "vlanTrunk[1]: maxID without minID"),
            (r#"[{"id":0}]"#, "vlanTrunk[0].id: invalid VLAN ID 0"),
            (r#"[{"id":4095}]"#, "vlanTrunk[0].id: invalid VLAN ID 4095"),
            (r#"[{}]"#, "vlanTrunk[0]: needs id"),
        ] {
            let json = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"bridge","vlanTrunk":{trunk}}}"#);
            let err = read(&json).unwrap_err();
            assert!(err.msg.contains(part), "{err}");
        }
    }
}
