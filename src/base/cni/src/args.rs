//! `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`, in any order.

use super::{Code, Error};

/// The parsed variable. Keys are case-sensitive; the last of two equal keys wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniArgs {
    pairs: Vec<(String, String)>,
}

impl CniArgs {
    /// Splits the variable. An empty text has no arguments.
    ///
    /// # Errors
    /// Fails with code 4 for a pair without exactly one `=`.
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

    /// Returns the value of `key`.
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
    /// Fails with code 4 and the names of all unknown keys. Also fails so if `IgnoreUnknown` is no boolean.
    pub fn allow(&self, known: &[&str]) -> Result<(), Error> {
        match self.get("IgnoreUnknown") {
            None | Some("0" | "") => {}
            Some("1") => return Ok(()),
            Some(text) if text.eq_ignore_ascii_case("true") => return Ok(()),
            Some(text) if text.eq_ignore_ascii_case("false") => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pairs_in_any_order() {
        let args = CniArgs::parse("K8S_POD_NAME=a;IgnoreUnknown=1;IP=10.0.0.1/24;MAC=;IP=10.0.0.2").unwrap();
        assert_eq!(args.get("IP"), Some("10.0.0.2"));
        assert_eq!(args.get("MAC"), Some(""));
        assert_eq!(args.get("ip"), None);
        assert_eq!(args.pairs().len(), 5);
        assert_eq!(CniArgs::parse("").unwrap(), CniArgs::default());
    }

    #[test]
    fn refuses_what_is_no_pair() {
        for text in ["IP", "IP=1=2", "=1", ";", "IP=1;", "IP=1;;MAC=2", " "] {
            let err = CniArgs::parse(text).unwrap_err();
            assert_eq!(err.code, Code::INVALID_ENVIRONMENT, "{text}");
            assert!(err.msg.starts_with("CNI_ARGS: invalid pair"), "{}", err.msg);
        }
    }

    #[test]
    fn unknown_keys_need_permission() {
        let allowed = |text: &str| CniArgs::parse(text).unwrap().allow(&["IP"]).map_err(|err| err.msg);
        for text in ["", "IP=1", "IP=1;IgnoreUnknown=0", "X=1;IgnoreUnknown=1", "IgnoreUnknown=tRuE;X=1"] {
            assert_eq!(allowed(text), Ok(()), "{text}");
        }
        assert_eq!(allowed("X=1;IP=2;Y=3"), Err("CNI_ARGS: unknown args [X Y]".into()));
        assert_eq!(allowed("X=1;IgnoreUnknown=false"), Err("CNI_ARGS: unknown args [X]".into()));
        assert_eq!(
            allowed("IgnoreUnknown=yes"),
            Err("CNI_ARGS: IgnoreUnknown must be 1, true, 0 or false, not \"yes\"".into())
        );
    }
}
