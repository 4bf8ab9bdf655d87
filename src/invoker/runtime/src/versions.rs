//! The verb VERSION: the versions of the specification that a plugin supports.

use std::path::{Path, PathBuf};

use serde_json::Value;

use cnimble_cni::{self as cni, Code, Verb, Version, json};

use super::error::PluginError;
use super::exec::{Exec, Parameters, first_line};

/// The answer of a plugin to VERSION. The versions are texts, because this library may not know them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versions {
    /// All versions that it supports.
    pub supported: Vec<String>,
}

impl Versions {
    /// Returns whether the plugin supports `version`.
    pub fn has(&self, version: Version) -> bool {
        self.supported.iter().any(|text| text == version.as_str())
    }
}

/// Runs VERSION of the plugin in `file`. A plugin from before that verb existed refuses it, and supports 0.1.0.
pub(crate) async fn versions(exec: &Exec, file: &Path, path: &[PathBuf]) -> Result<Versions, PluginError> {
    // The specification requires no parameters, but plugins on old skeletons do. libcni gives the same values.
    let parameters = Parameters {
        verb: Verb::Version,
        container_id: "",
        netns: "dummy",
        ifname: "dummy",
        args: &[],
        env: &[],
        path,
    };
    let question = format!("{{\"cniVersion\":\"{}\"}}", Version::LATEST);
    let answer = match exec.run(file, &parameters, question.as_bytes()).await {
        Err(PluginError::Refused { error, .. }) if error.msg == "unknown CNI_COMMAND: VERSION" => {
            return Ok(Versions { supported: vec![Version::V0_1_0.to_string()] });
        }
        outcome => outcome?,
    };
    parse(&answer).map_err(|reason| PluginError::BadOutput {
        path: file.to_owned(),
        reason,
        output: first_line(&answer),
    })
}

/// Reads the answer to VERSION. Fails if it is not JSON, or names no versions.
fn parse(answer: &[u8]) -> Result<Versions, cni::Error> {
    let value: Value = serde_json::from_slice(answer)
        .map_err(|err| cni::Error::new(Code::DECODE, format!("it is not JSON: {err}")))?;
    let own = json::get(&value, "cniVersion").and_then(Value::as_str);
    let list = json::get(&value, "supportedVersions").and_then(Value::as_array);
    let supported: Vec<String> =
        list.into_iter().flatten().filter_map(|version| version.as_str().map(str::to_owned)).collect();
    match (own, supported.as_slice()) {
        // Version 0.2.0 had VERSION, but no list of versions.
        (Some("0.2.0"), []) => Ok(Versions { supported: vec!["0.1.0".into(), "0.2.0".into()] }),
        (_, []) => Err(cni::Error::new(Code::DECODE, "it names no supportedVersions")),
        _ => Ok(Versions { supported }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_all_ages() {
        let supported = |text: &str| parse(text.as_bytes()).map(|versions| versions.supported.join(" "));
        assert_eq!(supported(r#"{"cniVersion":"0.2.0"}"#).unwrap(), "0.1.0 0.2.0");
        assert_eq!(
            supported(r#"{"cniVersion":"2.0.0","supportedVersions":["1.1.0","2.0.0"]}"#).unwrap(),
            "1.1.0 2.0.0"
        );
        for bad in ["", "hello", "[]", "{}", r#"{"cniVersion":"1.0.0","supportedVersions":[]}"#] {
            assert!(supported(bad).is_err(), "{bad}");
        }
    }
}
