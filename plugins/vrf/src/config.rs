use serde::Deserialize;

use cnimble_cni::{Error, PluginConfig, fields, names};
use cnimble_plugin::interface::named;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    vrfname: String,
    #[serde(deserialize_with = "fields::nonzero_opt")]
    table: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) name: String,
    /// The routing table of the VRF. `None` takes that of the existing VRF, or else a free one.
    pub(crate) table: Option<u32>,
}

/// Reads nothing but the name of the VRF, for DEL, as the other keys may have changed since ADD. `None` if it is
/// missing or invalid.
pub(crate) fn name(config: &PluginConfig) -> Option<String> {
    #[derive(Deserialize)]
    struct Name {
        vrfname: String,
    }
    config
        .decode::<Name>()
        .ok()
        .map(|key| key.vrfname)
        .filter(|name| names::new_interface_problem(name).is_none())
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the key if a value is invalid.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let Keys { vrfname: name, table } = config.decode()?;
        let name = named("vrfname", &name)?.ok_or_else(|| {
            Error::config("configuration is expected to have a valid vrf name")
                .details("the key vrfname is missing")
        })?;
        Ok(Config { name, table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn keys_are_read_in_any_case_and_table_0_is_none() {
        let config = |table| Config { name: "blue".to_owned(), table };
        assert_eq!(read(r#"{"VrfName":"blue","TABLE":100}"#).unwrap(), config(Some(100)));
        assert_eq!(read(r#"{"vrfname":"blue","table":0}"#).unwrap(), config(None));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            ("{}", "configuration is expected to have a valid vrf name"),
            (r#"{"vrfname":"a/b"}"#, "vrfname: invalid name \"a/b\""),
            (r#"{"vrfname":"red%d"}"#, "vrfname: invalid name \"red%d\""),
            (r#"{"vrfname":"a","table":-1}"#, "table: invalid value: integer `-1`, expected u32"),
        ] {
            let err = read(json).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
