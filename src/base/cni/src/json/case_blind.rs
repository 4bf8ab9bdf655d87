//! A deserializer that reads a [`Value`] as Go's `encoding/json` would. It matches fields of structs without regard to
//! case, skips `null`, and drops unknown keys. Keys of *maps* are data and stay as they are. It refuses a list in the
//! place of a struct, as Go does; serde would take one.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// Does what [`super::get`] does, on a map. Other spellings that are `taken`, because they are keys of their own, don't
/// count.
pub(super) fn member<'a>(
    map: &'a Map<String, Value>,
    key: &str,
    taken: impl Fn(&str) -> bool,
) -> Option<&'a Value> {
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

pub(super) struct CaseBlind<'de>(pub(super) &'de Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for CaseBlind<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

/// Forwards to `deserialize_any`, but says "list" and "object" where serde says "sequence" and "map".
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

pub(super) fn unexpected(value: &Value) -> de::Unexpected<'_> {
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
