//! The keys of a macvlan configuration, checked.

use serde::Deserialize;

use cnimble_cni::{DnsKeys, Error, PluginConfig, fields, names};
use cnimble_netlink::kind::{Kind, Macvlan, MacvlanMode};
use cnimble_netlink::link::Mac;
use cnimble_plugin::Call;
use cnimble_plugin::interface::mac::{self, Source};
use cnimble_plugin::interface::master;
use cnimble_plugin::interface::upper::{Addresses, Upper};

/// The keys as they are in the JSON.
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

#[derive(Debug)]
pub(crate) struct Config {
    keys: Keys,
    mode: MacvlanMode,
    ipam: Option<String>,
}

impl Config {
    /// Reads the complete configuration.
    ///
    /// # Errors
    /// Fails with code 7 and the key if a value is invalid.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        if let Some(problem) = names::interface_problem(&keys.master).filter(|_| !keys.master.is_empty()) {
            return Err(Error::config(format!("master: invalid name \"{}\"", keys.master)).details(problem));
        }
        let mode = match keys.mode.as_str() {
            "" => Some(MacvlanMode::Bridge),
            wanted => MacvlanMode::ALL.into_iter().find(|mode| mode.name() == wanted),
        };
        let mode = mode.ok_or_else(|| {
            Error::config(format!("mode: unknown macvlan mode \"{}\"", keys.mode))
                .details("expected bridge, private, vepa or passthru")
        })?;
        let ipam = Some(config.ipam_type.clone()).filter(|kind| !kind.is_empty());
        Ok(Config { keys, mode, ipam })
    }

    /// Returns the requested hardware address: `runtimeConfig.mac`, then `MAC` of CNI_ARGS, then `mac`.
    /// This is the Go plugin's order.
    ///
    /// # Errors
    /// Fails with code 4 if the address in CNI_ARGS is invalid, and with code 7 for the other two
    /// sources.
    pub(crate) fn requested_mac(&self, call: &Call) -> Result<Option<Mac>, Error> {
        let args = call.args()?;
        mac::first([
            (Source::Config, self.keys.runtime_config.mac.as_str()),
            (Source::Args, args.get("MAC").unwrap_or_default()),
            (Source::Config, self.keys.mac.as_str()),
        ])
    }

    /// Returns the interface for verbs that don't need its hardware address.
    pub(crate) fn upper(self) -> Upper {
        let name = Some(self.keys.master).filter(|name| !name.is_empty());
        Upper {
            kind: Kind::Macvlan(Macvlan { mode: self.mode, bcqueuelen: self.keys.bc_queue_len }),
            master: master::Wanted { name, in_pod: self.keys.link_in_container },
            mtu: self.keys.mtu,
            mtu_is_free: false,
            mac: None,
            addresses: self.ipam.map_or(Addresses::None, Addresses::Ipam),
            dns: self.keys.dns.given(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn defaults_are_the_reference_ones() {
        let upper = read(r#"{"name":"n","type":"macvlan"}"#).unwrap().upper();
        assert_eq!(upper.kind, Kind::Macvlan(Macvlan { mode: MacvlanMode::Bridge, bcqueuelen: None }));
        assert_eq!(upper.master, master::Wanted { name: None, in_pod: false });
        assert_eq!((upper.mtu, upper.addresses), (None, Addresses::None));
    }

    #[test]
    fn every_key_is_read_in_any_case() {
        let json = r#"{"name":"n","Master":"eth7","MODE":"passthru","mtu":1400,"LinkInContainer":true,
                       "bcQueueLen":500,"ipam":{"type":"static"}}"#;
        let upper = read(json).unwrap().upper();
        assert_eq!(upper.kind, Kind::Macvlan(Macvlan { mode: MacvlanMode::Passthru, bcqueuelen: Some(500) }));
        assert_eq!(upper.master, master::Wanted { name: Some("eth7".to_owned()), in_pod: true });
        assert_eq!((upper.mtu, upper.addresses), (Some(1400), Addresses::Ipam("static".to_owned())));
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
