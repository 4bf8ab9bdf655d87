use std::net::IpAddr;

use serde::Deserialize;

use cnimble_cni::{CniResult, Error, IpConfig, PluginConfig, fields};

/// The keys of the plugin.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Config {
    /// The routing table for all addresses. Its routes are the administrator's: the plugin only adds rules. `None`
    /// chooses a free table for each address, and moves the routes there.
    pub(crate) table: Option<u32>,
    /// The configured gateways, at most one of each family.
    #[serde(deserialize_with = "fields::ips")]
    gateways: Vec<IpAddr>,
    /// Whether the table main keeps or gets routes to the addresses' networks.
    pub(crate) add_source_hints: bool,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the key if a value is invalid.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Config = config.decode()?;
        let gateways = &keys.gateways;
        if keys.table == Some(0) {
            return Err(Error::config("table: 0 is no routing table"));
        }
        for (name, of) in [("IPv4", IpAddr::is_ipv4 as fn(&IpAddr) -> bool), ("IPv6", IpAddr::is_ipv6)] {
            if gateways.iter().filter(|gateway| of(gateway)).count() > 1 {
                return Err(Error::config(format!("gateways: there is more than one {name} address")));
            }
        }
        if let Some(gateway) =
            gateways.iter().find(|gateway| gateway.is_unspecified() || gateway.is_multicast())
        {
            return Err(Error::config(format!("gateways: {gateway} can't be a gateway")));
        }
        Ok(keys)
    }

    /// Returns true if the table main has to have a route to the address's network. A single address has no network.
    pub(crate) fn hints(&self, ip: &IpConfig) -> bool {
        let whole = if ip.address.is_ipv4() { 32 } else { 128 };
        self.add_source_hints && ip.address.prefix() < whole
    }

    /// Returns the configured gateway of the address's family, or `None`.
    pub(crate) fn gateway_for(&self, ip: &IpConfig) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.address.is_ipv4())
    }
}

/// Reads nothing but `table`, for DEL, as the other keys may be invalid since ADD. `None` without the key or if it is
/// invalid.
pub(crate) fn table(config: &PluginConfig) -> Option<u32> {
    #[derive(Deserialize)]
    struct Table {
        table: Option<u32>,
    }
    config.decode::<Table>().ok()?.table
}

/// Returns the addresses of the interface in a result, and those that name no interface. An index without an interface
/// in the result names none. Only the name decides, so an interface of the host with the same name counts as well.
pub(crate) fn addresses<'a>(result: &'a CniResult, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        let interface = ip.interface.and_then(|index| result.interfaces.get(usize::try_from(index).ok()?));
        interface.is_none_or(|interface| interface.name == ifname)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn keys_are_read_in_any_case() {
        assert_eq!(read("{}").unwrap(), Config::default());
        let json = r#"{"TABLE":7,"Gateways":["10.0.0.1","fd00::1"],"addsourcehints":true}"#;
        let gateways = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(read(json).unwrap(), Config { table: Some(7), gateways, add_source_hints: true });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r#"{"table":0}"#, "table: 0 is no routing table"),
            (r#"{"table":-1}"#, "table: invalid value: integer `-1`, expected u32"),
            (r#"{"gateways":["10.0.0.1","10.0.0.2"]}"#, "gateways: there is more than one IPv4 address"),
            (r#"{"gateways":["fd00::1","fd00::2"]}"#, "gateways: there is more than one IPv6 address"),
            (r#"{"gateways":["::"]}"#, "gateways: :: can't be a gateway"),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
        assert_eq!(read(r#"{"gateways":["x"]}"#).unwrap_err().code.0, 7);
    }
}
