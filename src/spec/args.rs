//! `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`, in any order.

use super::{Code, Error};

/// The parsed variable. Keys are case-sensitive; the last of two equal keys wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniArgs {
    pairs: Vec<(String, String)>,
}

impl CniArgs {
    /// Splits the variable. An empty text is no arguments.
    ///
    /// # Errors
    /// Code 4 for a pair without exactly one `=`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut pairs = Vec::new();
        if text.is_empty() {
            return Ok(CniArgs { pairs });
        }
        for pair in text.split(';') {
            match pair.split_once('=') {
                Some((key, value)) if !key.is_empty() && !value.contains('=') => {
                    pairs.push((key.to_owned(), value.to_owned()));
                }
                _ => {
                    return Err(Error::new(
                        Code::INVALID_ENVIRONMENT,
                        format!("CNI_ARGS: invalid pair \"{pair}\", expected KEY=VALUE"),
                    ));
                }
            }
        }
        Ok(CniArgs { pairs })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All pairs, in the order given.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// Refuses keys outside `known`, unless `IgnoreUnknown` is `1` or `true`.
    ///
    /// # Errors
    /// Code 4, naming all unknown keys; also for an `IgnoreUnknown` that is no boolean.
    pub fn allow(&self, known: &[&str]) -> Result<(), Error> {
        match self.get("IgnoreUnknown") {
            Some("1" | "true" | "True" | "TRUE") => return Ok(()),
            None | Some("0" | "false" | "False" | "FALSE" | "") => {}
            Some(other) => {
                return Err(Error::new(
                    Code::INVALID_ENVIRONMENT,
                    format!("CNI_ARGS: IgnoreUnknown must be 1, true, 0 or false, not \"{other}\""),
                ));
            }
        }
        let unknown: Vec<&str> = self
            .pairs
            .iter()
            .map(|(k, _)| k.as_str())
            .filter(|k| *k != "IgnoreUnknown" && !known.contains(k))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::INVALID_ENVIRONMENT, format!("CNI_ARGS: unknown args [{}]", unknown.join(" ")))
            .details("set IgnoreUnknown=1 to let plugins skip them"))
    }
}
