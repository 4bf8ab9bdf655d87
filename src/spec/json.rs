//! JSON as the reference reads and writes it.
//!
//! *Reading*: Go matches keys without regard to case, takes `null` for "not there", and
//! ignores what it doesn't know; containerd leans on the first (`HostPort`). serde does
//! none of it, so [`from_value`] puts a small deserializer in between. Where an object
//! has two spellings of a key, the exact one wins. Errors carry the path to the value.
//!
//! *Writing*: four spaces of indent, no newline at the end, `<`, `>` and `&` escaped as
//! Go's `encoding/json` does.

use serde::Serialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use super::{Code, Error};

/// Reads a JSON document.
///
/// # Errors
/// Code 6 with line and column. Nesting deeper than 128 levels and numbers beyond an f64
/// are refused, too.
pub fn parse(bytes: &[u8], what: &str) -> Result<Value, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::new(Code::DECODE, format!("{what} is empty")));
    }
    serde_json::from_slice(bytes)
        .map_err(|err| Error::new(Code::DECODE, format!("{what} is not valid JSON: {err}")))
}

/// Reads a JSON document that has to be an object.
///
/// # Errors
/// As [`parse`]; code 6 also if it is something else.
pub fn parse_object(bytes: &[u8], what: &str) -> Result<Value, Error> {
    let value = parse(bytes, what)?;
    if value.is_object() {
        return Ok(value);
    }
    let err: serde_json::Error = de::Error::invalid_type(unexpected(&value), &"an object");
    Err(Error::new(Code::DECODE, format!("{what}: {err}")))
}

/// Reads `T` out of `value`; `prefix` is the path to `value` for error texts (may be empty).
///
/// Structs must be plain ones: `#[serde(flatten)]` hides the names of the keys from the
/// deserializer, which then can't match them without regard to case.
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

/// The member of an object under `key`, in any case; the exact spelling wins unless it is
/// `null` and another is not.
pub fn get<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    member(value.as_object()?, key, |_| false)
}

/// [`get`] on a map; other spellings that are `taken` (keys of their own) don't count.
fn member<'a>(map: &'a Map<String, Value>, key: &str, taken: impl Fn(&str) -> bool) -> Option<&'a Value> {
    let exact = map.get(key);
    if exact.is_some_and(|value| !value.is_null()) {
        return exact;
    }
    let mut others = map
        .iter()
        .filter(|(other, _)| *other != key && other.eq_ignore_ascii_case(key) && !taken(other))
        .map(|(_, value)| value);
    let first = others.next();
    first.into_iter().chain(others).find(|value| !value.is_null()).or(exact).or(first)
}

struct CaseBlind<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for CaseBlind<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

/// Forwards to `deserialize_any`, but says "list" and "object" where serde says "sequence"
/// and "map".
macro_rules! scalars {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            match self.0 {
                Value::Array(_) | Value::Object(_) => {
                    Err(de::Error::invalid_type(unexpected(self.0), &visitor))
                }
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for CaseBlind<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(CaseBlind))),
            Value::Object(map) => {
                visitor.visit_map(MapDeserializer::new(map.iter().map(|(k, v)| (k.as_str(), CaseBlind(v)))))
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Null => visitor.visit_seq(SeqDeserializer::new(std::iter::empty::<CaseBlind<'de>>())),
            Value::Array(_) => self.deserialize_any(visitor),
            other => Err(de::Error::invalid_type(unexpected(other), &"a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Null => visitor.visit_map(MapDeserializer::new(no_entries())),
            Value::Object(map) => visitor.visit_map(MapDeserializer::new(
                map.iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key.as_str(), CaseBlind(value))),
            )),
            other => Err(de::Error::invalid_type(unexpected(other), &"an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let map = match self.0 {
            Value::Object(map) => map,
            Value::Null => return visitor.visit_map(MapDeserializer::new(no_entries())),
            // A sequence would be taken for a struct's fields in order; Go refuses it.
            other => return Err(de::Error::invalid_type(unexpected(other), &"an object")),
        };
        let known = fields.iter().filter_map(|field| {
            let value = member(map, field, |other| fields.contains(&other))?;
            (!value.is_null()).then_some((*field, CaseBlind(value)))
        });
        visitor.visit_map(MapDeserializer::new(known))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    scalars! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64 deserialize_str
        deserialize_string
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

fn no_entries<'de>() -> std::iter::Empty<(&'de str, CaseBlind<'de>)> {
    std::iter::empty()
}

fn unexpected(value: &Value) -> de::Unexpected<'_> {
    match value {
        Value::Null => de::Unexpected::Unit,
        Value::Bool(b) => de::Unexpected::Bool(*b),
        Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), ..) => de::Unexpected::Unsigned(n),
            (_, Some(n), _) => de::Unexpected::Signed(n),
            (.., Some(n)) => de::Unexpected::Float(n),
            _ => de::Unexpected::Other("number"),
        },
        Value::String(s) => de::Unexpected::Str(s),
        Value::Array(_) => de::Unexpected::Other("list"),
        Value::Object(_) => de::Unexpected::Other("object"),
    }
}

/// Four-space JSON as Go's `json.MarshalIndent(v, "", "    ")` writes it. A struct's keys
/// come in the order of its fields, a [`Value`]'s sorted.
pub fn to_pretty<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing into memory can't fail; an empty text would be the visible sign.
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    go_escapes(String::from_utf8(out).unwrap_or_default())
}

/// The escapes that Go writes for the sake of HTML.
fn go_escapes(text: String) -> String {
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    // Outside strings none of these can occur, so a plain replacement is exact.
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Mapping {
        host_port: u16,
        #[serde(rename = "hostIP")]
        host_ip: String,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Config {
        vlan: u16,
        port_mappings: Vec<Mapping>,
        nested: Option<Mapping>,
        by_name: HashMap<String, Mapping>,
        pools: Vec<Vec<Mapping>>,
        choice: Choice,
        #[serde(alias = "name2")]
        name: Option<String>,
        on: bool,
        any: Option<Value>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Choice {
        #[default]
        Auto,
        Nftables,
    }

    fn read(value: &Value) -> Config {
        from_value(value, "").unwrap()
    }

    fn message(value: &Value) -> String {
        let err = from_value::<Config>(value, "").unwrap_err();
        assert_eq!(err.code, Code::INVALID_CONFIG);
        err.msg
    }

    fn mapping(host_port: u16, host_ip: &str) -> Mapping {
        Mapping { host_port, host_ip: host_ip.into() }
    }

    #[test]
    fn keys_match_in_any_case_at_every_depth() {
        let config = read(&json!({
            "VLAN": 5,
            "PortMappings": [{ "HostPort": 80, "HostIP": "10.0.0.1" }, { "hostport": 81 }],
            "NESTED": { "HOSTIP": "x" },
            "byname": { "Key": { "HostPort": 1 } },
            "Pools": [[{ "HostPort": 2 }], []],
            "Name2": "n",
        }));
        assert_eq!(config.vlan, 5);
        assert_eq!(config.port_mappings, [mapping(80, "10.0.0.1"), mapping(81, "")]);
        assert_eq!(config.nested, Some(mapping(0, "x")));
        // Keys of a map are data: they stay as they are.
        assert_eq!(config.by_name["Key"], mapping(1, ""));
        assert_eq!(config.pools, [vec![mapping(2, "")], vec![]]);
        assert_eq!(config.name.as_deref(), Some("n"));
    }

    #[test]
    fn the_exact_spelling_wins_unless_it_is_null() {
        for (value, vlan) in [
            (json!({ "VLAN": 1, "vlan": 2, "Vlan": 3 }), 2),
            (json!({ "vlan": null, "Vlan": 3 }), 3),
            (json!({ "Vlan": null, "vlAN": 4 }), 4),
            (json!({ "Vlan": null, "vlan": null }), 0),
        ] {
            assert_eq!(read(&value).vlan, vlan, "{value}");
        }
        let value = json!({ "B": null, "a": null, "A": 1, "b": null });
        assert_eq!(get(&value, "a"), Some(&json!(1)));
        assert_eq!(get(&value, "b"), Some(&Value::Null));
        assert_eq!(get(&value, "c"), None);
        assert_eq!(get(&json!([1]), "a"), None);
    }

    #[test]
    fn a_key_that_differs_only_in_case_from_another_field_is_not_taken_for_it() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Twins {
            #[serde(default)]
            mac: String,
            #[serde(default, rename = "MAC")]
            upper: String,
        }
        let twins: Twins = from_value(&json!({ "MAC": "x" }), "").unwrap();
        assert_eq!((twins.mac.as_str(), twins.upper.as_str()), ("", "x"));
    }

    #[test]
    fn null_is_absent_and_unknown_keys_are_ignored() {
        let value = json!({
            "vlan": null, "portMappings": null, "nested": null, "byName": null, "pools": null,
            "choice": null, "name": null, "on": null, "any": null,
            "unknown": { "deep": [1, { "x": null }] }, "": 1,
        });
        assert_eq!(read(&value), Config::default());
        // As elements: a list or an object is empty, a key of a map is not there.
        let value = json!({ "pools": [null], "portMappings": [null], "byName": { "x": null } });
        let config = read(&value);
        assert_eq!(config.pools, [vec![]]);
        assert_eq!(config.port_mappings, [Mapping::default()]);
        assert!(config.by_name.is_empty());
        assert_eq!(from_value::<Config>(&Value::Null, "").unwrap(), Config::default());
    }

    #[test]
    fn errors_have_the_exact_path_and_a_plain_sentence() {
        for (value, expected) in [
            (json!({ "vlan": "x" }), "vlan: invalid type: string \"x\", expected u16"),
            (json!({ "VLAN": 70000 }), "vlan: invalid value: integer `70000`, expected u16"),
            (json!({ "vlan": -1 }), "vlan: invalid value: integer `-1`, expected u16"),
            (json!({ "vlan": 1.0 }), "vlan: invalid type: floating point `1.0`, expected u16"),
            (json!({ "vlan": 1e30 }), "vlan: invalid type: floating point `1e+30`, expected u16"),
            (json!({ "vlan": true }), "vlan: invalid type: boolean `true`, expected u16"),
            (json!({ "vlan": [1] }), "vlan: invalid type: list, expected u16"),
            (json!({ "vlan": {} }), "vlan: invalid type: object, expected u16"),
            (json!({ "nested": [80, "x"] }), "nested: invalid type: list, expected an object"),
            (json!({ "portMappings": {} }), "portMappings: invalid type: object, expected a list"),
            (
                json!({ "portMappings": [{}, { "HostPort": "80" }] }),
                "portMappings[1].hostPort: invalid type: string \"80\", expected u16",
            ),
            (
                json!({ "pools": [[], [{}, { "hostIP": 1 }]] }),
                "pools[1][1].hostIP: invalid type: integer `1`, expected a string",
            ),
            (
                json!({ "byName": { "a": { "hostIP": [] } } }),
                "byName.a.hostIP: invalid type: list, expected a string",
            ),
            (json!({ "byName": 1 }), "byName: invalid type: integer `1`, expected an object"),
            (
                json!({ "choice": "firewalld" }),
                "choice: unknown variant `firewalld`, expected `auto` or `nftables`",
            ),
            (json!({ "on": "true" }), "on: invalid type: string \"true\", expected a boolean"),
            (json!("text"), "invalid type: string \"text\", expected an object"),
        ] {
            assert_eq!(message(&value), expected);
        }
    }

    #[test]
    fn the_prefix_joins_the_path() {
        let msg = |value: Value| from_value::<Vec<Mapping>>(&value, "a.b").unwrap_err().msg;
        assert_eq!(
            msg(json!([{ "hostPort": "x" }])),
            "a.b[0].hostPort: invalid type: string \"x\", expected u16"
        );
        assert_eq!(msg(json!(1)), "a.b: invalid type: integer `1`, expected a list");
        let err = from_value::<Mapping>(&json!({ "hostIP": 1 }), "a").unwrap_err();
        assert_eq!(err.msg, "a.hostIP: invalid type: integer `1`, expected a string");
    }

    #[test]
    fn hostile_documents_are_errors() {
        let deep = |open: &str, close: &str, n: usize| (open.repeat(n) + &close.repeat(n)).into_bytes();
        for bytes in [
            b"".to_vec(),
            b" \n".to_vec(),
            b"{".to_vec(),
            b"{} x".to_vec(),
            b"{\"a\":1,}".to_vec(),
            b"{'a':1}".to_vec(),
            b"\xef\xbb\xbf{}".to_vec(),
            b"{\"a\":\"\xff\"}".to_vec(),
            b"{\"a\":\"\\ud800\"}".to_vec(),
            b"{\"a\":1e999}".to_vec(),
            b"{\"a\":NaN}".to_vec(),
            b"{\"a\":01}".to_vec(),
            b"\0".to_vec(),
            deep("[", "]", 100_000),
            deep("{\"a\":", "}", 100_000),
        ] {
            let err = parse(&bytes, "configuration").unwrap_err();
            assert_eq!(err.code, Code::DECODE);
            assert!(err.msg.starts_with("configuration is "), "{}", err.msg);
        }
        let err = parse(b"{\n  \"a\": x\n}", "configuration").unwrap_err();
        assert_eq!(err.msg, "configuration is not valid JSON: expected value at line 2 column 8");
        for text in ["[]", "null", "1", "\"x\"", "true"] {
            assert_eq!(
                parse_object(text.as_bytes(), "configuration").unwrap_err().code,
                Code::DECODE,
                "{text}"
            );
        }
        // Of equal keys the last counts, as in Go; a number beyond 64 bits is a float.
        let twice = parse(b"{\"vlan\":\"x\",\"vlan\":7}", "configuration").unwrap();
        assert_eq!(read(&twice).vlan, 7);
        let huge = parse(b"{\"vlan\":99999999999999999999999}", "configuration").unwrap();
        assert_eq!(message(&huge), "vlan: invalid type: floating point `1e+23`, expected u16");
    }

    #[test]
    fn writes_like_go() {
        assert_eq!(
            to_pretty(&json!({ "b": [], "a": { "<&>": "\u{2028}\u{2029}\u{7f}é\t\u{1}\"\\/" }, "c": {} })),
            "{\n    \"a\": {\n        \"\\u003c\\u0026\\u003e\": \"\\u2028\\u2029\u{7f}é\\t\\u0001\\\"\\\\/\"\n    },\n    \"b\": [],\n    \"c\": {}\n}"
        );
    }
}
