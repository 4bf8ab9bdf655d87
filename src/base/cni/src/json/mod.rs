//! JSON as the reference reads and writes it.
//!
//! *Reading*: Go matches keys without regard to case, takes `null` for an absent key, and ignores unknown keys.
//! containerd relies on the first (`HostPort`). [`from_value`] does the same (`case_blind`). Of two spellings of a key,
//! the exact one wins. Errors carry the path to the value. A document's values have a bound in memory (`bounded`).
//!
//! *Writing*: four spaces of indent, no newline at the end, `<`, `>` and `&` escaped as Go's `encoding/json` does.

mod bounded;
mod case_blind;
#[cfg(test)]
mod tests;
mod write;

use std::cell::Cell;

use serde::de::{self, DeserializeOwned, DeserializeSeed};
use serde_json::Value;

use super::{Code, Error};
use bounded::{BoundedReader, Budget, Find};
use case_blind::{CaseBlind, member, unexpected};

pub(super) use bounded::Lists;
pub use write::to_pretty;

/// Reads a JSON document.
///
/// # Errors
/// Code 6 with line and column. Nesting deeper than 128 levels, numbers beyond an f64, and documents that would take
/// too much memory (80 MiB, or 4 MiB of text) are refused, too.
pub fn parse(bytes: &[u8], what: &str) -> Result<Value, Error> {
    read(bytes, what, None)
}

/// Reads a JSON document that has to be an object.
///
/// # Errors
/// As [`parse`]; code 6 also if it is something else.
pub fn parse_object(bytes: &[u8], what: &str) -> Result<Value, Error> {
    object(parse(bytes, what)?, what)
}

/// `lists` gets the long lists in the object.
pub(super) fn parse_with_lists(bytes: &[u8], what: &str, lists: &dyn Lists) -> Result<Value, Error> {
    object(read(bytes, what, Some(lists))?, what)
}

fn read(bytes: &[u8], what: &str, lists: Option<&dyn Lists>) -> Result<Value, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::new(Code::DECODE, format!("{what} is empty")));
    }
    let budget = Budget::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = BoundedReader::document(&budget, lists).deserialize(&mut reader);
    value.and_then(|value| reader.end().map(|()| value)).map_err(|err| match budget.exceeded() {
        Some(bound) => Error::new(Code::DECODE, format!("{what} is too large: {bound}")),
        None => {
            let error = Error::new(Code::DECODE, format!("{what} is not valid JSON: {err}"));
            lacking(bytes, &err).map_or(error.clone(), |what| error.details(what))
        }
    })
}

/// What stands at a syntax error that JSON lacks and other formats have: a comment, a byte order mark, `True`.
pub fn lacking(bytes: &[u8], err: &serde_json::Error) -> Option<&'static str> {
    if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
        return Some("JSON has no byte order mark: save the file as UTF-8 without one");
    }
    let line = bytes.split(|byte| *byte == b'\n').nth(err.line().checked_sub(1)?)?;
    // The column is that of the byte, from 1, or of the last byte that was read.
    let column = err.column().saturating_sub(1);
    let at = line.get(column..)?;
    let starts = |words: &[&str]| words.iter().any(|word| at.starts_with(word.as_bytes()));
    if starts(&["True", "False", "TRUE", "FALSE"]) {
        Some("JSON has the words true and false, in lower case")
    } else if starts(&["None", "NULL", "Null"]) {
        Some("JSON has the word null, in lower case")
    } else if starts(&["//", "/*", "#"]) {
        Some("JSON has no comments: remove them, or write a key such as \"_comment\"")
    } else if starts(&["'"]) {
        Some("JSON has double quotes around keys and texts")
    } else {
        None
    }
}

/// Of a document that may be broken further on, or too large.
pub(super) fn text_member(bytes: &[u8], key: &str) -> Option<String> {
    let found = Cell::new(None);
    // What is wrong with it has been said by now.
    let _ = Find { key, found: &found }.deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    found.into_inner()
}

fn object(value: Value, what: &str) -> Result<Value, Error> {
    if value.is_object() {
        return Ok(value);
    }
    let err: serde_json::Error = de::Error::invalid_type(unexpected(&value), &"an object");
    Err(Error::new(Code::DECODE, format!("{what}: {err}")))
}

/// Reads `T` out of `value`; `prefix` is the path to `value` for error texts (may be empty). Structs must be plain
/// ones: `#[serde(flatten)]` hides the names of the keys, which then can't match without regard to case.
///
/// # Errors
/// Code 7 with the path: `ipam.ranges[0][1].subnet: …`.
pub fn from_value<T: DeserializeOwned>(value: &Value, prefix: &str) -> Result<T, Error> {
    serde_path_to_error::deserialize(CaseBlind(value)).map_err(|err| {
        let inner = err.path().to_string();
        let path = match inner.as_str() {
            // serde_path_to_error's way to write the root.
            "." => prefix.to_owned(),
            inner if prefix.is_empty() || inner.starts_with('[') => format!("{prefix}{inner}"),
            inner => format!("{prefix}.{inner}"),
        };
        let sentence = err.into_inner();
        Error::new(
            Code::INVALID_CONFIG,
            if path.is_empty() { sentence.to_string() } else { format!("{path}: {sentence}") },
        )
    })
}

/// The member of an object under `key`, in any case; the exact spelling wins unless it is `null` and another is not.
pub fn get<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    member(value.as_object()?, key, |_| false)
}
