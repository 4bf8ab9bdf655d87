use serde::Deserialize;

use cnimble_cni::{Dns, DnsKeys, Error, PluginConfig};
use cnimble_plugin::interface::pair_mtu::Mtu;
use cnimble_rules::masquerade::Settings;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    mtu: i64,
    mtu_auto: bool,
    mtu_overhead: u32,
    dns: DnsKeys,
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) masquerade: Settings,
    pub(crate) mtu: Mtu,
    /// `None` keeps the value of the IPAM plugin's result.
    pub(crate) dns: Option<Dns>,
    /// The name of the IPAM plugin.
    pub(crate) ipam: String,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the path of an invalid value, or without `ipam.type`.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let overhead = keys.mtu_auto.then_some(keys.mtu_overhead);
        let ipam = config.ipam().ok_or_else(|| {
            Error::config("ipam.type is missing")
                .details("ptp routes addresses, so it needs a plugin that gives some")
        })?;
        Ok(Config {
            masquerade: Settings::read(config)?,
            mtu: Mtu::read(keys.mtu, overhead)?,
            dns: keys.dns.given(),
            ipam: ipam.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn defaults_null_and_any_case() {
        let config = read(r#"{"name":"n","ipam":{"type":"x"},"mtu":null,"dns":null}"#).unwrap();
        assert!(
            !config.masquerade.wanted
                && config.mtu == Mtu::Fixed(None)
                && config.masquerade.backend.is_none()
        );
        assert_eq!(config.dns, None);
        let config = read(r#"{"name":"n","IPAM":{"Type":"x"},"MTU":0,"IPMasq":true,"ipmasqbackend":""}"#);
        let config = config.unwrap();
        assert!(
            config.masquerade.wanted && config.mtu == Mtu::Fixed(None) && config.masquerade.backend.is_none()
        );
        assert_eq!(config.ipam, "x");
    }

    #[test]
    fn errors() {
        for (json, msg) in [
            (r#"{"name":"n"}"#, "ipam.type is missing"),
            (r#"{"name":"n","ipam":{"type":"x"},"mtu":67}"#, "mtu: 67 is outside 68 to 65535 bytes"),
            (
                r#"{"name":"n","ipam":{"type":"x"},"ipMasqBackend":"pf"}"#,
                "ipMasqBackend: unknown backend \"pf\", expected iptables or nftables",
            ),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
