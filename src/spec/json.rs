//! JSON as the reference reads and writes it.
//!
//! *Reading*: Go matches keys without regard to case, takes `null` for "not there", and
//! ignores what it doesn't know; containerd leans on the first (`HostPort`). serde does
//! none of it, so [`from_value`] puts a small deserializer in between. Where an object
//! has two spellings of a key, the exact one wins. Errors carry the path to the value.
//!
//! *Writing*: four spaces of indent, no newline at the end, `<`, `>` and `&` escaped as
//! Go's `encoding/json` does.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use super::{Code, Error};

/// Reads `T` out of `value`; `prefix` is the path to `value` for error texts (may be empty).
///
/// # Errors
/// Code 7 with the path: `ipam.ranges[0][1].subnet: …`.
pub fn from_value<T: DeserializeOwned>(value: &Value, prefix: &str) -> Result<T, Error> {
    serde_path_to_error::deserialize(CaseBlind(value)).map_err(|err| {
        let path = err.path().to_string();
        let inner = err.into_inner();
        let path = match (prefix.is_empty(), path == ".") {
            (true, true) => String::new(),
            (true, false) => format!("{path}: "),
            (false, true) => format!("{prefix}: "),
            (false, false) => format!("{prefix}.{path}: "),
        };
        Error::new(Code::INVALID_CONFIG, format!("{path}{inner}"))
    })
}

/// The member of an object under `key`, in any case; the exact spelling wins.
pub fn get<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    object.get(key).or_else(|| object.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v))
}

struct CaseBlind<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for CaseBlind<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
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
            _ => self.deserialize_any(visitor),
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
            Value::Null => {
                return visitor
                    .visit_map(MapDeserializer::new(std::iter::empty::<(&'de str, CaseBlind<'de>)>()));
            }
            // A sequence would be taken for a struct's fields in order; Go refuses it.
            other => return Err(de::Error::invalid_type(unexpected(other), &"an object")),
        };
        let mut entries: Vec<(&str, CaseBlind<'de>)> = Vec::with_capacity(map.len());
        for field in fields {
            let value = map.get(*field).or_else(|| {
                map.iter()
                    .find(|(k, _)| k.eq_ignore_ascii_case(field) && !fields.contains(&k.as_str()))
                    .map(|(_, v)| v)
            });
            match value {
                None | Some(Value::Null) => {}
                Some(value) => entries.push((field, CaseBlind(value))),
            }
        }
        visitor.visit_map(MapDeserializer::new(entries.into_iter()))
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

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct tuple tuple_struct map identifier
    }
}

fn unexpected(value: &Value) -> de::Unexpected<'_> {
    match value {
        Value::Null => de::Unexpected::Unit,
        Value::Bool(b) => de::Unexpected::Bool(*b),
        Value::Number(_) => de::Unexpected::Other("number"),
        Value::String(s) => de::Unexpected::Str(s),
        Value::Array(_) => de::Unexpected::Seq,
        Value::Object(_) => de::Unexpected::Map,
    }
}

/// Four-space JSON as Go's `json.MarshalIndent(v, "", "    ")` writes it.
pub fn to_pretty(value: &Value) -> String {
    serialize(value, serde_json::ser::PrettyFormatter::with_indent(b"    "))
}

/// `value` in `formatter`'s form, with Go's HTML-safe escapes.
fn serialize<F: serde_json::ser::Formatter>(value: &Value, formatter: F) -> String {
    use serde::Serialize;
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing a Value into memory can't fail; an empty text would be the visible sign.
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    let text = String::from_utf8(out).unwrap_or_default();
    if text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        // Outside strings none of these can occur, so a plain replacement is exact.
        return text
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026")
            .replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029");
    }
    text
}
