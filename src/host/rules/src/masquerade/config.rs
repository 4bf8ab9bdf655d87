//! Reads the keys of plugins that masquerade what their pods send (`ipMasq…`).

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

use cnimble_cni::fields::{Addresses, RequestedIp};
use cnimble_cni::{Error, PluginConfig, json};

use super::{Families, Translation};
use crate::filters::Masqueraded;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ip_masq: bool,
    ip_masq_backend: String,
    ip_masq_family: String,
    ip_masq_exclude: Vec<RequestedIp>,
    ip_masq_address: Addresses,
}

/// The masquerading that a plugin's configuration wants.
#[derive(Debug)]
pub struct Settings {
    /// Whether packets are masqueraded at all (`ipMasq`). The other fields are read in any case.
    pub wanted: bool,
    /// The configured backend, `iptables` or `nftables`. With `None`, [`choose`](super::choose) finds one.
    pub backend: Option<String>,
    pub translation: Translation,
    families: Families,
}

impl Settings {
    /// Reads the keys of a plugin's configuration. Fails with code 7 and the path of the invalid value.
    pub fn read(config: &PluginConfig) -> Result<Self, Error> {
        Self::of_document(config.document())
    }

    /// Reads the keys of a plugin in a network's list, as a JSON document. Fails as [`read`](Self::read) does.
    pub fn of_document(document: &Value) -> Result<Self, Error> {
        let keys: Keys = json::from_value(document, "")?;
        if !matches!(keys.ip_masq_backend.as_str(), "" | "iptables" | "nftables") {
            return Err(Error::config(format!(
                "ipMasqBackend: unknown backend \"{}\", expected iptables or nftables",
                keys.ip_masq_backend.escape_debug()
            )));
        }
        Ok(Settings {
            wanted: keys.ip_masq,
            backend: Some(keys.ip_masq_backend).filter(|backend| !backend.is_empty()),
            translation: Translation::read(&keys.ip_masq_exclude, keys.ip_masq_address.0)?,
            families: Families::read(&keys.ip_masq_family)?,
        })
    }

    /// Returns the masquerading of a pod with these addresses. Leaves out those of a family that `ipMasqFamily`
    /// excludes. Does not look at [`wanted`](Self::wanted).
    pub fn for_addresses(&self, addrs: impl Iterator<Item = IpNetwork>) -> Masqueraded<'_> {
        Masqueraded {
            addrs: self.families.filter(addrs),
            backend: self.backend.as_deref(),
            translation: self.translation.clone(),
        }
    }
}
