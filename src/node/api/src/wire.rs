//! The data around objects: pages of lists, and events of watches.

use std::borrow::Cow;

use serde::Deserialize;

use crate::{Error, tame};

/// A page of a list, without its items.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Envelope {
    pub(crate) metadata: EnvelopeMeta,
    #[cfg_attr(not(test), allow(dead_code, reason = "a page whose items are no list is refused"))]
    pub(crate) items: Option<Vec<serde::de::IgnoredAny>>,
}

/// The metadata of a list.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EnvelopeMeta {
    pub(crate) resource_version: Option<String>,
    /// The token for the next page. It is `None` or empty on the last one.
    #[serde(rename = "continue")]
    pub(crate) token: Option<String>,
}

/// The Status in an event of the type ERROR.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    code: Option<u16>,
    reason: Option<String>,
    message: Option<String>,
}

/// An event of a watch. The type decides how its object is parsed.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    object: Option<&'a serde_json::value::RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Versioned<'a> {
    #[serde(borrow)]
    metadata: Version<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Version<'a> {
    #[serde(borrow)]
    resource_version: Option<Cow<'a, str>>,
}

/// The meaning of a watch's event.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A bookmark or an empty line. Only the version may have changed.
    Nothing,
    /// An object is new or has changed.
    Put(&'a str),
    /// An object was deleted. This is its last JSON.
    Drop(&'a str),
    /// The server has forgotten the version. The collection must be listed again.
    Gone,
}

/// Reads a line of a watch, and updates `version`. `url` is for the error. If the server reports a failure of the
/// watch, this sets `version` to `None`, because the watch cannot be resumed.
///
/// # Errors
/// Fails for such a failure, and for a line that is no known event.
pub fn notice<'a>(url: &str, line: &'a [u8], version: &mut Option<String>) -> Result<Notice<'a>, Error> {
    if line.trim_ascii().is_empty() {
        return Ok(Notice::Nothing);
    }
    let event: Event<'_> = serde_json::from_slice(line)
        .map_err(|err| answer_error(url, &format!("an event that is no JSON: {err}")))?;
    let object = event.object.map_or("{}", serde_json::value::RawValue::get);
    let notice = match &*event.kind {
        "BOOKMARK" => Notice::Nothing,
        "ADDED" | "MODIFIED" => Notice::Put(object),
        "DELETED" => Notice::Drop(object),
        "ERROR" => {
            let status: Status = serde_json::from_str(object).unwrap_or_default();
            let reason = status.reason.unwrap_or_default();
            if status.code == Some(410) || matches!(reason.as_str(), "Expired" | "Gone") {
                return Ok(Notice::Gone);
            }
            *version = None;
            return Err(Error::Watch {
                url: url.to_owned(),
                code: status.code.unwrap_or(0),
                message: tame(&status.message.unwrap_or(reason)),
            });
        }
        other => {
            return Err(answer_error(url, &format!("an event of type \"{}\"", other.escape_debug())));
        }
    };
    let seen: Versioned<'_> = serde_json::from_str(object).unwrap_or_default();
    if let Some(seen) = seen.metadata.resource_version {
        *version = Some(seen.into_owned());
    }
    Ok(notice)
}

fn answer_error(url: &str, reason: &str) -> Error {
    Error::Answer { url: url.to_owned(), reason: tame(reason) }
}
