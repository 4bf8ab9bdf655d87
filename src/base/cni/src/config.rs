//! The configuration that a plugin reads from stdin.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::attachments::{self, Attachment, OLD_ATTACHMENTS, VALID_ATTACHMENTS};
use super::{CniResult, Code, Error, Version, json};

/// One plugin's configuration: what every plugin needs, and the whole document for the rest.
///
/// ```
/// use cnimble_cni::{PluginConfig, Version};
///
/// #[derive(serde::Deserialize)]
/// struct Keys {
///     bridge: String,
/// }
/// let config = PluginConfig::parse(br#"{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0"}"#)?;
/// assert_eq!((config.version, config.name.as_str()), (Version::V1_0_0, "net"));
/// assert_eq!(config.decode::<Keys>()?.bridge, "cni0");
/// # Ok::<(), cnimble_cni::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PluginConfig {
    /// `cniVersion`; 0.1.0 where it is missing.
    pub version: Version,
    /// `name`: the network. Empty if missing; the skeleton refuses that for all verbs.
    pub name: String,
    /// The key `type`: the plugin's name.
    pub plugin_type: String,
    /// Empty if there is no IPAM.
    ipam_type: String,
    /// `prevResult`, in the form of the newest version.
    pub prev_result: Option<CniResult>,
    /// `cni.dev/valid-attachments`, for GC. `None` means that the key is missing: nothing may be cleaned. A key with
    /// `null` or `[]` is an empty list: nothing is valid.
    pub valid_attachments: Option<Vec<Attachment>>,
    /// The whole configuration without the lists of attachments.
    document: Value,
}

/// The keys that hold for all plugins.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Common {
    name: String,
    #[serde(rename = "type")]
    plugin_type: String,
    ipam: Ipam,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    ipam_type: String,
}

impl PluginConfig {
    /// Reads a configuration from stdin's bytes. `null` is an object without keys.
    ///
    /// # Errors
    /// Fails with code 6 if it isn't a JSON object, and with code 1 for an unknown `cniVersion`. Fails with code 7 and
    /// the path for a known key of the wrong type.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let config = Self::parse_without_result(bytes)?;
        Ok(PluginConfig { prev_result: config.read_prev_result()?, ..config })
    }

    /// Reads a configuration for DEL. If `prevResult` can't be read, it counts as missing, and its error is returned
    /// besides.
    ///
    /// # Errors
    /// Fails as [`PluginConfig::parse`] does, except for `prevResult`.
    pub fn parse_for_del(bytes: &[u8]) -> Result<(Self, Option<Error>), Error> {
        let config = Self::parse_without_result(bytes)?;
        Ok(match config.read_prev_result() {
            Ok(prev_result) => (PluginConfig { prev_result, ..config }, None),
            Err(err) => (config, Some(err)),
        })
    }

    /// The version to answer in when [`PluginConfig::parse`] has refused `bytes`: the configuration's own where it can
    /// be read, else the newest.
    pub fn version_of(bytes: &[u8]) -> Version {
        json::text_member(bytes, "cniVersion")
            .and_then(|text| Version::parse(&text).ok())
            .unwrap_or(Version::LATEST)
    }

    /// Returns an error with code 6 if `cniVersion` isn't made of numbers, in the words of the Go library. An unknown
    /// version made of numbers is another error.
    pub fn version_that_is_none(bytes: &[u8]) -> Option<Error> {
        let text = json::text_member(bytes, "cniVersion")?;
        let mut parts = text.split('.').zip(["major", "minor", "micro"]);
        let (part, which) = parts.find(|(part, _)| part.parse::<u32>().is_err())?;
        let part = part.escape_debug();
        Some(Error::new(Code::DECODE, format!("failed to convert {which} version part \"{part}\"")))
    }

    /// Reads a configuration, and leaves `prevResult` in its document.
    fn parse_without_result(bytes: &[u8]) -> Result<Self, Error> {
        let lists = attachments::Lists::default();
        let document = match bytes.trim_ascii() {
            b"null" => Value::Object(serde_json::Map::new()),
            _ => json::parse_with_lists(bytes, "configuration", &lists)?,
        };
        let version = match json::get(&document, "cniVersion") {
            None => Version::V0_1_0,
            Some(value) => {
                let text: Option<String> = json::from_value(value, "cniVersion")?;
                Version::parse(&text.unwrap_or_default())?
            }
        };
        let common: Common = json::from_value(&document, "")?;
        // A present null must not pass for missing here.
        let valid_attachments = [VALID_ATTACHMENTS, OLD_ATTACHMENTS]
            .into_iter()
            .find_map(|key| json::get(&document, key).map(|list| lists.take_out(list, key)))
            .transpose()?;
        Ok(PluginConfig {
            version,
            name: common.name,
            plugin_type: common.plugin_type,
            ipam_type: common.ipam.ipam_type,
            prev_result: None,
            valid_attachments,
            document,
        })
    }

    fn read_prev_result(&self) -> Result<Option<CniResult>, Error> {
        match json::get(&self.document, "prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => CniResult::from_value(value, self.version, "prevResult").map(Some),
        }
    }

    /// Returns the name of the IPAM plugin, or `None` if there is none.
    pub fn ipam(&self) -> Option<&str> {
        Some(self.ipam_type.as_str()).filter(|name| !name.is_empty())
    }

    /// Reads the plugin's own keys as `T`.
    ///
    /// # Errors
    /// Fails with code 7 and the path to the bad value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        json::from_value(&self.document, "")
    }

    /// Returns the whole document, except the lists of attachments.
    pub fn document(&self) -> &Value {
        &self.document
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Code;

    fn parse(value: &Value) -> Result<PluginConfig, Error> {
        PluginConfig::parse(value.to_string().as_bytes())
    }

    #[test]
    fn del_gets_on_without_a_prev_result_that_cant_be_read() {
        for prev in [json!(7), json!({"cniVersion": "9.9.9"}), json!({"ips": [{"address": "x"}]})] {
            let document = json!({"cniVersion": "1.0.0", "name": "n", "type": "t", "prevResult": prev});
            assert!(parse(&document).is_err(), "{prev}");
            let (config, why) = PluginConfig::parse_for_del(document.to_string().as_bytes()).unwrap();
            assert_eq!((config.name.as_str(), config.prev_result, why.is_some()), ("n", None, true));
        }
        assert!(PluginConfig::parse_for_del(b"{\"name\": 7}").is_err());
        // One that can be read tells DEL what ADD has made.
        let prev = json!({ "ips": [{ "address": "10.0.0.2/24" }] });
        let document = json!({ "cniVersion": "1.0.0", "name": "n", "type": "t", "prevResult": prev });
        let (config, why) = PluginConfig::parse_for_del(document.to_string().as_bytes()).unwrap();
        assert_eq!((config.prev_result.unwrap().ips.len(), why.is_none()), (1, true));
    }

    fn attachments(value: &Value) -> Option<Vec<(String, String)>> {
        let list = parse(value).unwrap().valid_attachments?;
        Some(list.into_iter().map(|a| (a.container_id, a.ifname)).collect())
    }

    #[test]
    fn reads_a_configuration() {
        let config = parse(&json!({
            "cniVersion": "0.4.0", "name": "net", "type": "bridge", "ipam": { "type": "host-local" },
            "prevResult": { "ips": [{ "version": "4", "address": "10.0.0.2/24" }] },
        }))
        .unwrap();
        assert_eq!(config.version, Version::V0_4_0);
        assert_eq!((config.name.as_str(), config.plugin_type.as_str()), ("net", "bridge"));
        assert_eq!(config.ipam_type, "host-local");
        assert_eq!(config.prev_result.unwrap().ips.len(), 1);
        assert_eq!(config.valid_attachments, None);
    }

    #[test]
    fn missing_null_and_empty() {
        for value in [
            json!({}),
            json!({ "cniVersion": "", "name": "", "type": "", "ipam": {} }),
            json!({ "cniVersion": null, "name": null, "type": null, "ipam": null, "prevResult": null }),
            json!({ "ipam": { "type": "" } }),
            json!({ "ipam": { "type": null } }),
        ] {
            let config = parse(&value).unwrap();
            assert_eq!(config.version, Version::V0_1_0);
            assert_eq!((config.name.as_str(), config.ipam_type.as_str()), ("", ""));
            assert_eq!(config.prev_result, None);
        }
    }

    #[test]
    fn keys_in_any_case() {
        let config = parse(&json!({
            "CNIVERSION": "1.1.0", "Name": "n", "TYPE": "t", "IPAM": { "Type": "i" },
            "PrevResult": { "IPs": [{ "Address": "10.0.0.2/24" }] },
            "CNI.dev/Valid-Attachments": [{ "ContainerID": "a", "IfName": "eth0" }],
        }))
        .unwrap();
        assert_eq!(config.version, Version::V1_1_0);
        assert_eq!((config.plugin_type.as_str(), config.ipam_type.as_str()), ("t", "i"));
        assert_eq!(config.prev_result.unwrap().ips.len(), 1);
        assert_eq!(config.valid_attachments.unwrap()[0].ifname, "eth0");
    }

    #[test]
    fn the_previous_result_has_a_version_of_its_own_or_that_of_the_configuration() {
        let ip4 = json!({ "ip4": { "ip": "10.0.0.2/24" } });
        let read = |version: &str, prev: &Value| {
            parse(&json!({ "cniVersion": version, "prevResult": prev }))
                .unwrap()
                .prev_result
                .unwrap()
                .ips
                .len()
        };
        assert_eq!(read("0.2.0", &ip4), 1);
        assert_eq!(read("0.4.0", &ip4), 0);
        let mut own = ip4.clone();
        own["cniVersion"] = json!("0.1.0");
        assert_eq!(read("0.4.0", &own), 1);
        let err = parse(&json!({ "prevResult": { "cniVersion": "3.0" } })).unwrap_err();
        assert_eq!(err.code, Code::INCOMPATIBLE_VERSION);
        assert_eq!(err.msg, "prevResult.cniVersion: incompatible CNI versions");
    }

    #[test]
    fn an_empty_list_of_attachments_is_not_a_missing_one() {
        let one = json!([{ "containerID": "a", "ifname": "eth0" }]);
        let pair = Some(vec![("a".to_owned(), "eth0".to_owned())]);
        assert_eq!(attachments(&json!({})), None);
        for key in [VALID_ATTACHMENTS, OLD_ATTACHMENTS] {
            assert_eq!(attachments(&json!({ key: null })), Some(vec![]));
            assert_eq!(attachments(&json!({ key: [] })), Some(vec![]));
            assert_eq!(attachments(&json!({ key: one })), pair);
        }
        let newer =
            |new: &Value, old: &Value| attachments(&json!({ VALID_ATTACHMENTS: new, OLD_ATTACHMENTS: old }));
        assert_eq!(newer(&one, &json!([])), pair);
        assert_eq!(newer(&Value::Null, &one), Some(vec![]));
    }

    #[test]
    fn a_version_that_is_no_version_is_told_by_its_part() {
        let told = |version: &str| {
            let text = format!(r#"{{"cniVersion":"{version}",broken"#);
            PluginConfig::version_that_is_none(text.as_bytes()).map(|err| (err.code.0, err.msg))
        };
        let part = |which, part| Some((6, format!("failed to convert {which} version part \"{part}\"")));
        assert_eq!(told("x.1.0"), part("major", "x"));
        assert_eq!(told("1.-1.0"), part("minor", "-1"));
        assert_eq!(told("1.0.0-rc"), part("micro", "0-rc"));
        for known in ["1.0.0", "9.9.9", "1.0.0.x"] {
            assert_eq!(told(known), None, "{known}");
        }
        assert_eq!(PluginConfig::version_that_is_none(b"{}"), None);
        // The document null is an empty one, as in Go.
        assert_eq!(PluginConfig::parse(b" null\n").unwrap().document, json!({}));
    }

    /// A node's GC has a list of all of its pods, and a document has a bound in memory.
    #[test]
    fn only_lists_of_attachments_leave_the_document() {
        let own = json!({ "mappings": [1, 2], "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }]] } });
        assert_eq!(*parse(&own).unwrap().document(), own);
        for key in [VALID_ATTACHMENTS, OLD_ATTACHMENTS, "CNI.dev/Attachments"] {
            let config = parse(&json!({ key: [{ "containerID": "a", "ifname": "eth0" }] })).unwrap();
            assert_eq!(config.valid_attachments.unwrap().len(), 1, "{key}");
            assert_eq!(config.document[key], json!([0]), "{key}");
        }
        let one = format!(r#"{{"containerID":"{}","ifname":"interface-name1"}},"#, "c".repeat(200));
        let text = format!(r#"{{"{VALID_ATTACHMENTS}":[{}]}}"#, one.repeat(30_000).trim_end_matches(','));
        let config = PluginConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config.valid_attachments.unwrap().len(), 30_000);
    }

    #[test]
    fn errors() {
        for (text, code, msg) in [
            ("", 6, "configuration is empty"),
            ("{\"a\"", 6, "configuration is not valid JSON: EOF while parsing an object at line 1 column 4"),
            ("[]", 6, "configuration: invalid type: list, expected an object"),
            (r#"{"cniVersion":"0.5.0"}"#, 1, "incompatible CNI versions"),
            (r#"{"cniVersion":"1.1"}"#, 1, "incompatible CNI versions"),
            (r#"{"cniVersion":1}"#, 7, "cniVersion: invalid type: integer `1`, expected a string"),
            (r#"{"name":1}"#, 7, "name: invalid type: integer `1`, expected a string"),
            (r#"{"type":[]}"#, 7, "type: invalid type: list, expected a string"),
            (r#"{"ipam":"x"}"#, 7, "ipam: invalid type: string \"x\", expected an object"),
            (r#"{"ipam":[]}"#, 7, "ipam: invalid type: list, expected an object"),
            (r#"{"ipam":{"type":2}}"#, 7, "ipam.type: invalid type: integer `2`, expected a string"),
            (r#"{"prevResult":"x"}"#, 7, "prevResult: invalid type: string \"x\", expected an object"),
            (
                r#"{"cniVersion":"1.0.0","prevResult":{"ips":[{"address":"10.0.0.1/8"},{"address":"10.1"}]}}"#,
                7,
                "prevResult.ips[1].address: invalid CIDR address: 10.1",
            ),
            (
                r#"{"cni.dev/valid-attachments":[{"containerID":"a"}]}"#,
                7,
                "cni.dev/valid-attachments[0]: missing field `ifname`",
            ),
            (
                r#"{"cni.dev/attachments":{}}"#,
                7,
                "cni.dev/attachments: invalid type: object, expected a list",
            ),
        ] {
            let err = PluginConfig::parse(text.as_bytes()).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (code, msg), "{text}");
        }
    }
}
