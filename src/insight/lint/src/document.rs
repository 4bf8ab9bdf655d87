//! A JSON file with the position of each key and value.

use std::ops::Range;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{Finding, Rule};

/// A file and its text.
#[derive(Debug, Clone)]
pub struct File {
    pub path: String,
    pub text: String,
}

/// A parsed file.
#[derive(Debug)]
pub struct Document {
    pub file: File,
    pub root: Node,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// The range of bytes in the text.
    pub range: Range<usize>,
    pub data: Data,
}

/// A JSON value. Its members and elements have positions, too.
#[derive(Debug, Clone)]
pub enum Data {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Object(Vec<Member>),
}

/// A member of an object.
#[derive(Debug, Clone)]
pub struct Member {
    pub key: String,
    /// The range of bytes of the key.
    pub range: Range<usize>,
    pub value: Node,
}

impl Document {
    /// Parses a file. For an invalid text it returns the file with a finding in serde_json's words.
    pub fn parse(file: File) -> Result<Self, Box<(File, Finding)>> {
        // serde_json decides what is valid, because its errors are those of the plugins and of the command.
        if let Err(err) = serde_json::from_str::<serde_json::Value>(&file.text) {
            let at = offset(&file.text, err.line(), err.column());
            let text = err.to_string();
            let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
            let lacking = cnimble_cni::json::lacking(file.text.as_bytes(), &err);
            let hint = lacking.map(|what| format!(" ({what})")).unwrap_or_default();
            let message = format!("it is not valid JSON: {reason}{hint}");
            let finding = Finding::error(Rule::Syntax, at..at, message);
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
}

impl File {
    /// Returns line and column of a byte. Both start at 1, and columns count characters.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }
}

/// Returns the byte of a position of serde_json. Its columns are bytes, and 0 is the end of the line before.
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
    /// Returns the members of an object, or an empty slice for any other value.
    pub fn members(&self) -> &[Member] {
        match &self.data {
            Data::Object(members) => members,
            _ => &[],
        }
    }

    /// Returns the elements of a list, or an empty slice for any other value.
    pub fn elements(&self) -> &[Node] {
        match &self.data {
            Data::List(list) => list,
            _ => &[],
        }
    }

    /// Returns the member that plugins read. Case is ignored, but the exact spelling wins. Of equal keys the last
    /// counts, and null counts as missing.
    pub fn member(&self, key: &str) -> Option<&Member> {
        let mut exact = self.present_members();
        exact
            .find(|member| member.key == key)
            .or_else(|| self.present_members().find(|member| member.key.eq_ignore_ascii_case(key)))
    }

    /// Returns the members that are not null, the last first.
    fn present_members(&self) -> impl Iterator<Item = &Member> {
        self.members().iter().rev().filter(|member| !matches!(member.value.data, Data::Null))
    }

    /// Returns the value of [`Node::member`].
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.member(key).map(|member| &member.value)
    }

    /// Follows keys into nested objects.
    pub fn path(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Returns a text. It returns `None` for an empty one, and for any other value.
    pub fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// Returns the text of a member. It returns `None` for an empty one.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// Returns whether the member is the value true.
    pub fn is_true(&self, key: &str) -> bool {
        matches!(self.get(key).map(|node| &node.data), Some(Data::Bool(true)))
    }

    /// Returns an integer. It returns `None` for any other value, also for a fraction.
    pub fn integer(&self) -> Option<i128> {
        match &self.data {
            Data::Number(text) => text.parse().ok(),
            _ => None,
        }
    }
}
