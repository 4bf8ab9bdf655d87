//! Network configurations: the lists that an administrator writes and a runtime works through (specification 1.1.0,
//! section 1). `versions` chooses which version to speak, `injection` makes a plugin's own configuration of its entry.

mod injection;
#[cfg(test)]
mod tests;
mod versions;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Error, Version, fields, json, names};

pub use injection::Injection;

/// One plugin of a list.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ListEntry {
    /// `type`: the plugin, never empty.
    pub plugin_type: String,
    /// The `capabilities` that are true.
    pub capabilities: Vec<String>,
    /// The entry as it was written.
    pub document: Value,
}

/// A network: a name, and the plugins that make it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NetworkList {
    /// Its name; [`names::is_identifier`] holds.
    pub name: String,
    /// The version to speak: the highest of `cniVersions` and `cniVersion` that we know.
    pub version: Version,
    /// `disableCheck`: CHECK does nothing.
    pub disable_check: bool,
    /// `disableGC`: GC does nothing.
    pub disable_gc: bool,
    /// `loadOnlyInlinedPlugins`: no plugins from the network's folder.
    pub load_only_inlined_plugins: bool,
    /// The plugins, in the order of ADD.
    pub plugins: Vec<ListEntry>,
    /// The list as it was written; for a single configuration, the list made of it.
    pub document: Value,
}

impl ListEntry {
    /// Whether it is a portmap without the capability by which a runtime tells it of ports.
    pub fn lacks_ports(&self) -> bool {
        self.plugin_type == "portmap" && !self.capabilities.iter().any(|key| key == "portMappings")
    }
}

/// The keys of a list, apart from those about versions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Keys {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "fields::flag")]
    disable_check: bool,
    #[serde(default, rename = "disableGC", deserialize_with = "fields::flag")]
    disable_gc: bool,
    #[serde(default, deserialize_with = "fields::flag")]
    load_only_inlined_plugins: bool,
    plugins: Option<Vec<Value>>,
}

impl ListEntry {
    /// Reads the configuration of one plugin: an entry of a list, or a file of a network's folder. `path` is put in
    /// front of paths in error texts.
    ///
    /// # Errors
    /// Code 7 if it isn't an object or has no `type`.
    pub fn from_value(document: Value, path: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type", default)]
            plugin_type: String,
            #[serde(default)]
            capabilities: std::collections::BTreeMap<String, bool>,
        }
        let entry: Entry = json::from_value(&document, path)?;
        if entry.plugin_type.is_empty() {
            let colon = if path.is_empty() { "" } else { ": " };
            return Err(Error::config(format!("{path}{colon}missing plugin type")));
        }
        let capabilities = entry.capabilities.into_iter().filter(|(_, on)| *on).map(|(key, _)| key);
        Ok(ListEntry { plugin_type: entry.plugin_type, capabilities: capabilities.collect(), document })
    }

    /// Reads the bytes of a file with one plugin's configuration.
    ///
    /// # Errors
    /// Code 6 if it isn't a JSON object, otherwise as [`ListEntry::from_value`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_value(json::parse_object(bytes, "plugin configuration")?, "")
    }
}

impl NetworkList {
    /// Whether a plugin takes this capability argument.
    pub fn takes(&self, capability: &str) -> bool {
        self.plugins.iter().flat_map(|plugin| &plugin.capabilities).any(|key| key == capability)
    }

    /// Reads a list (`.conflist`). Without `plugins` the list is empty, and they have to come from the network's
    /// folder: see [`NetworkList::push`] and [`NetworkList::complete`].
    ///
    /// # Errors
    /// Code 6 if it isn't a JSON object, 1 if no version in it is ours, 7 with the path for anything else.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_value(json::parse_object(bytes, "network configuration")?)
    }

    /// Reads the configuration of a single plugin (`.conf`, `.json`) as a list of one, as was usual before 1.0.0.
    /// Plugins in folders don't belong to it.
    ///
    /// # Errors
    /// Fails as [`NetworkList::parse`] does.
    pub fn parse_single(bytes: &[u8]) -> Result<Self, Error> {
        let document = json::parse_object(bytes, "network configuration")?;
        // Said here rather than about "plugins[0]", which the file doesn't have.
        ListEntry::from_value(document.clone(), "")?;
        let mut list = Map::new();
        for key in ["cniVersion", "name"] {
            if let Some(value) = json::get(&document, key) {
                list.insert(key.into(), value.clone());
            }
        }
        list.insert("plugins".into(), Value::Array(vec![document]));
        let mut list = Self::from_value(Value::Object(list))?;
        list.load_only_inlined_plugins = true;
        Ok(list)
    }

    /// Reads a list that has been parsed.
    ///
    /// # Errors
    /// Fails as [`NetworkList::parse`] does.
    pub fn from_value(document: Value) -> Result<Self, Error> {
        let version = versions::choose(json::from_value(&document, "")?)?;
        let keys: Keys = json::from_value(&document, "")?;
        if keys.name.is_empty() {
            return Err(Error::config("missing network name"));
        }
        if !names::is_identifier(&keys.name) {
            return Err(Error::config(format!("invalid network name \"{}\"", fields::shown(&keys.name)))
                .details("it must start with a letter or digit and hold only letters, digits, _ . -"));
        }
        match &keys.plugins {
            Some(plugins) if plugins.is_empty() => {
                return Err(Error::config("plugins: the list is empty"));
            }
            None if keys.load_only_inlined_plugins => {
                return Err(Error::config(
                    "plugins: missing, and loadOnlyInlinedPlugins rules out any other source",
                ));
            }
            _ => {}
        }
        let plugins = keys.plugins.unwrap_or_default().into_iter().enumerate();
        Ok(NetworkList {
            name: keys.name,
            version,
            disable_check: keys.disable_check,
            disable_gc: keys.disable_gc,
            load_only_inlined_plugins: keys.load_only_inlined_plugins,
            plugins: plugins
                .map(|(i, entry)| ListEntry::from_value(entry, &format!("plugins[{i}]")))
                .collect::<Result<_, _>>()?,
            document,
        })
    }

    /// Appends a plugin from the network's folder.
    pub fn push(&mut self, entry: ListEntry) {
        self.plugins.push(entry);
    }

    /// The list, once every source of plugins has been read.
    ///
    /// # Errors
    /// Code 7 if it still has none.
    pub fn complete(self) -> Result<Self, Error> {
        if self.plugins.is_empty() {
            let err = Error::config(format!("network \"{}\" has no plugins", self.name));
            if json::get(&self.document, "type").is_some() {
                return Err(
                    err.details("it reads like a single plugin's configuration; such a file ends in .conf")
                );
            }
            return Err(err);
        }
        Ok(self)
    }
}
