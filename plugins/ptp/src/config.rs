use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::fields::{Addresses, RequestedIp};
use cnimble_cni::{Dns, DnsKeys, Error, PluginConfig};
use cnimble_plugin::interface::pair_mtu::Mtu;
use cnimble_rules::filters::Masqueraded;
use cnimble_rules::masquerade::{Families, Translation};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ip_masq: bool,
    ip_masq_backend: String,
    ip_masq_family: String,
    ip_masq_exclude: Vec<RequestedIp>,
    ip_masq_address: Addresses,
    mtu: i64,
    mtu_auto: bool,
    mtu_overhead: u32,
    dns: DnsKeys,
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) ip_masq: bool,
    pub(crate) ip_masq_families: Families,
    pub(crate) translation: Translation,
    /// As configured. `None` lets `cnimble_rules` choose.
    pub(crate) ip_masq_backend: Option<String>,
    pub(crate) mtu: Mtu,
    /// `None` keeps the value of the IPAM plugin.
    pub(crate) dns: Option<Dns>,
    pub(crate) ipam: String,
}

impl Config {
    /// Fails with code 7 and the path of the invalid value.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let overhead = keys.mtu_auto.then_some(keys.mtu_overhead);
        if !matches!(keys.ip_masq_backend.as_str(), "" | "iptables" | "nftables") {
            return Err(Error::config(format!(
                "ipMasqBackend: unknown backend \"{}\", expected iptables or nftables",
                keys.ip_masq_backend.escape_debug()
            )));
        }
        let ipam = config.ipam().ok_or_else(|| {
            Error::config("ipam.type is missing")
                .details("ptp routes addresses, so it needs a plugin that gives some")
        })?;
        Ok(Config {
            ip_masq: keys.ip_masq,
            ip_masq_families: Families::read(&keys.ip_masq_family)?,
            translation: Translation::read(&keys.ip_masq_exclude, keys.ip_masq_address.0)?,
            ip_masq_backend: Some(keys.ip_masq_backend).filter(|backend| !backend.is_empty()),
            mtu: Mtu::read(keys.mtu, overhead)?,
            dns: keys.dns.given(),
            ipam: ipam.to_owned(),
        })
    }

    pub(crate) fn masquerade(&self, addrs: &[IpNetwork]) -> Masqueraded<'_> {
        Masqueraded {
            addrs: self.ip_masq_families.of(addrs.iter().copied()),
            backend: self.ip_masq_backend.as_deref(),
            translation: self.translation.clone(),
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
    fn defaults_null_and_any_case() {
        let config = read(r#"{"name":"n","ipam":{"type":"x"},"mtu":null,"dns":null}"#).unwrap();
        assert!(!config.ip_masq && config.mtu == Mtu::Fixed(None) && config.ip_masq_backend.is_none());
        assert_eq!(config.dns, None);
        let config = read(r#"{"name":"n","IPAM":{"Type":"x"},"MTU":0,"IPMasq":true,"ipmasqbackend":""}"#);
        let config = config.unwrap();
        assert!(config.ip_masq && config.mtu == Mtu::Fixed(None) && config.ip_masq_backend.is_none());
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
