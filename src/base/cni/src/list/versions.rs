//! Which version to speak with a list's plugins. Since 1.1.0 `cniVersions` names all versions of the plugins, and a
//! runtime takes the highest that it knows. `cniVersion` counts as one more.

use serde::Deserialize;

use crate::{Error, Version, fields};

/// The keys that say which version to speak.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Versions {
    #[serde(deserialize_with = "fields::text_opt")]
    cni_version: Option<String>,
    cni_versions: Option<Vec<String>>,
}

/// Returns the highest version that we know, of those that the list names. It may also name newer ones, for other
/// runtimes. Fails with code 1 if we know none of them, and with code 7 for a text that is no version.
pub(super) fn choose(versions: Versions) -> Result<Version, Error> {
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
