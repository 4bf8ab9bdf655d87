use serde::Deserialize;

use cnimble_cni::{DnsKeys, Error, PluginConfig, fields};
use cnimble_netlink::kind::{Kind, Macvlan, MacvlanMode};
use cnimble_plugin::Call;
use cnimble_plugin::interface::mac;
use cnimble_plugin::interface::master;
use cnimble_plugin::interface::shim::Shim;
use cnimble_plugin::interface::upper::Upper;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    master: String,
    mode: String,
    #[serde(deserialize_with = "fields::nonzero_opt")]
    mtu: Option<u32>,
    mac: String,
    link_in_container: bool,
    #[serde(rename = "bcqueuelen", deserialize_with = "fields::nonzero_opt")]
    bc_queue_len: Option<u32>,
    dns: DnsKeys,
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    mac: String,
}

/// Reads the configuration for CHECK and STATUS, without the hardware address. Fails with code 7 and the key if a value
/// is invalid.
pub(crate) fn read(config: &PluginConfig) -> Result<Upper, Error> {
    wanted(config.decode()?, config)
}

/// Reads the configuration for ADD, with the hardware address. Fails as [`read`] and [`mac::requested`] do.
pub(crate) fn read_for_add(call: &Call) -> Result<Upper, Error> {
    let keys: Keys = call.config.decode()?;
    let (runtime, configured) = (keys.runtime_config.mac.clone(), keys.mac.clone());
    let upper = wanted(keys, &call.config)?;
    Ok(Upper { mac: mac::requested(call, &runtime, &configured)?, ..upper })
}

/// Returns the interface that the keys ask for, without a MAC. `config` has the keys of the shim (`hostShim`). Fails
/// with code 7.
fn wanted(keys: Keys, config: &PluginConfig) -> Result<Upper, Error> {
    let master = master::MasterSelector {
        in_pod: keys.link_in_container,
        ..master::MasterSelector::read(&keys.master)?
    };
    let mode = match keys.mode.as_str() {
        "" => Some(MacvlanMode::Bridge),
        wanted => MacvlanMode::ALL.into_iter().find(|mode| mode.name() == wanted),
    };
    let mode = mode.ok_or_else(|| {
        Error::config(format!("mode: unknown macvlan mode \"{}\"", keys.mode))
            .details("expected bridge, private, vepa or passthru")
    })?;
    let kind = Kind::Macvlan(Macvlan { mode, bcqueuelen: keys.bc_queue_len });
    let shim = Shim::read(config, kind, keys.mtu, master.in_pod)?;
    let (master, dns) = (Some(master), keys.dns.given());
    Ok(Upper { master, mtu: keys.mtu, shim, dns, ..Upper::new(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Upper, Error> {
        super::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn defaults_are_the_reference_ones() {
        let upper = read(r#"{"name":"n","type":"macvlan"}"#).unwrap();
        assert_eq!(upper.kind, Kind::Macvlan(Macvlan { mode: MacvlanMode::Bridge, bcqueuelen: None }));
        assert_eq!(upper.master, Some(master::MasterSelector { name: None, in_pod: false }));
        assert_eq!((upper.mtu, upper.takes_previous), (None, false));
    }

    #[test]
    fn every_key_is_read_in_any_case() {
        let json = r#"{"name":"n","Master":"eth7","MODE":"passthru","mtu":1400,"LinkInContainer":true,
                       "bcQueueLen":500,"ipam":{"type":"static"}}"#;
        let upper = read(json).unwrap();
        assert_eq!(upper.kind, Kind::Macvlan(Macvlan { mode: MacvlanMode::Passthru, bcqueuelen: Some(500) }));
        assert_eq!(
            upper.master,
            Some(master::MasterSelector { name: Some("eth7".to_owned()), in_pod: true })
        );
        assert_eq!(upper.mtu, Some(1400));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r#"{"mode":"source"}"#, "mode: unknown macvlan mode \"source\""),
            (r#"{"master":"a/b"}"#, "master: invalid name \"a/b\""),
            (r#"{"mtu":-1}"#, "mtu: invalid value: integer `-1`, expected u32"),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
