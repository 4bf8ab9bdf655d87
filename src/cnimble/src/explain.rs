//! `explain`: explains an error code, a rule of `validate --strict` or a configuration key.

mod facts;

use std::fmt::Write;

use serde_json::{Value, json};

use cnimble_lint::{Key, Page, Rule, nearest, network_keys, page, pages};

use super::report::{Exit, Report};
use super::{Session, print, print_json};
use facts::{CODES, VARIABLES};

/// Prints what a word means: an error code, a rule, a variable, a plugin or a key. One word can be a plugin and a key.
///
/// # Errors
/// Fails with [`Exit::Usage`] for an unknown word.
pub(super) fn explain(session: &Session, word: &str) -> Result<(), Report> {
    if let Ok(number) = word.parse::<u32>() {
        return code(session, number);
    }
    if let Some(rule) = Rule::ALL.iter().find(|rule| rule.name() == word) {
        return print_text(
            session,
            &format!("{}: {}\n", rule.name(), rule.about()),
            &json!({"rule": word, "about": rule.about()}),
        );
    }
    if let Some((name, about)) = VARIABLES.iter().find(|(name, _)| *name == word) {
        let object = json!({"variable": name, "about": about});
        return print_text(session, &format!("{name}, a variable of every plugin: {about}\n"), &object);
    }
    let found = keys(word);
    let plugin = page(word);
    if found.is_empty() && plugin.is_none() {
        return Err(unknown(word));
    }
    let texts =
        plugin.map(plugin_text).into_iter().chain(found.iter().map(|(owner, key)| shown(*owner, key)));
    let text = texts.collect::<Vec<_>>().join("\n");
    let object = plugin.map(|page| {
        let keys: Vec<&str> = page.keys.iter().map(|key| key.path).collect();
        json!({"plugin": page.name, "about": page.about, "keys": keys})
    });
    let list = found.iter().map(|(owner, key)| {
        json!({
            "plugin": owner,
            "key": key.path,
            "type": key.kind,
            "default": key.default,
            "example": key.example,
            "about": key.about,
            "inGo": key.is_in_go,
        })
    });
    print_text(session, &text, &object.into_iter().chain(list).collect())
}

/// Returns the description of a plugin, with the paths of its keys.
fn plugin_text(page: &Page) -> String {
    let mut text = format!("{}, a plugin: {}\n", page.name, page.about);
    for key in &page.keys {
        let _ = writeln!(text, "  {}", key.path);
    }
    text
}

/// Returns all words that can be explained, for completion. A word can appear more than once.
pub(super) fn words() -> impl Iterator<Item = String> {
    let codes = CODES.iter().map(|(code, ..)| code.0.to_string());
    let rules = Rule::ALL.iter().map(|rule| rule.name().to_owned());
    let variables = VARIABLES.iter().map(|(name, _)| (*name).to_owned());
    let plugins = pages().iter().map(|page| page.name.to_owned());
    codes.chain(rules).chain(variables).chain(plugins).chain(all().map(|(_, key)| key.path.replace("[]", "")))
}

/// Prints the text, or the object with `--json`, without the marks of Markdown. The sentences are from the manual's
/// pages.
fn print_text(session: &Session, text: &str, object: &Value) -> Result<(), Report> {
    if session.json { print_json(&without_markdown_in(object)) } else { print(&without_markdown(text)) }
}

/// Returns the value with [`without_markdown`] applied to each string but the keys.
fn without_markdown_in(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_markdown(text)),
        Value::Array(list) => list.iter().map(without_markdown_in).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), without_markdown_in(value))).collect()
        }
        other => other.clone(),
    }
}

/// Removes the marks of code, of emphasis and of links. An asterisk in code, as in `*.conflist`, stays.
fn without_markdown(text: &str) -> String {
    let text = without_links(text);
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part.replace('*', "") } else { part.to_owned() }).collect()
}

/// Replaces each link, `[words](address)`, with its words.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some(((plain, words), (_, behind))) = before.rsplit_once('[').zip(after.split_once(')')) else {
            break;
        };
        out += plain;
        out += words;
        rest = behind;
    }
    out + rest
}

/// Explains an error code.
fn code(session: &Session, number: u32) -> Result<(), Report> {
    let Some((_, about, help)) = CODES.iter().find(|(code, ..)| code.0 == number) else {
        let why = match number {
            0..100 => "the specification has no such code, or reserves it",
            _ => "codes from 100 on belong to each plugin, and ours have no such one",
        };
        return Err(Report::because(Exit::Usage, format!("no error code {number} is known"), why));
    };
    let object = json!({"code": number, "about": about, "help": help});
    print_text(session, &format!("error code {number}: {about}\n  {help}\n"), &object)
}

/// A key with the plugin that has it, or with `None` for a key of every network.
type Found = (Option<&'static str>, &'static Key);

/// Returns all keys, those of every network first.
fn all() -> impl Iterator<Item = Found> {
    let of_plugins = pages().iter().flat_map(|page| page.keys.iter().map(move |key| (Some(page.name), key)));
    network_keys().iter().map(|key| (None, key)).chain(of_plugins)
}

/// Returns the keys that a word names, or none.
///
/// It accepts `isGateway` or `ipam.ranges`, and `bridge.mtu` with a plugin in front. That may also be the plugin whose
/// IPAM plugin has the key, as in `bridge.ipam.ranges`.
fn keys(word: &str) -> Vec<Found> {
    // A capability is the name of a key of `runtimeConfig`.
    if let Some((_, capability)) = word.split_once("capabilities.") {
        return keys_of(&format!("runtimeConfig.{capability}"));
    }
    let found = keys_of(word);
    match word.split_once('.').filter(|(plugin, _)| found.is_empty() && page(plugin).is_some()) {
        Some((_, path)) => keys_of(path),
        None => found,
    }
}

/// Returns a path in lower case and without `[]`.
fn plain(path: &str) -> String {
    path.replace("[]", "").to_ascii_lowercase()
}

/// Returns the keys at a path, in any case and with or without `[]`. If there are none, it returns the keys below the
/// path, and those whose paths end with it.
fn keys_of(word: &str) -> Vec<Found> {
    let wanted = plain(word);
    let at_path = all().filter(|(owner, key)| {
        let path = plain(key.path);
        path == wanted || owner.is_some_and(|owner| format!("{owner}.{path}") == wanted)
    });
    let mut found: Vec<Found> = at_path.collect();
    if found.is_empty() {
        // The keys below it, or those with the last name of a path alone.
        let near = all().filter(|(_, key)| {
            let path = plain(key.path);
            path.starts_with(&format!("{wanted}.")) || path.ends_with(&format!(".{wanted}"))
        });
        found = near.collect();
    }
    // The explanation of an object includes the keys in it.
    let objects: Vec<String> = found
        .iter()
        .filter(|(owner, key)| {
            owner.is_none() && key.kind.ends_with("object") || key.kind.ends_with("objects")
        })
        .map(|(_, key)| plain(key.path) + ".")
        .collect();
    let more: Vec<Found> = all()
        .filter(|(_, key)| objects.iter().any(|object| plain(key.path).starts_with(object)))
        .filter(|(_, key)| !found.iter().any(|(_, other)| std::ptr::eq(*other, *key)))
        .collect();
    found.extend(more);
    found
}

/// Returns the description of a key. `owner` is `None` for a key of every network.
fn shown(owner: Option<&str>, key: &Key) -> String {
    let mut text = format!("{} of {}: {}\n", key.path, owner.unwrap_or("any network"), key.about);
    for (name, value) in [("type", key.kind), ("default", key.default), ("example", key.example)] {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:7}  {value}");
        }
    }
    if !key.is_in_go {
        text.push_str("  the Go plugins have no such key\n");
    }
    text
}

/// Returns the error for an unknown word, with the most similar known one.
fn unknown(word: &str) -> Report {
    let known = all().map(|(_, key)| key.path).chain(Rule::ALL.iter().map(|rule| rule.name()));
    let report = Report::because(
        Exit::Usage,
        format!("{word} can't be explained"),
        "it is no error code, no plugin, no key of one, no variable, and no rule of `validate --strict`",
    );
    match nearest(word, known) {
        Some(near) => report.hint(format!("did you mean {near}?")),
        None => report.hint("`cnimble schema --all` has all keys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_ours_is_explained() {
        let source = include_str!("../../base/cni/src/error.rs");
        let codes = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub const ")?.split_once("Code("))
            .collect::<Vec<_>>();
        assert!(codes.len() > 15, "{codes:?}");
        for (name, rest) in codes {
            let number: u32 = rest.trim_end_matches(");").parse().unwrap();
            assert!(CODES.iter().any(|(code, ..)| code.0 == number), "{name}");
        }
    }

    #[test]
    fn keys_are_found_by_their_paths_names_and_plugins() {
        let names = |word: &str| {
            keys(word)
                .iter()
                .map(|(owner, key)| format!("{} {}", owner.unwrap_or("any"), key.path))
                .collect::<Vec<_>>()
        };
        assert_eq!(names("isgateway"), ["bridge isGateway"]);
        assert_eq!(names("bridge.mtu"), ["bridge mtu"]);
        assert!(names("mtu").len() > 4);
        assert_eq!(
            names("ipam.ranges.subnet"),
            ["cluster-local ipam.ranges[][].subnet", "host-local ipam.ranges[][].subnet"]
        );
        for plugin in ["cluster-local", "host-local"] {
            let of: Vec<_> =
                names("rangeStart").into_iter().filter(|name| name.starts_with(plugin)).collect();
            assert_eq!(
                of,
                [format!("{plugin} ipam.ranges[][].rangeStart"), format!("{plugin} ipam.rangeStart")]
            );
        }
        assert_eq!(names("capabilities"), ["any capabilities"]);
        for (word, count) in [("vlanTrunk", 4), ("ranges", 12), ("ipam.ranges", 11), ("dns.search", 3)] {
            assert_eq!(names(word).len(), count, "{:?}", names(word));
        }
        assert!(names("isGatway").is_empty());
        assert_eq!(names("gw"), ["any ipam.routes[].gw"]);
        assert_eq!(names("ipam.routes.priority"), ["any ipam.routes[].priority"]);
        assert!(names("bridge.ipam.routes").contains(&"host-local ipam.routes".to_owned()));
        assert!(
            names("capabilities.portMappings")
                .contains(&"portmap runtimeConfig.portMappings[].hostPort".to_owned())
        );
        assert_eq!(names("nothing.ipam.routes"), [] as [&str; 0]);
    }

    #[test]
    fn marks_of_markdown_are_taken_away() {
        assert_eq!(without_markdown("a *set* of `*.conflist` in **all**"), "a set of *.conflist in all");
        assert_eq!(without_markdown("as [host-local](../a.md) in `a[][].b`"), "as host-local in a[][].b");
        let about = json!([{"about": "the `key`", "inGo": true}]);
        assert_eq!(without_markdown_in(&about), json!([{"about": "the key", "inGo": true}]));
        let texts = all().map(|(owner, key)| shown(owner, key)).chain(pages().iter().map(plugin_text));
        for text in texts.chain(Rule::ALL.iter().map(|rule| rule.about().to_owned())) {
            assert_eq!(text.matches('`').count() % 2, 0, "{text}");
            let told = without_markdown(&text);
            assert!(!told.contains('`') && !told.contains("]("), "{told}");
        }
    }

    #[test]
    fn a_range_has_an_example_for_each_end() {
        for word in ["ipam.rangeStart", "ipam.ranges.rangeStart"] {
            let examples = |word: &str| keys(word).iter().map(|(_, key)| key.example).collect::<Vec<_>>();
            let ends = examples(&word.replace("Start", "End"));
            assert!(examples(word).iter().zip(&ends).all(|(start, end)| start < end), "{word}");
        }
    }

    #[test]
    fn a_key_is_explained_by_one_sentence_that_stands_alone() {
        for (owner, key) in all() {
            let (about, path) = (key.about, key.path);
            let begins = about.starts_with(|char: char| char.is_ascii_uppercase());
            assert!(begins && about.ends_with('.'), "{path} of {owner:?}: {about}");
            for word in [". ", "the same", "](", "see ", "below.", "|"] {
                assert!(!about.contains(word), "{path} of {owner:?}: {word:?} in: {about}");
            }
        }
    }

    #[test]
    fn every_key_that_the_schema_of_a_network_knows_is_explained() {
        fn walk(schema: &Value, unexplained: &mut Vec<String>) {
            for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if keys(name).is_empty() {
                    unexplained.push(name.clone());
                }
                walk(below, unexplained);
            }
            for part in ["$defs", "items", "then", "allOf", "additionalProperties"] {
                match schema.get(part) {
                    Some(Value::Object(map)) if part == "$defs" => {
                        map.values().for_each(|below| walk(below, unexplained));
                    }
                    Some(Value::Array(list)) => list.iter().for_each(|below| walk(below, unexplained)),
                    Some(below) => walk(below, unexplained),
                    None => {}
                }
            }
        }
        let mut unexplained = Vec::new();
        walk(&cnimble_lint::schema::of_network(), &mut unexplained);
        unexplained.sort();
        unexplained.dedup();
        assert!(unexplained.is_empty(), "{unexplained:?}");
    }

    #[test]
    fn a_type_has_one_name() {
        for (owner, key) in all() {
            for word in ["bool ", "text", "number"] {
                assert!(!format!("{} ", key.kind).contains(word), "{} of {owner:?}: {}", key.path, key.kind);
            }
        }
    }
}
