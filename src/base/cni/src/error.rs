//! The error of a plugin: a code, a message, and details (specification 1.1.0, section 5 "Error"). Codes 1 to 99 belong
//! to the specification; those from 100 on are ours and listed in [`Code`].

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::Version;

/// A CNI error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u32);

impl Code {
    /// The configuration's or a result's CNI version isn't supported (1).
    pub const INCOMPATIBLE_VERSION: Code = Code(1);
    /// A field of the configuration isn't supported; the message has key and value (2).
    pub const UNSUPPORTED_FIELD: Code = Code(2);
    /// The container is unknown or doesn't exist; the runtime need not clean up (3).
    pub const UNKNOWN_CONTAINER: Code = Code(3);
    /// An environment variable is missing or invalid; the message names it (4).
    pub const INVALID_ENVIRONMENT: Code = Code(4);
    /// Reading or writing failed: stdin, a lease file, a socket (5).
    pub const IO: Code = Code(5);
    /// Bytes that should decode did not: JSON of a configuration or result (6).
    pub const DECODE: Code = Code(6);
    /// The configuration decodes but makes no sense (7).
    pub const INVALID_CONFIG: Code = Code(7);
    /// The network namespace is wrong, for example the plugin's own (8).
    pub const INVALID_NETNS: Code = Code(8);
    /// A passing condition; the runtime should try again later (11).
    pub const TRY_AGAIN_LATER: Code = Code(11);
    /// STATUS: the plugin can't serve ADD now (50).
    pub const NOT_AVAILABLE: Code = Code(50);
    /// STATUS: as 50, and existing containers may have limited connectivity (51).
    pub const LIMITED_CONNECTIVITY: Code = Code(51);

    /// The kernel refused a request (100).
    pub const KERNEL: Code = Code(100);
    /// No address can be given: the range is full, or a requested one is taken (101).
    pub const NO_ADDRESS: Code = Code(101);
    /// Something that exists stands in the way: a link of that name, another address (102).
    pub const CONFLICT: Code = Code(102);
    /// CHECK: the state of the host is not what ADD left (103).
    pub const CHECK_FAILED: Code = Code(103);
    /// A delegate could not be run, or its answer not understood (104).
    pub const DELEGATE: Code = Code(104);
    /// Anything unclassified, including a defect in the plugin (999, as the reference).
    pub const INTERNAL: Code = Code(999);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The longest message and the longest details that are printed, in characters.
const LONGEST: usize = 8192;

/// An error as it crosses the CNI boundary. `msg` says what failed and on which object; `details` says why, and what to
/// do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The code of the specification, or one of ours from 100 on.
    pub code: Code,
    /// One line that says which step failed, on which object.
    pub msg: String,
    /// Why, and what helps. May be empty.
    pub details: String,
}

impl Error {
    /// Returns an error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// Adds `details` to the error, behind earlier details.
    #[must_use]
    pub fn details(mut self, details: impl AsRef<str>) -> Self {
        let details = details.as_ref();
        if self.details.is_empty() {
            self.details = details.to_owned();
        } else if !details.is_empty() {
            self.details.push_str("; ");
            self.details.push_str(details);
        }
        self
    }

    /// Gives the error another code.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// Puts what was being done in front of the message: `what: msg`.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.msg = format!("{what}: {}", self.msg);
        self
    }

    /// Returns an error with code 7 and this message.
    pub fn config(msg: impl Into<String>) -> Self {
        Error::new(Code::INVALID_CONFIG, msg)
    }

    /// Returns an error with code 103 and this message.
    pub fn check(msg: impl Into<String>) -> Self {
        Error::new(Code::CHECK_FAILED, msg)
    }

    /// Returns an error with code 5 for a failed file operation on `path`. `what` is a verb such as `read`.
    pub fn io(what: impl fmt::Display, path: &std::path::Path, err: &std::io::Error) -> Self {
        Error::new(Code::IO, format!("{what} {}: {err}", path.display()))
    }

    /// Returns the JSON for stdout. Unlike the Go library's it has `cniVersion`, as the specification asks.
    pub fn to_json(&self, version: Version) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Form<'a> {
            cni_version: &'static str,
            code: u32,
            msg: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            details: &'a str,
        }
        super::json::to_pretty(&Form {
            cni_version: version.as_str(),
            code: self.code.0,
            msg: &short(&self.msg),
            details: &short(&self.details),
        })
    }

    /// Reads an error that a plugin printed. Returns `None` if `bytes` are none.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let value = super::json::parse(bytes, "error").ok()?;
        let code = super::json::get(&value, "code")?.as_u64()?;
        let code = Code(u32::try_from(code).ok()?);
        Some(Error { code, msg: read_text(&value, "msg"), details: read_text(&value, "details") })
    }
}

/// Returns the text of a key. Returns an empty one if it is missing or no text.
fn read_text(value: &Value, key: &str) -> String {
    super::json::get(value, key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Cuts a text from outside to a length that a person may read.
fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_add_up_and_context_goes_in_front() {
        let err = Error::config("bad key").details("").details("first").details("second").details("");
        assert_eq!(err.details, "first; second");
        assert_eq!(err.context("reading").to_string(), "reading: bad key; first; second");
        assert_eq!(Code::NO_ADDRESS.to_string(), "101");
    }

    #[test]
    fn an_error_survives_the_way_through_stdout() {
        for err in [
            Error::new(Code::NO_ADDRESS, "range is full").details("10.0.0.0/24"),
            Error::new(Code(4_294_967_295), "<\u{2028}>"),
        ] {
            for version in Version::ALL {
                assert_eq!(Error::from_json(err.to_json(*version).as_bytes()), Some(err.clone()));
            }
        }
    }

    #[test]
    fn reads_errors_of_others_and_nothing_else() {
        let err = Error::from_json(br#" {"Code": 7, "Msg": "m", "more": 1} "#).unwrap();
        assert_eq!(err, Error::config("m"));
        for text in
            ["", "{}", "[]", "7", "not json", r#"{"code":"7"}"#, r#"{"code":-1}"#, r#"{"code":4294967296}"#]
        {
            assert_eq!(Error::from_json(text.as_bytes()), None, "{text}");
        }
    }
}
