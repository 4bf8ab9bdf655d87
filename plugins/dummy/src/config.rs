//! The configuration of the plugin dummy. `ipam` is required, because the interface only holds addresses.

use cnimble_cni::{Error, PluginConfig};
use cnimble_netlink::kind::Kind;
use cnimble_plugin::interface::upper::Upper;

/// Reads the configuration for all verbs. Fails with code 7 without `ipam.type`.
pub(crate) fn read(config: &PluginConfig) -> Result<Upper, Error> {
    if config.ipam().is_none() {
        return Err(Error::config("dummy interface requires an IPAM configuration")
            .details("ipam.type is missing: the interface only holds addresses"));
    }
    Ok(Upper::new(Kind::Dummy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipam_plugin_is_required() {
        let read = |json: &str| read(&PluginConfig::parse(json.as_bytes()).unwrap());
        let upper = read(r#"{"name":"n","IPAM":{"Type":"static"}}"#).unwrap();
        assert_eq!((upper.kind, upper.takes_previous), (Kind::Dummy, false));
        for none in [r#"{"name":"n"}"#, r#"{"name":"n","ipam":{}}"#, r#"{"name":"n","ipam":null}"#] {
            let err = read(none).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, "dummy interface requires an IPAM configuration"));
        }
    }
}
