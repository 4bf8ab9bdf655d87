//! The content of a file in libcni's result cache.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use cnimble_cni::{CniResult, Error as SpecError, NetworkList, Version, json};

use super::Key;
use crate::Attach;
use crate::chain::inlined_config;

const KIND: &str = "cniCacheV1";

/// One attachment as it was added.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The name of the network.
    pub network: String,
    /// The value of CNI_CONTAINERID.
    pub container_id: String,
    /// The interface inside the container.
    pub ifname: String,
    /// The path of the namespace. It is empty if there was none, and in entries of libcni before 1.2: see
    /// [`Entry::namespace`].
    pub netns: String,
    /// The network's configuration, as text. It is empty in an entry of an old libcni.
    pub config: Vec<u8>,
    /// The pairs of CNI_ARGS, in their order.
    pub args: Vec<(String, String)>,
    /// The capability arguments, before they were matched with the capabilities.
    pub capability_args: Map<String, Value>,
    /// The result of ADD, as it was recorded: [`Invoker::add`](crate::Invoker::add) first converts what the last plugin
    /// printed into the network's version. See [`Entry::cni_result`].
    pub result: Option<Value>,
}

/// libcni's keys in libcni's order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    container_id: String,
    #[serde(default)]
    config: Option<String>,
    if_name: String,
    network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capability_args: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl Entry {
    /// Returns the record of an attachment without a result. A caller can write it before ADD, so that the attachment
    /// is known if the ADD does not end.
    pub fn before_add(network: &NetworkList, attach: &Attach) -> Self {
        Entry {
            network: network.name.clone(),
            container_id: attach.container_id.clone(),
            ifname: attach.ifname.clone(),
            netns: attach.netns.clone(),
            config: inlined_config(network).to_string().into_bytes(),
            args: attach.args.clone(),
            capability_args: attach.capability_args.clone(),
            result: None,
        }
    }

    /// Returns the key of this entry.
    pub fn key(&self) -> Key<'_> {
        Key { network: &self.network, container_id: &self.container_id, ifname: &self.ifname }
    }

    /// Returns whether the entry is of this attachment. Two attachments can share a file name.
    pub(super) fn is_of(&self, key: Key<'_>) -> bool {
        (self.network.as_str(), self.container_id.as_str(), self.ifname.as_str())
            == (key.network, key.container_id, key.ifname)
    }

    /// Returns the path of the namespace. Where the entry has none, the first `sandbox` of the result's interfaces
    /// counts. It returns `None` if neither has it.
    pub fn namespace(&self) -> Option<&str> {
        if !self.netns.is_empty() {
            return Some(&self.netns);
        }
        let interfaces = json::get(self.result.as_ref()?, "interfaces")?.as_array()?;
        let mut paths = interfaces.iter().filter_map(|of| json::get(of, "sandbox")?.as_str());
        paths.find(|path| !path.is_empty())
    }

    /// Parses the result of ADD, of any version. It returns `None` if the entry has none.
    ///
    /// # Errors
    /// Fails with code 1 for an unknown version, and with code 7 if a value has the wrong form.
    pub fn cni_result(&self) -> Result<Option<CniResult>, SpecError> {
        let result = self.result.as_ref();
        result.map(|result| CniResult::from_value(result, Version::V0_2_0, "result")).transpose()
    }

    /// Returns the bytes of the file.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(&File::from(self)).map_err(io::Error::other)
    }

    /// Parses the configuration of the ADD, so that DEL works when the network's file is gone.
    ///
    /// # Errors
    /// Fails as [`NetworkList::parse`] does, and for an entry of an old libcni, which has no configuration.
    pub fn network_list(&self) -> Result<NetworkList, SpecError> {
        let value = json::parse_object(&self.config, "cached configuration")?;
        let list = match json::get(&value, "plugins") {
            Some(_) => NetworkList::from_value(value),
            // libcni's `AddNetwork` records the configuration of a single plugin, without a list.
            None => NetworkList::parse_single(&self.config),
        }?;
        list.complete()
    }
}

impl From<&Entry> for File {
    fn from(entry: &Entry) -> Self {
        File {
            kind: KIND.to_owned(),
            container_id: entry.container_id.clone(),
            config: Some(STANDARD.encode(&entry.config)),
            if_name: entry.ifname.clone(),
            network_name: entry.network.clone(),
            netns: entry.netns.clone(),
            cni_args: Some(entry.args.clone()).filter(|args| !args.is_empty()),
            capability_args: Some(entry.capability_args.clone()).filter(|args| !args.is_empty()),
            result: entry.result.clone(),
        }
    }
}

/// Reads a file's bytes. `key` is the attachment of a bare result, which does not name its own.
pub(super) fn decode(bytes: &[u8], key: Key<'_>) -> Result<Entry, String> {
    decode_v1(bytes).or_else(|why| legacy(bytes, key).ok_or(why))
}

/// Reads an entry of kind `cniCacheV1`. A bare result of libcni before 0.8 is an error here.
pub(super) fn decode_v1(bytes: &[u8]) -> Result<Entry, String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let file: File = serde_json::from_slice(bytes).map_err(|err| err.to_string())?;
    if file.kind != KIND {
        return Err(format!("its kind is \"{}\", expected {KIND}", file.kind.escape_debug()));
    }
    let config = STANDARD.decode(file.config.unwrap_or_default()).map_err(|err| format!("config: {err}"))?;
    Ok(Entry {
        network: file.network_name,
        container_id: file.container_id,
        ifname: file.if_name,
        netns: file.netns,
        config,
        args: file.cni_args.unwrap_or_default(),
        capability_args: file.capability_args.unwrap_or_default(),
        result: file.result,
    })
}

/// Returns whether these are the bytes of a bare result of a libcni before 0.8.
pub(super) fn is_bare_result(bytes: &[u8]) -> bool {
    legacy(bytes, Key { network: "", container_id: "", ifname: "" }).is_some()
}

/// Reads the bare result of a libcni before 0.8. Returns `None` if it doesn't look like a result. Its values are
/// checked when they are used.
fn legacy(bytes: &[u8], key: Key<'_>) -> Option<Entry> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let has_kind = json::get(&value, "kind").is_some();
    if has_kind || !["ips", "interfaces", "ip4", "ip6"].iter().any(|key| json::get(&value, key).is_some()) {
        return None;
    }
    Some(Entry {
        network: key.network.to_owned(),
        container_id: key.container_id.to_owned(),
        ifname: key.ifname.to_owned(),
        result: Some(value),
        ..Entry::default()
    })
}
