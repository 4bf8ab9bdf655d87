//! YAML documents as trees that know their lines.
//!
//! The parser gives events; here they become trees, within limits: a manifest of a few hundred
//! bytes can ask for gigabytes by aliases of aliases, or for any depth.

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::Value;

use super::error::{Problem, Step};
use super::limits::MAX_VALUES;
use super::scalar;

/// How deep a manifest may be nested. A Pod needs about 15.
const MAX_DEPTH: usize = 100;
/// How many bytes of text aliases may add.
const MAX_ALIAS_BYTES: usize = 16 << 20;

/// A value and where it begins, both from 1.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) position: (usize, usize),
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Map(BTreeMap<String, Node>),
}

/// A document that can't be read, and where.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) position: (usize, usize),
    pub(super) problem: Problem,
}

impl Node {
    /// As JSON.
    pub(super) fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Node::value).collect(),
            Content::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), node.value())).collect(),
        }
    }

    /// Where the value at the end of this way is; where the way ends early, the last one on it.
    pub(super) fn locate(&self, way: &[Step]) -> (usize, usize) {
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

/// How many values and bytes of text there are in a value, and how deep it is nested.
#[derive(Clone, Copy)]
struct Size {
    values: usize,
    bytes: usize,
    depth: usize,
}

impl Size {
    /// A list or mapping without anything in it.
    const LIST: Size = Size { values: 1, bytes: 0, depth: 1 };

    /// With one more thing in it.
    fn and(self, inner: Size) -> Size {
        Size {
            values: self.values + inner.values,
            bytes: self.bytes + inner.bytes,
            depth: self.depth.max(inner.depth + 1),
        }
    }

    fn longer(self, key: &str) -> Size {
        Size { bytes: self.bytes + key.len(), ..self }
    }
}

/// The documents in a text that hold something, and what is wrong after them, if anything is.
pub(super) fn documents(text: &str) -> (Vec<Node>, Option<Fault>) {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let step = event.map_err(|err| syntax(&err)).and_then(|(event, span)| loader.take(event, span));
        if let Err(fault) = step {
            return (loader.documents, Some(fault));
        }
    }
    (loader.documents, None)
}

fn syntax(err: &ScanError) -> Fault {
    let marker = err.marker();
    Fault { position: (marker.line(), marker.col() + 1), problem: Problem::Syntax(err.info().to_owned()) }
}

#[derive(Default)]
struct Loader {
    documents: Vec<Node>,
    /// Lists and mappings that are open, outermost first.
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    values: usize,
    alias_bytes: usize,
}

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
    /// `<<` without quotes: its value's entries are taken over.
    merge: bool,
}

impl Loader {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let position = (span.start.line(), span.start.col() + 1);
        let fault = |problem| Fault { position, problem };
        let too_complex = |text: &str| fault(Problem::TooComplex(text.to_owned()));
        let open = |kind, anchor| Open { position, anchor, kind };
        match event {
            Event::SequenceStart(anchor, _) => self.open.push(open(OpenKind::List(Vec::new()), anchor)),
            Event::MappingStart(anchor, _) => {
                let kind = OpenKind::Map { entries: BTreeMap::new(), key: None, merged: Vec::new() };
                self.open.push(open(kind, anchor));
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
                        return Err(fault(Problem::Syntax(format!(
                            "duplicate key \"{}\"",
                            text.escape_debug()
                        ))));
                    }
                    *key = Some(Key { text: text.into_owned(), merge });
                    return Ok(());
                }
                let value = if string { Some(Value::from(text.as_ref())) } else { scalar::plain(&text) };
                let value = value.ok_or_else(|| {
                    fault(Problem::Syntax(format!("\"{}\" has no JSON form", text.escape_debug())))
                })?;
                return self.put(Node { position, content: Content::Scalar(value) }, anchor);
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(fault(Problem::Syntax("an alias of a value that contains it".to_owned())));
                };
                let Size { values, bytes, depth } = node.size();
                self.values += values;
                self.alias_bytes += bytes;
                if self.values > MAX_VALUES || self.alias_bytes > MAX_ALIAS_BYTES {
                    return Err(too_complex("its aliases make it too large"));
                }
                // Deeper than any list that is open: an alias may be of what holds others.
                if self.open.len() + depth > MAX_DEPTH {
                    return Err(too_complex("its aliases nest it too deeply"));
                }
                let node = node.clone();
                return self.put(node, 0);
            }
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        if self.open.len() > MAX_DEPTH {
            return Err(too_complex("it is nested too deeply"));
        }
        Ok(())
    }

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
        self.put(Node { position, content }, done.anchor)
    }

    /// Puts a whole value where it belongs.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        let position = node.position;
        let fault = |problem| Fault { position, problem };
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(fault(Problem::TooComplex(format!("it has more than {MAX_VALUES} values"))));
        }
        if anchor != 0 {
            // What is kept for aliases counts like an alias: anchors may be nested.
            let Size { values, bytes, .. } = node.size();
            self.values += values;
            self.alias_bytes += bytes;
            if self.values > MAX_VALUES || self.alias_bytes > MAX_ALIAS_BYTES {
                return Err(fault(Problem::TooComplex("its anchors make it too large".to_owned())));
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
                    return Err(fault(Problem::Syntax(
                        "a key must be a plain value, not a list or mapping".into(),
                    )));
                }
            },
        }
        Ok(())
    }
}

/// What `<<: VALUE` brings: the entries of a mapping, or of a list of them, the first winning.
fn merge_entries(node: Node, position: (usize, usize)) -> Result<BTreeMap<String, Node>, Fault> {
    let wrong = || Fault {
        position,
        problem: Problem::Syntax("\"<<\" needs a mapping or a list of mappings".to_owned()),
    };
    match node.content {
        Content::Map(entries) => Ok(entries),
        Content::List(items) => {
            let mut all = BTreeMap::new();
            for item in items {
                let Content::Map(entries) = item.content else { return Err(wrong()) };
                for (key, value) in entries {
                    all.entry(key).or_insert(value);
                }
            }
            Ok(all)
        }
        Content::Scalar(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(text: &str) -> Node {
        let (mut documents, fault) = documents(text);
        assert!(fault.is_none(), "{fault:?}");
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0)
    }

    fn fault(text: &str) -> Fault {
        documents(text).1.unwrap_or_else(|| panic!("no fault: {text}"))
    }

    #[test]
    fn documents_anchors_merges_and_lines() {
        let node =
            one("# a pod\na: &x {p: 1, q: two}\nb:\n  <<: *x\n  p: 3\nc: [*x, !!str 5, '6']\n7: yes\n");
        let two = json!({"p": 1, "q": "two"});
        assert_eq!(
            node.value(),
            json!({"a": two, "b": {"p": 3, "q": "two"}, "c": [two, "5", "6"], "7": true})
        );
        assert_eq!(node.locate(&["b".into(), "p".into()]), (5, 6));
        assert_eq!(node.locate(&["c".into(), 1.into()]), (6, 9));
        // A way that ends early leads to the last value on it.
        assert_eq!(node.locate(&["b".into(), "no".into(), 3.into()]).0, 4);

        let (all, none) = documents("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n");
        assert!(none.is_none());
        assert_eq!(all.iter().map(Node::value).collect::<Vec<_>>(), [json!({"a": 1}), json!({"b": 2})]);
        assert!(documents("").0.is_empty());
    }

    #[test]
    fn what_is_wrong_has_a_line_and_good_documents_before_it_stay() {
        let (good, wrong) = documents("a: 1\n---\nb: [1, 2\nc: }");
        assert_eq!(good.len(), 1);
        assert!(wrong.unwrap().position.0 >= 3);
        assert_eq!(fault("a: 1\nb: 2\na: 3\n").position, (3, 1));
        assert_eq!(fault("a: .inf").position, (1, 4));
        for text in ["? [a]\n: b\n", "a: *nowhere", "a: &x [*x]", "<<: 5", "a: 'open", "a: b: c"] {
            assert!(matches!(fault(text).problem, Problem::Syntax(_)), "{text}");
        }
    }

    #[test]
    fn depth_and_alias_bombs_are_refused() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let problem = fault(&deep).problem;
        assert!(matches!(&problem, Problem::TooComplex(_) | Problem::Syntax(_)), "{problem:?}");
        let deep: String = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(matches!(fault(&deep).problem, Problem::TooComplex(_)));

        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let inner = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
        }
        assert!(matches!(fault(&bomb).problem, Problem::TooComplex(_)));
        // Each alias adds the depth of what it stands for.
        let mut tower = format!("a0: &a0 {}{}\n", "[".repeat(95), "]".repeat(95));
        for level in 1..100 {
            tower.push_str(&format!(
                "a{level}: &a{level} {}*a{}{}\n",
                "[".repeat(95),
                level - 1,
                "]".repeat(95)
            ));
        }
        assert!(matches!(fault(&tower).problem, Problem::TooComplex(_)));
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
        assert!(matches!(fault(&long).problem, Problem::TooComplex(_)));
    }
}
