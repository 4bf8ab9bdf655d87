//! Reads YAML documents into trees that know their lines, from the parser's events. The limits are against nested
//! aliases, by which a manifest of a few hundred bytes takes gigabytes, and against any depth.

mod scalar;

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::Value;

/// The limit of the values in all documents together, with aliases resolved. A pod has some 50, and 250 as an API
/// server shows it.
pub const MAX_VALUES: usize = 250_000;
/// The deepest nesting. A Pod needs about 15.
const MAX_DEPTH: usize = 100;
/// The limit of text that aliases and anchors copy, in bytes.
const MAX_ALIAS_BYTES: usize = 16 << 20;

/// A value and where it begins: line and column, both from 1.
#[derive(Debug, Clone)]
pub struct Node {
    pub position: (usize, usize),
    pub content: Content,
}

/// The kinds of values.
#[derive(Debug, Clone)]
pub enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Map(BTreeMap<String, Node>),
}

/// Why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is no YAML, or has no form in JSON.
    #[error("{0}")]
    Syntax(String),
    /// The text exceeds a limit.
    #[error("{0}")]
    TooComplex(String),
}

/// A step from a value into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Key(String),
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Step::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Step::Index(index)
    }
}

/// A problem and its place. Line and column count from 1.
#[derive(Debug)]
pub struct Fault {
    pub position: (usize, usize),
    pub problem: Problem,
}

impl Fault {
    /// Returns the fault of a text that is no YAML, or has no form in JSON.
    fn syntax(position: (usize, usize), text: String) -> Self {
        Fault { position, problem: Problem::Syntax(text) }
    }

    /// Returns the fault of a text that exceeds a limit.
    fn too_complex(position: (usize, usize), text: String) -> Self {
        Fault { position, problem: Problem::TooComplex(text) }
    }
}

impl Node {
    /// Returns the value as JSON, without positions.
    pub fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Node::value).collect(),
            Content::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), node.value())).collect(),
        }
    }

    /// Follows the steps as far as values exist, and returns the position of the last one.
    pub fn locate(&self, way: &[Step]) -> (usize, usize) {
        let mut node = self;
        for step in way {
            let next = match (&node.content, step) {
                (Content::List(items), Step::Index(index)) => items.get(*index),
                (Content::Map(entries), Step::Key(key)) => entries.get(key),
                _ => None,
            };
            let Some(next) = next else { break };
            node = next;
        }
        node.position
    }

    fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    fn size(&self) -> Size {
        match &self.content {
            Content::Scalar(Value::String(text)) => Size { values: 1, bytes: text.len(), depth: 0 },
            Content::Scalar(_) => Size { values: 1, bytes: 0, depth: 0 },
            Content::List(items) => items.iter().map(Node::size).fold(Size::LIST, Size::and),
            Content::Map(entries) => {
                entries.iter().map(|(key, node)| node.size().longer(key)).fold(Size::LIST, Size::and)
            }
        }
    }
}

/// The number of values and of bytes of text, and the depth.
#[derive(Clone, Copy)]
struct Size {
    values: usize,
    bytes: usize,
    depth: usize,
}

impl Size {
    const LIST: Size = Size { values: 1, bytes: 0, depth: 1 };

    fn and(self, inner: Size) -> Size {
        Size {
            values: self.values + inner.values,
            bytes: self.bytes + inner.bytes,
            depth: self.depth.max(inner.depth + 1),
        }
    }

    /// Adds the length of a key.
    fn longer(self, key: &str) -> Size {
        Size { bytes: self.bytes + key.len(), ..self }
    }
}

/// Returns the documents in a text, without empty ones. If there is an error, returns it with the documents before it.
pub fn documents(text: &str) -> (Vec<Node>, Option<Fault>) {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let step = event.map_err(|err| syntax(&err)).and_then(|(event, span)| loader.take_event(event, span));
        if let Err(fault) = step {
            return (loader.documents, Some(fault));
        }
    }
    (loader.documents, None)
}

/// Returns the first document as JSON. Fails with the error and its line, and if there is no document.
pub fn document(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|err| err.to_string())?;
    let (documents, fault) = documents(text);
    if let Some(Fault { position: (line, column), problem }) = fault {
        return Err(format!("line {line} column {column}: {problem}"));
    }
    documents.first().map(Node::value).ok_or_else(|| "it is empty".to_owned())
}

fn syntax(err: &ScanError) -> Fault {
    let marker = err.marker();
    Fault::syntax((marker.line(), marker.col() + 1), err.info().to_owned())
}

/// Builds the trees from events.
#[derive(Default)]
struct Loader {
    documents: Vec<Node>,
    /// The lists and mappings that are not closed yet, the outermost first.
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    values: usize,
    alias_bytes: usize,
}

/// A list or mapping that is not closed yet.
struct Open {
    position: (usize, usize),
    anchor: usize,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Map { entries: BTreeMap<String, Node>, key: Option<Key>, merged: Vec<Node> },
}

struct Key {
    text: String,
    /// Whether it is `<<` without quotes, whose value's entries are merged into the mapping.
    merge: bool,
}

impl Loader {
    /// Takes the next event.
    fn take_event(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let position = (span.start.line(), span.start.col() + 1);
        match event {
            Event::SequenceStart(anchor, _) => {
                self.open.push(Open { position, anchor, kind: OpenKind::List(Vec::new()) });
            }
            Event::MappingStart(anchor, _) => {
                let kind = OpenKind::Map { entries: BTreeMap::new(), key: None, merged: Vec::new() };
                self.open.push(Open { position, anchor, kind });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(done) = self.open.pop() else { return Ok(()) };
                return self.close(done);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let string = style != ScalarStyle::Plain
                    || tag.as_ref().is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                if let Some(Open { kind: OpenKind::Map { entries, key: key @ None, .. }, .. }) =
                    self.open.last_mut()
                {
                    let merge = !string && text == "<<";
                    if entries.contains_key(text.as_ref()) && !merge {
                        let why = format!("duplicate key \"{}\"", text.escape_debug());
                        return Err(Fault::syntax(position, why));
                    }
                    *key = Some(Key { text: text.into_owned(), merge });
                    return Ok(());
                }
                let value = if string { Some(Value::from(text.as_ref())) } else { scalar::plain(&text) };
                let value = value.ok_or_else(|| {
                    Fault::syntax(position, format!("\"{}\" has no JSON form", text.escape_debug()))
                })?;
                return self.put_node(Node { position, content: Content::Scalar(value) }, anchor);
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(Fault::syntax(position, "an alias of a value that contains it".to_owned()));
                };
                let Size { values, bytes, depth } = node.size();
                self.values += values;
                self.alias_bytes += bytes;
                if self.values > MAX_VALUES || self.alias_bytes > MAX_ALIAS_BYTES {
                    return Err(Fault::too_complex(position, "its aliases make it too large".to_owned()));
                }
                // The alias may hold lists itself, which come on top of those that are open.
                if self.open.len() + depth > MAX_DEPTH {
                    return Err(Fault::too_complex(position, "its aliases nest it too deeply".to_owned()));
                }
                let node = node.clone();
                return self.put_node(node, 0);
            }
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        if self.open.len() > MAX_DEPTH {
            return Err(Fault::too_complex(position, "it is nested too deeply".to_owned()));
        }
        Ok(())
    }

    /// Ends a list or mapping. Merged entries do not replace the mapping's own.
    fn close(&mut self, done: Open) -> Result<(), Fault> {
        let position = done.position;
        let content = match done.kind {
            OpenKind::List(items) => Content::List(items),
            OpenKind::Map { mut entries, merged, .. } => {
                for node in merged {
                    for (key, value) in merge_entries(node, position)? {
                        entries.entry(key).or_insert(value);
                    }
                }
                Content::Map(entries)
            }
        };
        self.put_node(Node { position, content }, done.anchor)
    }

    /// Puts a complete value into the innermost open list or mapping, or makes it a document.
    fn put_node(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        let position = node.position;
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Fault::too_complex(position, format!("it has more than {MAX_VALUES} values")));
        }
        if anchor != 0 {
            // A copy for aliases counts like an alias, because anchors may be nested.
            let Size { values, bytes, .. } = node.size();
            self.values += values;
            self.alias_bytes += bytes;
            if self.values > MAX_VALUES || self.alias_bytes > MAX_ALIAS_BYTES {
                return Err(Fault::too_complex(position, "its anchors make it too large".to_owned()));
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None if node.is_null() => {}
            None => self.documents.push(node),
            Some(OpenKind::List(items)) => items.push(node),
            Some(OpenKind::Map { entries, key, merged }) => match key.take() {
                Some(Key { merge: true, .. }) => merged.push(node),
                Some(Key { text, .. }) => {
                    entries.insert(text, node);
                }
                None => {
                    let why = "a key must be a plain value, not a list or mapping".to_owned();
                    return Err(Fault::syntax(position, why));
                }
            },
        }
        Ok(())
    }
}

/// Returns the entries that `<<: VALUE` merges, from a mapping or a list of mappings. The first entry of a key wins.
fn merge_entries(node: Node, position: (usize, usize)) -> Result<BTreeMap<String, Node>, Fault> {
    match node.content {
        Content::Map(entries) => Ok(entries),
        Content::List(items) => {
            let mut all = BTreeMap::new();
            for item in items {
                let Content::Map(entries) = item.content else { return Err(merge_error(position)) };
                for (key, value) in entries {
                    all.entry(key).or_insert(value);
                }
            }
            Ok(all)
        }
        Content::Scalar(_) => Err(merge_error(position)),
    }
}

fn merge_error(position: (usize, usize)) -> Fault {
    Fault::syntax(position, "\"<<\" needs a mapping or a list of mappings".to_owned())
}

#[cfg(test)]
mod tests;
