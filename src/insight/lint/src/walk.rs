//! Compares a value with its shape: types, forms, unknown keys, and missing keys.

use std::net::IpAddr;

use cnimble_cni::{cidr, names};

use super::page::{Page, pages};
use super::shape::{Fields, Shape};
use super::{Data, Findings, Node, Rule};

/// A comparison in progress.
pub(crate) struct Walk<'a> {
    /// The owner of the keys: the plugin at the top, the IPAM plugin below `ipam`.
    pub(crate) plugin: &'a str,
    pub(crate) ipam: Option<&'a str>,
    /// The shape of the whole entry.
    pub(crate) root: &'a Shape,
    /// Whether missing keys are reported.
    pub(crate) complete: bool,
    pub(crate) found: &'a mut Findings,
}

impl Walk<'_> {
    /// Compares a value. An empty text is valid unless `in_list` is set, because a plugin reads it as a missing key.
    pub(crate) fn value(&mut self, node: &Node, shape: &Shape, path: &str, in_list: bool) {
        if matches!(node.data, Data::Null) {
            return;
        }
        match (shape, &node.data) {
            (Shape::Any, _) | (Shape::Bool, Data::Bool(_)) | (Shape::Text, Data::Text(_)) => {}
            (Shape::Integer(low, high), Data::Number(_)) => self.number(node, *low, *high, path),
            (Shape::List(of), Data::List(list)) => {
                for (n, element) in list.iter().enumerate() {
                    self.value(element, of, &format!("{path}[{n}]"), true);
                }
            }
            (Shape::OneOrMore(of), Data::List(_)) => {
                self.value(node, &Shape::List(of.clone()), path, in_list);
            }
            (Shape::OneOrMore(of), _) => self.value(node, of, path, in_list),
            (Shape::Map(of), Data::Object(members)) => {
                self.twice(node, path, str::eq);
                for member in members {
                    self.value(&member.value, of, &format!("{path}.{}", member.key), false);
                }
            }
            (Shape::Object(fields), Data::Object(_)) => self.object(node, fields, path),
            (_, Data::Text(text)) if is_text(shape) => {
                if let Some(problem) = problem(shape, text).filter(|_| in_list || !text.is_empty()) {
                    self.found.error(Rule::InvalidValue, &node.range, format!("{path}: {problem}"));
                }
            }
            _ => {
                let message = format!("{path}: expected {}, found {}", expected(shape), found(node));
                self.found.error(Rule::WrongType, &node.range, message);
            }
        }
    }

    fn number(&mut self, node: &Node, low: i128, high: i128, path: &str) {
        match node.integer() {
            None => {
                let message = format!("{path}: expected a whole number, found {}", found(node));
                self.found.error(Rule::WrongType, &node.range, message);
            }
            Some(number) if !(low..=high).contains(&number) => {
                let text = match (low, high) {
                    (0, high) if high > i128::from(u32::MAX) => format!("{path}: {number} is negative"),
                    _ => format!("{path}: {number} is outside {low} to {high}"),
                };
                self.found.error(Rule::InvalidValue, &node.range, text);
            }
            Some(_) => {}
        }
    }

    /// Reports keys that are the same, of which plugins read only one.
    fn twice(&mut self, node: &Node, path: &str, same: fn(&str, &str) -> bool) {
        let members = node.members();
        for (n, member) in members.iter().enumerate() {
            let earlier = members.iter().take(n);
            if let Some(other) = earlier.into_iter().find(|other| same(&other.key, &member.key)) {
                let also =
                    if other.key == member.key { String::new() } else { format!(", as {}", other.key) };
                let key = below(path, &member.key);
                let message = format!("{key} is given twice{also}: one value is lost");
                self.found.warning(Rule::DuplicateKey, &member.range, message);
            }
        }
    }

    fn object(&mut self, node: &Node, fields: &Fields, path: &str) {
        self.twice(node, path, str::eq_ignore_ascii_case);
        for member in node.members() {
            let known = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(&member.key));
            match known {
                Some((name, (shape, _))) => self.value(&member.value, shape, &below(path, name), false),
                None if is_remark(&member.key) || path.starts_with("args") => {}
                None => {
                    let message = self.unknown(fields, path, &member.key);
                    self.found.warning(Rule::UnknownKey, &member.range, message);
                }
            }
        }
        let required = fields.iter().filter(|(_, (_, required))| *required && self.complete);
        for (name, _) in required {
            let there = node
                .get(name)
                .is_some_and(|value| !matches!(&value.data, Data::Text(text) if text.is_empty()));
            if !there {
                // The finding is placed at the type, because the opening brace of an entry says little.
                let place = node.get("type").filter(|_| path.is_empty());
                let place = place.map_or(node.range.start..node.range.start + 1, |of| of.range.clone());
                let message = format!("{} needs {}", self.subject(path), below(path, name));
                self.found.error(Rule::MissingKey, &place, message);
            }
        }
    }

    /// Returns the plugin that has the keys at this path.
    fn subject(&self, path: &str) -> &str {
        self.ipam.filter(|_| path.starts_with("ipam")).unwrap_or(self.plugin)
    }

    /// Returns the message about an unknown key, with the key that is meant if one is similar.
    fn unknown(&self, fields: &Fields, path: &str, key: &str) -> String {
        let message = format!("{} has no key {}", self.subject(path), below(path, key));
        if let Some(near) = nearest(key, fields.keys().map(String::as_str)) {
            return format!("{message}: did you mean {}?", below(path, near));
        }
        if let Some(place) = find_elsewhere(self.root, "", key) {
            return format!("{message}: did you mean {place}?");
        }
        let has =
            |page: &&Page| page.keys.iter().any(|known| known.path.eq_ignore_ascii_case(&below(path, key)));
        let others: Vec<&str> = pages().iter().filter(has).map(|page| page.name).collect();
        match others.as_slice() {
            [] => message,
            [one] => format!("{message} ({one} has it)"),
            [some @ .., last] => format!("{message} ({} and {last} have it)", some.join(", ")),
        }
    }
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Returns whether the key is a remark for people or editors, which plugins ignore.
pub(crate) fn is_remark(key: &str) -> bool {
    key.starts_with(['_', '$', '#', '/']) || key.starts_with("x-") || key.starts_with("cni.dev/")
}

/// Returns where else in the entry there is a key of this name.
fn find_elsewhere(shape: &Shape, path: &str, key: &str) -> Option<String> {
    match shape {
        Shape::List(of) => find_elsewhere(of, &format!("{path}[]"), key),
        Shape::Object(fields) => {
            let here = fields.keys().find(|name| name.eq_ignore_ascii_case(key));
            // Short names occur in many places.
            if let Some(name) = here.filter(|_| key.len() > 4 || path == "ipam") {
                return Some(below(path, name));
            }
            let inner = fields.iter().filter(|(name, _)| *name != "args" && *name != "runtimeConfig");
            inner.into_iter().find_map(|(name, (shape, _))| find_elsewhere(shape, &below(path, name), key))
        }
        _ => None,
    }
}

/// Returns the known word that is most similar, or else the first that begins with `word`, if `word` has more than
/// three letters. It returns `None` if none is similar enough.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    let far = (word.chars().count() / 3).clamp(1, 3);
    let known: Vec<&str> = known.collect();
    let whole = known.iter().copied();
    whole
        .map(|known| (strsim::osa_distance(&lower, &known.to_ascii_lowercase()), known))
        .filter(|(distance, known)| *distance <= far && *distance < known.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
        .or_else(|| {
            // A prefix is similar enough: hairpin for hairpinMode.
            let mut longer = known.iter().copied().filter(|_| lower.len() > 3);
            longer.find(|known| known.to_ascii_lowercase().starts_with(&lower))
        })
}

fn is_text(shape: &Shape) -> bool {
    matches!(
        shape,
        Shape::OneOf(_)
            | Shape::Interface
            | Shape::Address
            | Shape::Network
            | Shape::AddressOrNetwork
            | Shape::Mac
    )
}

/// Returns what is wrong with a text of this shape.
fn problem(shape: &Shape, text: &str) -> Option<String> {
    let shown = format!("\"{}\"", text.escape_debug());
    match shape {
        Shape::OneOf(words) => {
            let near = nearest(text, words.iter().map(String::as_str));
            let hint = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
            let known = words.iter().any(|word| word == text);
            (!known).then(|| format!("{shown} is none of {}{hint}", words.join(", ")))
        }
        Shape::Interface => names::new_interface_problem(text).map(|why| format!("{shown}: {why}")),
        Shape::Address => cidr::parse_ip(text).is_none().then(|| {
            let hint = if text.contains('/') { " without a prefix length" } else { "" };
            format!("{shown} is no address{hint}")
        }),
        Shape::Network => cidr::parse_cidr(text).is_none().then(|| match cidr::parse_ip(text) {
            Some(ip) => {
                let length = match ip {
                    _ if ip.is_unspecified() => 0,
                    IpAddr::V4(_) => 24,
                    IpAddr::V6(_) => 64,
                };
                format!("{shown} has no prefix length: expected {text}/{length}, for example")
            }
            None => format!("{shown} is no network: expected an address and its prefix length, 10.1.2.0/24"),
        }),
        Shape::AddressOrNetwork => {
            cidr::parse_ip_or_cidr(text).is_none().then(|| format!("{shown} is no address"))
        }
        Shape::Mac => mac_problem(text).map(|why| format!("{shown} {why}")),
        _ => None,
    }
}

fn mac_problem(text: &str) -> Option<&'static str> {
    let bytes: Option<Vec<u8>> = text
        .split([':', '-'])
        .map(|part| match part.len() {
            2 => u8::from_str_radix(part, 16).ok(),
            _ => None,
        })
        .collect();
    match bytes.as_deref() {
        Some([0, 0, 0, 0, 0, 0]) => Some("is all zero"),
        Some([first, _, _, _, _, _]) if first & 1 == 1 => Some("is a multicast address"),
        Some([_, _, _, _, _, _]) => None,
        _ => Some("is no hardware address: expected six bytes like 02:00:5e:10:00:01"),
    }
}

fn expected(shape: &Shape) -> &'static str {
    match shape {
        Shape::Any => "any value",
        Shape::Bool => "true or false",
        Shape::Integer(..) => "a number",
        Shape::List(_) => "a list",
        Shape::Map(_) | Shape::Object(_) => "an object",
        _ => "a text",
    }
}

fn found(node: &Node) -> String {
    match &node.data {
        Data::Null => "null".to_owned(),
        Data::Bool(bool) => bool.to_string(),
        Data::Number(number) => number.clone(),
        Data::Text(text) => {
            format!("the text \"{}\"", text.chars().take(40).collect::<String>().escape_debug())
        }
        Data::List(_) => "a list".to_owned(),
        Data::Object(_) => "an object".to_owned(),
    }
}
