//! Finds configurations in Kubernetes manifests: NetworkAttachmentDefinitions (Multus), and ConfigMaps with files for
//! the directory of networks. A finding keeps its line in the YAML.

use std::ops::Range;

use cnimble_api::yaml::{self, Content, Node};
use cnimble_lint::{File, Finding, Rule};
use serde_json::Value;

use super::files::{Source, TextKind};

/// The file that a text was taken from. Findings about the text are shown at their places in that file.
pub(super) struct Embedded {
    pub(super) whole: File,
    /// The byte in the file for each byte of the text.
    offsets: Vec<usize>,
}

impl Embedded {
    /// Returns the range in the whole file for a range in the text.
    pub(super) fn range(&self, part: &Range<usize>) -> Range<usize> {
        let last = self.offsets.last().map_or(0, |last| last + 1);
        let at = |n: usize| self.offsets.get(n).copied().unwrap_or(last);
        at(part.start)..at(part.end).max(at(part.start))
    }
}

/// The configurations in a manifest, and what is wrong with the manifest itself.
#[derive(Default)]
pub(super) struct Manifest {
    pub(super) sources: Vec<Source>,
    pub(super) findings: Vec<Finding>,
}

/// Reads all documents of a file, and the items of lists. A syntax error is a finding, and the documents before it
/// count.
pub(super) fn read(file: &File) -> Manifest {
    let (documents, fault) = yaml::documents(&file.text);
    let mut manifest = Manifest::default();
    for document in &documents {
        object(file, document, &mut manifest);
    }
    if let Some(fault) = fault {
        let at = offset(&file.text, fault.position);
        manifest.findings.push(match template(&file.text) {
            Some(template) => untried(at..at, template),
            None => Finding::error(Rule::Syntax, at..at, format!("it is not valid YAML: {}", fault.problem)),
        });
    }
    manifest
}

/// Reads an object. Kinds that contain no configurations are ignored.
fn object(file: &File, node: &Node, manifest: &mut Manifest) {
    match text_at(node, &["kind"]) {
        Some("NetworkAttachmentDefinition") => definition(file, node, manifest),
        Some("ConfigMap") => {
            let Some(Content::Map(data)) = get(node, &["data"]).map(|data| &data.content) else { return };
            for (key, value) in data {
                if key == "cni-conf.json" || key.ends_with(".conflist") {
                    text(file, value, None, manifest);
                }
            }
        }
        _ => {
            if let Some(Content::List(items)) = get(node, &["items"]).map(|items| &items.content) {
                items.iter().for_each(|item| object(file, item, manifest));
            }
        }
    }
}

/// Reads a NetworkAttachmentDefinition. Without `spec.config` there is nothing to check, because Multus reads a file of
/// the node, which the object's name selects.
fn definition(file: &File, node: &Node, manifest: &mut Manifest) {
    if let Some(config) = get(node, &["spec", "config"]) {
        text(file, config, text_at(node, &["metadata", "name"]), manifest);
    }
}

/// Adds a configuration to the texts to check. It gets this `name` if it has none, as Multus does. An empty text is
/// ignored, and a template is only noted.
fn text(file: &File, node: &Node, name: Option<&str>, manifest: &mut Manifest) {
    let at = offset(&file.text, node.position);
    let text = match &node.content {
        Content::Scalar(Value::String(text)) if text.trim().is_empty() => return,
        Content::Scalar(Value::Null) => return,
        Content::Scalar(Value::String(text)) => text,
        _ => {
            let message = "expected a text with the configuration in JSON";
            manifest.findings.push(Finding::error(Rule::WrongType, at..at, message));
            return;
        }
    };
    if let Some(template) = template(text) {
        manifest.findings.push(untried(at..at, template));
        return;
    }
    let (mut text, mut offsets) = (text.clone(), align(&file.text, at, text));
    if let Some(name) = name.filter(|_| lacks_name(&text))
        && let Some(brace) = text.find('{')
    {
        let inserted = format!("\"name\":{},", Value::from(name));
        let place = offsets.get(brace).copied().unwrap_or(at);
        offsets.splice(brace + 1..brace + 1, std::iter::repeat_n(place, inserted.len()));
        text.insert_str(brace + 1, &inserted);
    }
    let within = Some(Embedded { whole: file.clone(), offsets });
    let file = File { path: "-".to_owned(), text };
    manifest.sources.push(Source { file, kind: TextKind::Manifest, within });
}

/// Returns whether the text is an object with keys, and none of them is `name`.
fn lacks_name(text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(object)) => {
            !object.is_empty() && !object.keys().any(|key| key.eq_ignore_ascii_case("name"))
        }
        _ => false,
    }
}

/// Returns the note that a template was not checked.
fn untried(range: Range<usize>, template: &str) -> Finding {
    let message = format!("it is a template with {template}: it was not checked");
    Finding::note(Rule::Syntax, range, message)
}

/// Returns a placeholder that a program replaces before the text is used, or `None`: `{{…}}`, `${…}` or `__NAME__`.
fn template(text: &str) -> Option<&str> {
    between(text, "{{", "}}")
        .or_else(|| between(text, "${", "}"))
        .or_else(|| between(text, "__", "__").filter(|word| is_name(word.trim_matches('_'))))
}

/// Returns the first part of the text from `open` to `close`, with both.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Option<&'t str> {
    let start = text.find(open)?;
    let rest = text.get(start + open.len()..)?;
    text.get(start..start + open.len() + rest.find(close)? + close.len())
}

/// Returns whether a word has capitals, digits and `_` only.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Returns the node at a path of keys.
fn get<'a>(node: &'a Node, keys: &[&str]) -> Option<&'a Node> {
    keys.iter().try_fold(node, |node, key| match &node.content {
        Content::Map(entries) => entries.get(*key),
        _ => None,
    })
}

/// Returns the text at a path of keys.
fn text_at<'a>(node: &'a Node, keys: &[&str]) -> Option<&'a str> {
    match &get(node, keys)?.content {
        Content::Scalar(value) => value.as_str(),
        _ => None,
    }
}

/// Returns the byte of a line and a column, both of which begin at 1. The column counts characters.
fn offset(text: &str, (line, column): (usize, usize)) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let rest = text.get(before..).unwrap_or_default();
    before + rest.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum::<usize>()
}

/// Returns the byte in the YAML `whole` for each byte of a scalar's `value`. The scalar begins at `start`. Its style
/// decides what else is in the YAML: indentation, folded lines and escapes.
fn align(whole: &str, start: usize, value: &str) -> Vec<usize> {
    let first = whole.get(start..).and_then(|rest| rest.chars().next());
    let mut at = match first {
        Some('\'' | '"') => start + 1,
        // The line of a block scalar has only its indicators.
        Some('|' | '>') => {
            whole.get(start..).and_then(|rest| rest.find('\n')).map_or(start, |end| start + end)
        }
        _ => start,
    };
    let mut offsets = Vec::with_capacity(value.len());
    for char in value.chars() {
        if !char.is_whitespace() {
            at += gap(whole, at, first == Some('"'));
        }
        let raw = whole.get(at..).unwrap_or_default();
        let length = match first {
            Some('"') if raw.starts_with('\\') => escape(raw),
            Some('\'') if raw.starts_with("''") => 2,
            _ if raw.starts_with(char) => char.len_utf8(),
            // A folded line: a space stands for the end of the line.
            _ => 0,
        };
        offsets.extend(std::iter::repeat_n(at, char.len_utf8()));
        at += length;
    }
    offsets
}

/// Returns the length of white space at a byte. If `escapes` is set, it includes ends of lines that a double quoted
/// scalar escapes.
fn gap(whole: &str, at: usize, escapes: bool) -> usize {
    let raw = whole.get(at..).unwrap_or_default();
    let rest = raw.trim_start();
    let length = raw.len() - rest.len();
    if rest.starts_with("\\\n") && escapes {
        length + 2 + gap(whole, at + length + 2, escapes)
    } else {
        length
    }
}

/// Returns the length of the escape at the beginning of `raw`, in a double quoted scalar (YAML 1.2, section 5.7).
fn escape(raw: &str) -> usize {
    match raw.as_bytes().get(1) {
        Some(b'x') => 4,
        Some(b'u') => 6,
        Some(b'U') => 10,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Vec<Source> {
        let manifest = read(&File { path: "nad.yaml".to_owned(), text: text.to_owned() });
        assert!(manifest.findings.is_empty(), "{:?}", manifest.findings);
        manifest.sources
    }

    /// The line and column in the YAML of a word of the JSON.
    fn place(source: &Source, word: &str) -> (usize, usize) {
        let at = source.file.text.find(word).unwrap();
        let within = source.within.as_ref().unwrap();
        let range = within.range(&(at..at + word.len()));
        within.whole.position(range.start)
    }

    const HEAD: &str =
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: lan\nspec:\n";

    #[test]
    fn every_style_of_scalar_keeps_its_lines() {
        for (config, line, column) in [
            (
                "  config: '{\n      \"type\": \"macvlan\",\n      \"mode\": \"x''y\", \"mtu\": 7\n    }'\n",
                8,
                23,
            ),
            (
                "  config: \"{\\\"type\\\": \\\"macvlan\\\",\\n \\\"mode\\\": \\\"x\\\", \\\"mtu\\\": 7}\"\n",
                6,
                55,
            ),
            ("  config: \"{ \\\"type\\\": \\\"macvlan\\\", \\\n    \\\"mtu\\\": 7}\"\n", 7, 5),
            ("  config: |\n    {\n      \"type\": \"macvlan\",\n      \"mtu\": 7\n    }\n", 9, 7),
            (
                "  config: >-  # folded\n    {\n      \"type\": \"macvlan\",\n\n      \"mtu\": 7\n    }\n",
                10,
                7,
            ),
        ] {
            let sources = sources(&format!("{HEAD}{config}"));
            assert_eq!(place(&sources[0], "\"mtu\""), (line, column), "{config}\n{}", sources[0].file.text);
            let value: Value = serde_json::from_str(&sources[0].file.text).unwrap();
            assert_eq!((&value["name"], &value["mtu"]), (&"lan".into(), &7.into()));
        }
    }

    #[test]
    fn lists_config_maps_and_several_documents_are_read() {
        let map = "kind: ConfigMap\ndata:\n  cni-conf.json: |\n    {\"name\": \"cbr0\", \"plugins\": []}\n  \
                   other.json: '{}'\n  10-x.conflist: '{\"name\": \"x\"}'\n";
        let item = "- kind: NetworkAttachmentDefinition\n  metadata: {name: a}\n  spec: {config: '{\"name\": \"own\"}'}\n";
        let text =
            format!("{map}---\nkind: List\nitems:\n{item}{item}---\n{HEAD}  config: ''\n---\nkind: Pod\n");
        let texts: Vec<String> = sources(&text).into_iter().map(|source| source.file.text).collect();
        let own = "{\"name\": \"own\"}";
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(
            texts.iter().filter(|text| *text == own).count() == 2 && texts.iter().any(|t| t.contains("cbr0"))
        );
    }

    #[test]
    fn templates_and_other_values_are_told() {
        for (text, message) in [
            (format!("{HEAD}  config: '{{\"mtu\": ${{MTU}}}}'\n"), "it is a template with ${MTU}"),
            (format!("{HEAD}  config: '{{\"mtu\": __CNI_MTU__}}'\n"), "it is a template with __CNI_MTU__"),
            (
                "{{- if .Values.x }}\nkind: ConfigMap\n{{- end }}\n".to_owned(),
                "it is a template with {{- if .Values.x }}",
            ),
            (format!("{HEAD}  config: {{\"mtu\": 7}}\n"), "expected a text"),
            ("a: [1".to_owned(), "it is not valid YAML"),
        ] {
            let manifest = read(&File { path: "nad.yaml".to_owned(), text: text.clone() });
            assert_eq!(manifest.findings.len(), 1, "{text}");
            assert!(manifest.findings[0].message.starts_with(message), "{:?}", manifest.findings);
        }
        assert_eq!(template("a__b and b__c"), None);
    }
}
