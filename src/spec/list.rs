//! Network configurations: the lists that an administrator writes and a runtime works
//! through (specification 1.1.0, section 1 and "Deriving execution configuration").
//!
//! Reading files is the runtime's part; here is what they mean, and how a plugin's own
//! configuration is made from its entry.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::{OLD_ATTACHMENTS, VALID_ATTACHMENTS};
use super::{Attachment, Error, Version, fields, json, names};

/// One plugin of a list.
#[derive(Debug, Clone, PartialEq)]
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

/// What a runtime adds to a plugin's entry for one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injection<'a> {
    /// The result of the plugin before, or of the ADD before.
    pub prev_result: Option<&'a Value>,
    /// Capability arguments by capability.
    pub capability_args: Option<&'a Map<String, Value>>,
    /// For GC: the attachments that are still valid.
    pub valid_attachments: Option<&'a [Attachment]>,
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

/// The keys that say which version to speak.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Versions {
    #[serde(deserialize_with = "fields::text_opt")]
    cni_version: Option<String>,
    cni_versions: Option<Vec<String>>,
}

impl ListEntry {
    /// Reads the configuration of one plugin: an entry of a list, or a file of a network's
    /// folder. `path` is put in front of paths in error texts.
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
    /// Reads a list (`.conflist`). Without `plugins` the list is empty, and they have to
    /// come from the network's folder: see [`NetworkList::push`] and [`NetworkList::complete`].
    ///
    /// # Errors
    /// Code 6 if it isn't a JSON object, 1 if no version in it is ours, 7 for anything else;
    /// the message has the path.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_value(json::parse_object(bytes, "network configuration")?)
    }

    /// Reads the configuration of a single plugin (`.conf`, `.json`) as a list of one, as
    /// was usual before 1.0.0. Plugins in folders don't belong to it.
    ///
    /// # Errors
    /// As [`NetworkList::parse`].
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
    /// As [`NetworkList::parse`].
    pub fn from_value(document: Value) -> Result<Self, Error> {
        let version = choose_version(json::from_value(&document, "")?)?;
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

    /// The configuration that `entry` gets on stdin: its own, with the network's name and
    /// version, what `injection` brings, and without `capabilities`, which are the
    /// runtime's business.
    pub fn configuration(&self, entry: &ListEntry, injection: &Injection<'_>) -> Value {
        let mut config = entry.document.as_object().cloned().unwrap_or_default();
        remove(&mut config, "capabilities");
        let mut inject = |key: &str, value: Value| {
            // Another spelling left beside ours could win in a plugin that reads any case.
            remove(&mut config, key);
            config.insert(key.to_owned(), value);
        };
        inject("name", Value::from(self.name.as_str()));
        inject("cniVersion", Value::from(self.version.as_str()));
        if let Some(result) = injection.prev_result {
            inject("prevResult", result.clone());
        }
        if let Some(args) = injection.capability_args {
            let wanted = entry.capabilities.iter();
            let granted: Map<String, Value> =
                wanted.filter_map(|key| Some((key.clone(), args.get(key)?.clone()))).collect();
            if !granted.is_empty() {
                inject("runtimeConfig", Value::Object(granted));
            }
        }
        if let Some(attachments) = injection.valid_attachments {
            let list: Value = attachments
                .iter()
                .map(|it| serde_json::json!({ "containerID": it.container_id, "ifname": it.ifname }))
                .collect();
            inject(OLD_ATTACHMENTS, list.clone());
            inject(VALID_ATTACHMENTS, list);
        }
        Value::Object(config)
    }
}

/// Removes `key` in every spelling.
fn remove(config: &mut Map<String, Value>, key: &str) {
    config.retain(|other, _| !other.eq_ignore_ascii_case(key));
}

/// The highest version that we know; a list may name newer ones for other runtimes.
fn choose_version(versions: Versions) -> Result<Version, Error> {
    let Some(list) = versions.cni_versions else {
        return Version::parse(&versions.cni_version.unwrap_or_default());
    };
    for (i, text) in list.iter().enumerate() {
        let parts = text.split('.');
        if parts.clone().count() != 3 || !parts.clone().all(|part| part.parse::<u32>().is_ok()) {
            return Err(Error::config(format!("cniVersions[{i}]: invalid version: {}", fields::shown(text))));
        }
    }
    let asked = list.iter().chain(&versions.cni_version);
    match asked.clone().filter_map(|text| Version::parse(text).ok()).max() {
        Some(version) => Ok(version),
        None if asked.clone().next().is_none() => Ok(Version::V0_1_0),
        None => {
            let asked: Vec<&str> = asked.map(String::as_str).collect();
            Err(Version::incompatible(&asked.join(" "), Version::ALL))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::Code;

    fn parse(value: &Value) -> Result<NetworkList, Error> {
        NetworkList::parse(value.to_string().as_bytes())
    }

    fn message(value: &Value) -> (u32, String) {
        let err = parse(value).unwrap_err();
        (err.code.0, err.msg)
    }

    #[test]
    fn reads_a_list() {
        let list = parse(&json!({
            "cniVersion": "1.0.0", "name": "net", "disableCheck": true, "disableGC": "TRUE",
            "plugins": [
                { "type": "bridge", "mtu": 1400 },
                { "type": "portmap", "capabilities": { "portMappings": true, "bandwidth": false, "x": null } },
            ],
        }))
        .unwrap();
        assert_eq!((list.name.as_str(), list.version), ("net", Version::V1_0_0));
        assert_eq!(
            (list.disable_check, list.disable_gc, list.load_only_inlined_plugins),
            (true, true, false)
        );
        assert_eq!(list.plugins[0].document, json!({ "type": "bridge", "mtu": 1400 }));
        assert_eq!(list.plugins[1].capabilities, ["portMappings"]);
    }

    #[test]
    fn the_highest_known_version_wins() {
        let version = |value: Value| {
            let mut value = value;
            value["name"] = json!("n");
            value["plugins"] = json!([{ "type": "x" }]);
            parse(&value).map(|list| list.version.as_str()).map_err(|err| err.code.0)
        };
        assert_eq!(version(json!({})), Ok("0.1.0"));
        assert_eq!(version(json!({ "cniVersion": "0.4.0" })), Ok("0.4.0"));
        assert_eq!(version(json!({ "cniVersions": ["0.3.1", "1.0.0", "0.4.0"] })), Ok("1.0.0"));
        assert_eq!(version(json!({ "cniVersion": "1.1.0", "cniVersions": ["0.3.1"] })), Ok("1.1.0"));
        assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": ["1.2.0", "2.0.0"] })), Ok("0.4.0"));
        assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": [] })), Ok("0.4.0"));
        assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": null })), Ok("0.4.0"));
        assert_eq!(version(json!({ "cniVersions": [] })), Ok("0.1.0"));
        assert_eq!(version(json!({ "cniVersion": "2.0.0" })), Err(1));
        assert_eq!(version(json!({ "cniVersions": ["2.0.0", "1.2.0"] })), Err(1));
        assert_eq!(version(json!({ "cniVersions": ["1.0"] })), Err(7));
        assert_eq!(version(json!({ "cniVersions": "1.0.0" })), Err(7));
    }

    #[test]
    fn errors() {
        let plugins = json!([{ "type": "x" }]);
        for (value, code, msg) in [
            (json!([]), 6, "network configuration: invalid type: list, expected an object"),
            (json!({ "plugins": plugins }), 7, "missing network name"),
            (
                json!({ "name": 1, "plugins": plugins }),
                7,
                "name: invalid type: integer `1`, expected a string",
            ),
            (json!({ "name": "../x", "plugins": plugins }), 7, "invalid network name \"../x\""),
            (json!({ "name": "n", "plugins": [] }), 7, "plugins: the list is empty"),
            (json!({ "name": "n", "plugins": {} }), 7, "plugins: invalid type: object, expected a list"),
            (
                json!({ "name": "n", "loadOnlyInlinedPlugins": "true" }),
                7,
                "plugins: missing, and loadOnlyInlinedPlugins rules out any other source",
            ),
            (json!({ "name": "n", "plugins": [{ "type": "a" }, {}] }), 7, "plugins[1]: missing plugin type"),
            (
                json!({ "name": "n", "plugins": ["x"] }),
                7,
                "plugins[0]: invalid type: string \"x\", expected an object",
            ),
            (
                json!({ "name": "n", "plugins": [{ "type": "a", "capabilities": { "ips": "yes" } }] }),
                7,
                "plugins[0].capabilities.ips: invalid type: string \"yes\", expected a boolean",
            ),
            (
                json!({ "name": "n", "disableCheck": "yes", "plugins": plugins }),
                7,
                "disableCheck: invalid value: string \"yes\", expected true or false",
            ),
            (
                json!({ "name": "n", "cniVersions": ["1.0.0", 1], "plugins": plugins }),
                7,
                "cniVersions[1]: invalid type: integer `1`, expected a string",
            ),
            (
                json!({ "name": "n", "cniVersions": ["1.0.0", "x"], "plugins": plugins }),
                7,
                "cniVersions[1]: invalid version: x",
            ),
        ] {
            assert_eq!(message(&value), (code, msg.to_owned()), "{value}");
        }
    }

    #[test]
    fn a_single_configuration_is_a_list_of_one() {
        let list = NetworkList::parse_single(br#"{"cniVersion":"0.3.1","name":"n","type":"bridge","mtu":9}"#)
            .unwrap();
        assert_eq!((list.name.as_str(), list.version), ("n", Version::V0_3_1));
        assert_eq!(list.plugins[0].document["mtu"], 9);
        assert_eq!(NetworkList::from_value(list.document.clone()).unwrap().plugins, list.plugins);
        for (text, msg) in [
            (r#"{"name":"n"}"#, "missing plugin type"),
            (r#"{"type":"t"}"#, "missing network name"),
            ("", "network configuration is empty"),
        ] {
            assert_eq!(NetworkList::parse_single(text.as_bytes()).unwrap_err().msg, msg);
        }
    }

    #[test]
    fn plugins_of_a_folder_are_appended() {
        let mut list = parse(&json!({ "name": "n" })).unwrap();
        assert_eq!(list.clone().complete().unwrap_err().msg, "network \"n\" has no plugins");
        let single = parse(&json!({ "name": "n", "type": "bridge" })).unwrap().complete().unwrap_err();
        assert!(single.details.contains(".conf"), "{single}");
        list.push(ListEntry::parse(br#"{"type":"bridge"}"#).unwrap());
        assert_eq!(list.complete().unwrap().plugins.len(), 1);
        assert_eq!(ListEntry::parse(b"{}").unwrap_err().msg, "missing plugin type");
        assert_eq!(ListEntry::parse(b"[]").unwrap_err().code, Code::DECODE);
    }

    #[test]
    fn injects_what_a_plugin_needs_and_nothing_else() {
        let list = parse(&json!({
            "cniVersions": ["1.0.0", "1.1.0"], "name": "net",
            "plugins": [{
                "type": "x", "Name": "old", "CNIVersion": "0.1.0", "key": [1],
                "capabilities": { "portMappings": true, "mac": true, "ips": false },
                "PrevResult": {},
            }],
        }))
        .unwrap();
        let entry = &list.plugins[0];
        assert_eq!(
            list.configuration(entry, &Injection::default()),
            json!({ "type": "x", "name": "net", "cniVersion": "1.1.0", "key": [1], "PrevResult": {} })
        );
        let args = json!({ "portMappings": [], "ips": ["10.0.0.1"], "other": 1 });
        let prev = json!({ "cniVersion": "1.1.0" });
        let attachment = [Attachment { container_id: "c".into(), ifname: "eth0".into() }];
        let injection = Injection {
            prev_result: Some(&prev),
            capability_args: args.as_object(),
            valid_attachments: Some(&attachment),
        };
        let attachments = json!([{ "containerID": "c", "ifname": "eth0" }]);
        assert_eq!(
            list.configuration(entry, &injection),
            json!({
                "type": "x", "name": "net", "cniVersion": "1.1.0", "key": [1],
                "prevResult": { "cniVersion": "1.1.0" }, "runtimeConfig": { "portMappings": [] },
                "cni.dev/valid-attachments": attachments, "cni.dev/attachments": attachments,
            })
        );
        // No attachment is a list, too.
        let none = Injection { valid_attachments: Some(&[]), ..Injection::default() };
        assert_eq!(list.configuration(entry, &none)["cni.dev/valid-attachments"], json!([]));
    }

    #[test]
    fn keeps_a_runtime_config_that_was_written_by_hand() {
        let list = parse(&json!({
            "name": "n", "plugins": [{ "type": "x", "runtimeConfig": { "mac": "m" }, "capabilities": { "ips": true } }],
        }))
        .unwrap();
        let args = json!({ "mac": "other" });
        let injection = Injection { capability_args: args.as_object(), ..Injection::default() };
        let config = list.configuration(&list.plugins[0], &injection);
        assert_eq!(config["runtimeConfig"], json!({ "mac": "m" }));
        assert_eq!(config["cniVersion"], "0.1.0");
    }
}
