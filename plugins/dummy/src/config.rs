//! The keys of a dummy configuration, checked.
//!
//! | key | default | |
//! |---|---|---|
//! | `ipam` | required | must give at least one address |

use cnimble_cni::{Error, PluginConfig};

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) ipam: String,
}

impl Config {
    /// Reads the complete configuration.
    ///
    /// # Errors
    /// Fails with code 7 if there is no IPAM plugin.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        if config.ipam_type.is_empty() {
            return Err(Error::config("dummy interface requires an IPAM configuration")
                .details("ipam.type is missing: the interface is there for its addresses"));
        }
        Ok(Config { ipam: config.ipam_type.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipam_plugin_is_required() {
        let read = |json: &str| Config::read(&PluginConfig::parse(json.as_bytes()).unwrap());
        assert_eq!(read(r#"{"name":"n","IPAM":{"Type":"static"}}"#).unwrap().ipam, "static");
        for none in [r#"{"name":"n"}"#, r#"{"name":"n","ipam":{}}"#, r#"{"name":"n","ipam":null}"#] {
            let err = read(none).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, "dummy interface requires an IPAM configuration"));
        }
    }
}
