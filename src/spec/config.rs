//! The configuration that a plugin reads from stdin.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CniResult, Error, Version, json};

/// A container's interface in a network: what GC and leases are keyed by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// The container ID.
    pub container_id: String,
    /// The interface name inside the container.
    pub ifname: String,
}

/// One plugin's configuration: what every plugin needs, and the whole document for the rest.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// `cniVersion`; 0.1.0 where it is missing.
    pub version: Version,
    /// `name`: the network. Empty if missing; the skeleton refuses that for all verbs.
    pub name: String,
    /// `type`: the plugin.
    pub plugin_type: String,
    /// `ipam.type`, empty if there is no IPAM.
    pub ipam_type: String,
    /// `prevResult`, in the form of the newest version.
    pub prev_result: Option<CniResult>,
    /// `cni.dev/valid-attachments`, for GC. `None` means that the key is missing: nothing
    /// may be cleaned. A key with `null` or `[]` is an empty list: nothing is valid.
    pub valid_attachments: Option<Vec<Attachment>>,
    document: Value,
}

impl PluginConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Code 6 if it isn't a JSON object, 1 for an unknown `cniVersion`, 7 for a known key
    /// of the wrong type; the message has the path.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        todo!("{}", bytes.len())
    }

    /// The plugin's own keys, as `T`.
    ///
    /// # Errors
    /// Code 7 with the path to the bad value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        json::from_value(&self.document, "")
    }

    /// The whole document.
    pub fn document(&self) -> &Value {
        &self.document
    }
}
