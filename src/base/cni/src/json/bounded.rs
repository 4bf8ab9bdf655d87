//! A document as a [`Value`], as long as it stays small in memory.
//!
//! A `Value` may take a hundred times as much memory as its text, because an object of one key is a node of 600 bytes.
//! So each value is charged with the most that it can take, and reading ends at the bound: a killed process would give
//! no answer. Lists that may be long by right (GC's attachments) don't become values: [`Lists`] gets their elements.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The memory for the values of one document, in bytes: 65,536 ports, 75,000 routes, or 400,000 attachments.
const MEMORY: usize = 80 << 20;
/// The text among these, keys included, in bytes. It may have to be written again, six times as long.
const TEXT: usize = 4 << 20;

/// The most bytes that an element of a list takes. A list grows by doubling, so half of its room can be empty.
const SLOT: usize = 64;
const ALLOCATED: usize = 32;
/// The size of a node of a map, and the least number of entries in it if there are several nodes.
const NODE: usize = 640;
const ENTRIES: usize = 5;

/// The memory and the text that a document may still take.
pub(super) struct Budget {
    memory: Cell<usize>,
    text: Cell<usize>,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Budget { memory: Cell::new(MEMORY), text: Cell::new(TEXT) }
    }

    /// Returns the bound that ended the reading, or `None`.
    pub(super) fn exceeded(&self) -> Option<String> {
        match (self.memory.get(), self.text.get()) {
            (0, _) => Some(format!("its values would take more than {} MiB of memory", MEMORY >> 20)),
            (_, 0) => Some(format!("there are more than {} MiB of text in it", TEXT >> 20)),
            _ => None,
        }
    }

    fn charge<E: de::Error>(left: &Cell<usize>, bytes: usize) -> Result<(), E> {
        // If nothing is left, the bound counts as exceeded.
        left.set(left.get().saturating_sub(bytes));
        if left.get() == 0 { Err(E::custom("it is too large")) } else { Ok(()) }
    }

    fn charge_memory<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        Self::charge(&self.memory, bytes)
    }

    fn charge_text<E: de::Error>(&self, text: &str) -> Result<(), E> {
        Self::charge(&self.text, text.len())?;
        self.charge_memory(ALLOCATED + text.len())
    }
}

/// Takes the long lists out of a document, one element at a time.
pub(crate) trait Lists {
    /// Returns whether the list at this key is taken out.
    fn takes_out(&self, key: &str) -> bool;
    /// Begins a list and returns its number.
    fn begin(&self, key: &str) -> usize;
    /// Takes the next element of the list that began last. Returns the memory that it takes, in bytes.
    fn push(&self, element: &Value) -> usize;
}

#[derive(Clone, Copy)]
pub(super) struct BoundedReader<'a> {
    budget: &'a Budget,
    place: Position<'a>,
}

/// The position of a value, which decides whether a list is taken out.
#[derive(Clone, Copy)]
enum Position<'a> {
    Document(&'a dyn Lists),
    Long(&'a dyn Lists, &'a str),
    Plain,
}

impl<'a> BoundedReader<'a> {
    /// Reads a document. A list that is taken out is replaced by a list with its number.
    pub(super) fn document(budget: &'a Budget, lists: Option<&'a dyn Lists>) -> Self {
        BoundedReader { budget, place: lists.map_or(Position::Plain, Position::Document) }
    }
}

impl<'de> DeserializeSeed<'de> for BoundedReader<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        self.budget.charge_text(text)?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let plain = BoundedReader { place: Position::Plain, ..self };
        if let Position::Long(lists, key) = self.place {
            let number = lists.begin(key);
            loop {
                let (memory, text) = (self.budget.memory.get(), self.budget.text.get());
                let Some(element) = seq.next_element_seed(plain)? else {
                    return Ok(Value::Array(vec![number.into()]));
                };
                // The value goes at once, what is made of it stays.
                self.budget.memory.set(memory);
                self.budget.text.set(text);
                self.budget.charge_memory(lists.push(&element))?;
            }
        }
        let mut list = Vec::new();
        while let Some(element) = seq.next_element_seed(plain)? {
            self.budget.charge_memory(SLOT)?;
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let mut entries = 0;
        while let Some(key) = map.next_key::<String>()? {
            self.budget.charge_text(&key)?;
            if entries % ENTRIES == 0 {
                self.budget.charge_memory(NODE)?;
            }
            entries += 1;
            let place = match self.place {
                Position::Document(lists) if lists.takes_out(&key) => Position::Long(lists, &key),
                _ => Position::Plain,
            };
            let value = map.next_value_seed(BoundedReader { place, ..self })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Finds the text that a document has under a key, which may be all that can be read of it.
pub(super) struct Find<'a> {
    pub(super) key: &'a str,
    pub(super) found: &'a Cell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut is_exact = false;
        while let Some(key) = map.next_key::<String>()? {
            let exact = key == self.key;
            if key.eq_ignore_ascii_case(self.key) && (exact || !is_exact) {
                self.found.set(Some(map.next_value()?));
                is_exact = exact;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
