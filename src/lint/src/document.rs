//! A file of JSON, with the place of each key and value.

use std::ops::Range;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{Finding, Rule};

/// A file: what it is called, and what is in it.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path, as findings show it.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// A file that is JSON.
#[derive(Debug)]
pub struct Document {
    /// The file.
    pub file: File,
    /// What it holds.
    pub root: Node,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// Bytes of the text.
    pub range: Range<usize>,
    /// The value.
    pub data: Data,
}

/// A value.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // named as in JSON
pub enum Data {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Object(Vec<Member>),
}

/// A key and its value.
#[derive(Debug, Clone)]
pub struct Member {
    /// The key.
    pub key: String,
    /// Where it stands.
    pub range: Range<usize>,
    /// The value.
    pub value: Node,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// It isn't JSON: what is wrong with it, in serde_json's words.
    pub fn parse(file: File) -> Result<Self, Box<(File, Finding)>> {
        // The reader that counts: its errors are those of the plugins and of the command.
        if let Err(err) = serde_json::from_str::<serde::Ignored>(&file.text) {
            let at = offset(&file.text, err.line(), err.column());
            let text = err.to_string();
            let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
            let finding = Finding::error(Rule::Syntax, at..at, format!("it is not valid JSON: {reason}"));
            return Err(Box::new((file, finding)));
        }
        let options = ParseOptions {
            allow_comments: false,
            allow_loose_object_property_names: false,
            allow_trailing_commas: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let parsed = parse_to_ast(&file.text, &CollectOptions::default(), &options);
        let root = match parsed {
            Ok(result) => result.value.as_ref().map(node),
            Err(err) => {
                let at = err.range().start;
                let finding = Finding::error(Rule::Syntax, at..at, format!("it is not valid JSON: {err}"));
                return Err(Box::new((file, finding)));
            }
        };
        let root = root.unwrap_or(Node { range: 0..0, data: Data::Null });
        Ok(Document { file, root })
    }

    /// Line and column of a finding, both from 1; columns are characters.
    pub fn position(&self, finding: &Finding) -> (usize, usize) {
        self.file.position(finding.range.start)
    }
}

impl File {
    /// Line and column of a byte, both from 1; columns are characters.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }
}

/// The byte that serde_json means: its columns are bytes, and 0 stands for the end of the line before.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (before + column.saturating_sub(1)).min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn node(value: &ast::Value<'_>) -> Node {
    let range = value.range();
    let data = match value {
        ast::Value::StringLit(text) => Data::Text(text.value.clone().into_owned()),
        ast::Value::NumberLit(number) => Data::Number(number.value.to_owned()),
        ast::Value::BooleanLit(bool) => Data::Bool(bool.value),
        ast::Value::NullKeyword(_) => Data::Null,
        ast::Value::Array(list) => Data::List(list.elements.iter().map(node).collect()),
        ast::Value::Object(object) => Data::Object(object.properties.iter().map(member).collect()),
    };
    Node { range: range.start..range.end, data }
}

fn member(property: &ast::ObjectProp<'_>) -> Member {
    let range = property.name.range();
    Member {
        key: property.name.as_str().to_owned(),
        range: range.start..range.end,
        value: node(&property.value),
    }
}

impl Node {
    /// The members of an object; none of anything else.
    pub fn members(&self) -> &[Member] {
        match &self.data {
            Data::Object(members) => members,
            _ => &[],
        }
    }

    /// The elements of a list; none of anything else.
    pub fn elements(&self) -> &[Node] {
        match &self.data {
            Data::List(list) => list,
            _ => &[],
        }
    }

    /// The member of this key as plugins read it: in any case, the exact spelling first, and not null.
    pub fn member(&self, key: &str) -> Option<&Member> {
        let there = || self.members().iter().rev().filter(|member| !matches!(member.value.data, Data::Null));
        there()
            .find(|member| member.key == key)
            .or_else(|| there().find(|member| member.key.eq_ignore_ascii_case(key)))
    }

    /// The value under this key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.member(key).map(|member| &member.value)
    }

    /// The value below these keys.
    pub fn path(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// A text that isn't empty.
    pub fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// The text under this key.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// Whether this key is true.
    pub fn is_true(&self, key: &str) -> bool {
        matches!(self.get(key).map(|node| &node.data), Some(Data::Bool(true)))
    }

    /// A whole number.
    pub fn integer(&self) -> Option<i128> {
        match &self.data {
            Data::Number(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// What serde_json reads to say whether a text is JSON.
mod serde {
    pub(super) type Ignored = serde_json::Value;
}
