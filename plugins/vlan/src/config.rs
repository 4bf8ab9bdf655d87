use serde::Deserialize;

use cnimble_cni::{DnsKeys, Error, PluginConfig, fields};
use cnimble_netlink::kind::{Kind, Vlan};
use cnimble_plugin::interface::master;
use cnimble_plugin::interface::upper::Upper;

/// The highest VLAN ID. 4095 is reserved (IEEE 802.1Q).
const MAX_VLAN: u16 = 4094;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    master: String,
    vlan_id: u16,
    #[serde(deserialize_with = "fields::nonzero_opt")]
    mtu: Option<u32>,
    link_in_container: bool,
    dns: DnsKeys,
}

/// Reads the configuration for all verbs. Fails with code 7 and the key if a value is invalid or `master` is missing.
pub(crate) fn read(config: &PluginConfig) -> Result<Upper, Error> {
    let keys: Keys = config.decode()?;
    if keys.master.is_empty() {
        return Err(Error::config("\"master\" field is required")
            .details("it names the interface that the VLAN is made on"));
    }
    let master = master::MasterSelector {
        in_pod: keys.link_in_container,
        ..master::MasterSelector::read(&keys.master)?
    };
    if keys.vlan_id > MAX_VLAN {
        let id = keys.vlan_id;
        return Err(Error::config(format!(
            "vlanId: invalid VLAN ID {id} (must be between 0 and {MAX_VLAN})"
        )));
    }
    let kind = Kind::Vlan(Vlan { id: keys.vlan_id });
    let (master, dns) = (Some(master), keys.dns.given());
    Ok(Upper { master, mtu: keys.mtu, dns, ..Upper::new(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Upper, Error> {
        super::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn defaults_are_the_reference_ones() {
        let upper = read(r#"{"name":"n","master":"eth7"}"#).unwrap();
        assert_eq!(upper.kind, Kind::Vlan(Vlan { id: 0 }));
        assert_eq!(
            upper.master,
            Some(master::MasterSelector { name: Some("eth7".to_owned()), in_pod: false })
        );
        assert_eq!((upper.mtu, upper.takes_previous), (None, false));
    }

    #[test]
    fn every_key_is_read_in_any_case() {
        let json = r#"{"name":"n","Master":"eth7","VLANID":4094,"mtu":1400,"LinkInContainer":true,
                       "ipam":{"type":"static"}}"#;
        let upper = read(json).unwrap();
        assert_eq!(upper.kind, Kind::Vlan(Vlan { id: 4094 }));
        assert_eq!(
            upper.master,
            Some(master::MasterSelector { name: Some("eth7".to_owned()), in_pod: true })
        );
        assert_eq!(upper.mtu, Some(1400));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r#"{"vlanId":5}"#, "\"master\" field is required"),
            (r#"{"master":"a b"}"#, "master: invalid name \"a b\""),
            (r#"{"master":"a","vlanId":4095}"#, "vlanId: invalid VLAN ID 4095 (must be between 0 and 4094)"),
            (r#"{"master":"a","vlanId":-1}"#, "vlanId: invalid value: integer `-1`, expected u16"),
            (r#"{"master":"a","vlanId":70000}"#, "vlanId: invalid value: integer `70000`, expected u16"),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
