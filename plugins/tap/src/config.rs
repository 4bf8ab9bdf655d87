use serde::Deserialize;

use cnimble_cni::{Dns, DnsKeys, Error, PluginConfig, fields};
use cnimble_netlink::kind::{Kind, TapSettings};
use cnimble_netlink::link::Mac;
use cnimble_plugin::Call;
use cnimble_plugin::interface::{any_mtu, mac, named};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    multi_queue: bool,
    mtu: i64,
    mac: String,
    /// The user that may open the device. 0 is root, not an unset value.
    owner: Option<u32>,
    group: Option<u32>,
    #[serde(deserialize_with = "fields::text_opt")]
    selinux_context: Option<String>,
    bridge: String,
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
    pub(crate) tap: TapSettings,
    /// The MTU in bytes. `None` keeps the kernel's default.
    pub(crate) mtu: Option<u32>,
    /// The SELinux context that the device is labelled with. `None` takes that of the plugin.
    pub(crate) selinux_context: Option<String>,
    /// The bridge in the pod whose port the device becomes.
    pub(crate) bridge: Option<String>,
    /// `None` keeps the value of the IPAM plugin's result.
    pub(crate) dns: Option<Dns>,
    mac: String,
    runtime_mac: String,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the key if a value is invalid.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let bridge = named("bridge", &keys.bridge)?;
        if keys.selinux_context.as_ref().is_some_and(|context| context.contains(char::is_control)) {
            return Err(Error::config("selinuxContext: a context has no control characters"));
        }
        Ok(Config {
            tap: TapSettings { owner: keys.owner, group: keys.group, multi_queue: keys.multi_queue },
            mtu: any_mtu(keys.mtu)?,
            selinux_context: keys.selinux_context,
            bridge,
            dns: keys.dns.given(),
            mac: keys.mac,
            runtime_mac: keys.runtime_config.mac,
        })
    }

    /// Returns the first MAC of `runtimeConfig.mac`, `MAC` of CNI_ARGS and `mac`. `None` leaves it to the kernel. Fails
    /// as [`mac::requested`] does.
    pub(crate) fn requested_mac(&self, call: &Call) -> Result<Option<Mac>, Error> {
        mac::requested(call, &self.runtime_mac, &self.mac)
    }

    /// Returns the kind of the link with its settings, as CHECK compares them.
    pub(crate) fn kind(&self) -> Kind {
        Kind::Tap(self.tap)
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
        let config = read(r#"{"name":"n","type":"tap"}"#).unwrap();
        assert_eq!(config.tap, TapSettings { owner: None, group: None, multi_queue: false });
        assert_eq!((config.mtu, config.bridge, config.selinux_context), (None, None, None));
    }

    #[test]
    fn every_key_is_read_in_any_case_and_owner_0_is_root() {
        let json = r#"{"name":"n","MultiQueue":true,"MTU":1400,"OWNER":0,"group":107,"Bridge":"br0",
                       "SelinuxContext":"system_u:system_r:container_t:s0","args":{"cni":{}}}"#;
        let config = read(json).unwrap();
        assert_eq!(config.tap, TapSettings { owner: Some(0), group: Some(107), multi_queue: true });
        assert_eq!((config.mtu, config.bridge.as_deref()), (Some(1400), Some("br0")));
        assert_eq!(config.selinux_context.as_deref(), Some("system_u:system_r:container_t:s0"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r#"{"bridge":"a/b"}"#, "bridge: invalid name \"a/b\""),
            (r#"{"bridge":"br%d"}"#, "bridge: invalid name \"br%d\""),
            (r#"{"owner":-1}"#, "owner: invalid value: integer `-1`, expected u32"),
            (r#"{"selinuxContext":"a\nb"}"#, "selinuxContext: a context has no control characters"),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
