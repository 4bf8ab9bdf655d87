//! The seven versions of the protocol, and how two sides agree on one.

use std::fmt;

use super::{Code, Error};

/// A released version of the CNI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// Version 0.1.0 of the specification.
    V0_1_0,
    /// Version 0.2.0, which adds VERSION.
    V0_2_0,
    /// 0.3.0: interfaces, several addresses.
    V0_3_0,
    /// Version 0.3.1 of the specification.
    V0_3_1,
    /// 0.4.0: CHECK, prevResult for DEL.
    V0_4_0,
    /// 1.0.0: no `version` in `ips`, and lists only.
    V1_0_0,
    /// 1.1.0 adds GC, STATUS, route options, and three keys of interfaces.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: &'static [Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest known version.
    pub const LATEST: Version = Version::V1_1_0;

    /// `"1.1.0"` and so on.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Reads a version. An empty text means 0.1.0, as in the reference: configurations from before `cniVersion` existed
    /// have none.
    ///
    /// # Errors
    /// Code 1 if it is none of the seven.
    pub fn parse(text: &str) -> Result<Version, Error> {
        if text.is_empty() {
            return Ok(Version::V0_1_0);
        }
        Version::ALL
            .iter()
            .copied()
            .find(|v| v.as_str() == text)
            .ok_or_else(|| Version::incompatible(text, Version::ALL))
    }

    /// Returns the error with code 1 that names the version in a configuration and the supported ones.
    pub fn incompatible(asked: &str, supported: &[Version]) -> Error {
        let list: Vec<&str> = supported.iter().map(|v| v.as_str()).collect();
        Error::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
            .details(format!("config is \"{asked}\", plugin supports [{}]", list.join(" ")))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_exactly_the_seven() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Ok(*version));
        }
        assert_eq!(Version::parse(""), Ok(Version::V0_1_0));
        assert!(Version::ALL.is_sorted());
        assert_eq!(Version::ALL.last(), Some(&Version::LATEST));
        for text in ["1", "1.1", "1.1.0 ", "v1.1.0", "1.01.0", "1.2.0", "0.3.2", "x"] {
            let err = Version::parse(text).unwrap_err();
            assert_eq!(err.code, Code::INCOMPATIBLE_VERSION, "{text}");
            assert_eq!(err.msg, "incompatible CNI versions");
            assert!(err.details.contains(&format!("\"{text}\"")), "{}", err.details);
        }
    }
}
