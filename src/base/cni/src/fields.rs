//! Readers of single values of a configuration, for serde's `deserialize_with`. The struct of a plugin's configuration
//! names the form of each value, and an error has the path to the bad value.
//!
//! ```
//! # use cnimble_cni::{fields, json};
//! # use ipnetwork::IpNetwork;
//! # use std::net::IpAddr;
//! #[derive(serde::Deserialize)]
//! struct Range {
//!     #[serde(deserialize_with = "fields::cidr")]
//!     subnet: IpNetwork,
//!     #[serde(default, deserialize_with = "fields::ip_opt")]
//!     gateway: Option<IpAddr>,
//! }
//! # let value = serde_json::json!([{ "subnet": "10.1.2.3" }]);
//! let err = json::from_value::<Vec<Range>>(&value, "ipam.ranges").err().unwrap();
//! assert_eq!(err.msg, "ipam.ranges[0].subnet: invalid CIDR address: 10.1.2.3");
//! ```
//!
//! The `_opt` forms take an empty text for absent, which runtimes send (`hostIP: ""`, `resolvConf: ""`). Go with
//! `#[serde(default)]`, so that the key may also be missing.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::Value;

use super::cidr;

/// A text of a configuration for an error, escaped and shortened.
pub(crate) fn shown(text: &str) -> String {
    const LIMIT: usize = 80;
    let mut shown: String = text.chars().take(LIMIT).flat_map(char::escape_debug).collect();
    if text.chars().nth(LIMIT).is_some() {
        shown.push('…');
    }
    shown
}

fn bad<E: de::Error>(what: &str, text: &str) -> E {
    E::custom(format_args!("invalid {what}: {}", shown(text)))
}

struct Cidr(IpNetwork);

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        cidr(deserializer).map(Cidr)
    }
}

struct Ip(IpAddr);

impl<'de> Deserialize<'de> for Ip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ip(deserializer).map(Ip)
    }
}

/// A network with its prefix length; host bits are kept.
///
/// # Errors
/// `invalid CIDR address: …`
pub fn cidr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNetwork, D::Error> {
    let text = String::deserialize(deserializer)?;
    cidr::parse_cidr(&text).ok_or_else(|| bad("CIDR address", &text))
}

/// A network, or nothing.
///
/// # Errors
/// `invalid CIDR address: …`
pub fn cidr_opt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNetwork>, D::Error> {
    let text = text_opt(deserializer)?;
    text.map(|text| cidr::parse_cidr(&text).ok_or_else(|| bad("CIDR address", &text))).transpose()
}

/// A list of networks.
///
/// # Errors
/// `invalid CIDR address: …`
pub fn cidrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNetwork>, D::Error> {
    let list = Vec::<Cidr>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|Cidr(net)| net).collect())
}

/// Reads an IP address.
///
/// # Errors
/// `invalid IP address: …`
pub fn ip<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    cidr::parse_ip(&text).ok_or_else(|| bad("IP address", &text))
}

/// An address, or nothing.
///
/// # Errors
/// `invalid IP address: …`
pub fn ip_opt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = text_opt(deserializer)?;
    text.map(|text| cidr::parse_ip(&text).ok_or_else(|| bad("IP address", &text))).transpose()
}

/// A list of addresses.
///
/// # Errors
/// `invalid IP address: …`
pub fn ips<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let list = Vec::<Ip>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|Ip(ip)| ip).collect())
}

/// One address, or a list of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(pub Vec<IpAddr>);

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = match Value::deserialize(deserializer)? {
            one @ Value::String(_) => Value::Array(vec![one]),
            list => list,
        };
        ips(list).map(Addresses).map_err(de::Error::custom)
    }
}

/// A text, or nothing if it is empty.
///
/// # Errors
/// If it is no text.
pub fn text_opt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// A number where 0 stands for "not set", as in the reference (`mtu`, `priority`, …).
///
/// # Errors
/// If it is no number from 0 to 4294967295.
pub fn nonzero_opt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = Option::<u32>::deserialize(deserializer)?;
    Ok(number.filter(|number| *number != 0))
}

/// A boolean, or one of the texts `true` and `false` in any case (specification 1.1.0, section 1: runtimes must take
/// both for the flags of a network list).
///
/// # Errors
/// If it is neither.
pub fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Flag;
    impl Visitor<'_> for Flag {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false")
        }
        fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
            if text.eq_ignore_ascii_case("true") {
                Ok(true)
            } else if text.eq_ignore_ascii_case("false") {
                Ok(false)
            } else {
                Err(de::Error::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
    }
    deserializer.deserialize_any(Flag)
}

/// `ipnetwork`'s own serde support would bring its lenient parser along.
pub(super) fn display<T: fmt::Display, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// An address that a runtime asks for: the prefix length may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RequestedIp {
    /// The IP address.
    pub ip: IpAddr,
    /// The prefix length of the address, if it is given.
    pub prefix: Option<u8>,
}

impl<'de> Deserialize<'de> for RequestedIp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (ip, prefix) = cidr::parse_ip_or_cidr(&text).ok_or_else(|| bad("IP address", &text))?;
        Ok(RequestedIp { ip, prefix })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::from_value;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct All {
        #[serde(deserialize_with = "cidr_opt")]
        net: Option<IpNetwork>,
        #[serde(deserialize_with = "cidrs")]
        nets: Vec<IpNetwork>,
        #[serde(deserialize_with = "ip_opt")]
        ip: Option<IpAddr>,
        #[serde(deserialize_with = "ips")]
        ips: Vec<IpAddr>,
        #[serde(deserialize_with = "text_opt")]
        text: Option<String>,
        #[serde(deserialize_with = "nonzero_opt")]
        mtu: Option<u32>,
        #[serde(deserialize_with = "flag")]
        flag: bool,
        wanted: Vec<RequestedIp>,
    }

    fn read(value: &Value) -> All {
        from_value(value, "").unwrap()
    }

    fn message(value: &Value) -> String {
        from_value::<All>(value, "").unwrap_err().msg
    }

    #[test]
    fn empty_null_and_missing_are_the_same() {
        let absent = All::default();
        assert_eq!(read(&json!({})), absent);
        assert_eq!(
            read(&json!({ "net": "", "nets": [], "ip": "", "ips": [], "text": "", "mtu": 0, "wanted": [] })),
            absent
        );
        assert_eq!(
            read(&json!({
                "net": null, "nets": null, "ip": null, "ips": null,
                "text": null, "mtu": null, "flag": null, "wanted": null
            })),
            absent
        );
    }

    #[test]
    fn reads_values() {
        let all = read(&json!({
            "net": "10.1.2.3/24", "nets": ["fd00::/64"], "ip": "10.0.0.1", "ips": ["::1"],
            "text": "x", "mtu": 1500, "flag": "TRUE", "wanted": ["10.0.0.1", "10.0.0.1/8"]
        }));
        assert_eq!(all.net.unwrap().to_string(), "10.1.2.3/24");
        assert_eq!(all.nets[0].to_string(), "fd00::/64");
        assert_eq!(all.ip.unwrap().to_string(), "10.0.0.1");
        assert_eq!(all.ips[0].to_string(), "::1");
        assert_eq!((all.text.as_deref(), all.mtu, all.flag), (Some("x"), Some(1500), true));
        for (written, on) in
            [(json!(true), true), (json!(false), false), (json!("False"), false), (json!("true"), true)]
        {
            assert_eq!(read(&json!({ "flag": written })).flag, on, "{written}");
        }
        assert_eq!(all.wanted.iter().map(|wanted| wanted.prefix).collect::<Vec<_>>(), [None, Some(8)]);
    }

    #[test]
    fn errors_name_the_place_and_the_value() {
        for (value, expected) in [
            (json!({ "net": "10.1.2.3" }), "net: invalid CIDR address: 10.1.2.3"),
            (json!({ "nets": ["10.0.0.0/8", "x/8"] }), "nets[1]: invalid CIDR address: x/8"),
            (json!({ "ip": "10.1.2.3/8" }), "ip: invalid IP address: 10.1.2.3/8"),
            (json!({ "ips": ["::1", ""] }), "ips[1]: invalid IP address: "),
            (json!({ "ips": [null] }), "ips[0]: invalid type: null, expected a string"),
            (json!({ "ips": "::1" }), "ips: invalid type: string \"::1\", expected a list"),
            (json!({ "text": 5 }), "text: invalid type: integer `5`, expected a string"),
            (json!({ "mtu": -1 }), "mtu: invalid value: integer `-1`, expected u32"),
            (json!({ "mtu": 1500.0 }), "mtu: invalid type: floating point `1500.0`, expected u32"),
            (json!({ "mtu": "1500" }), "mtu: invalid type: string \"1500\", expected u32"),
            (json!({ "flag": "yes" }), "flag: invalid value: string \"yes\", expected true or false"),
            (json!({ "flag": 1 }), "flag: invalid type: integer `1`, expected true or false"),
            (json!({ "wanted": ["10.0.0.1/99"] }), "wanted[0]: invalid IP address: 10.0.0.1/99"),
            (json!({ "net": "a\n\u{1b}b" }), "net: invalid CIDR address: a\\n\\u{1b}b"),
        ] {
            assert_eq!(message(&value), expected);
        }
        assert!(message(&json!({ "net": "9".repeat(100_000) })).len() < 200);
    }
}
