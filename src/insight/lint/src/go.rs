//! Finds the parts of a network that stop working with the Go plugins.

use super::entry::entries;
use super::page::{Page, network, page};
use super::shape::Key;
use super::{Data, Document, Node};

/// A part of a network that the Go plugins ignore or lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    pub plugin: &'static str,
    /// The key that is ignored. It is `None` if the Go plugins have no plugin of this name.
    pub key: Option<&'static str>,
    /// The description on the plugin's page.
    pub about: &'static str,
}

/// Returns what stops working with the Go plugins, in the order of the entries. A key with its default value is left out.
pub fn lost_with_go(document: &Document) -> Vec<Lost> {
    let mut lost = Vec::new();
    let text = &document.file.text;
    for entry in entries(document) {
        let Some(main) = page(entry.plugin) else { continue };
        lost.extend(lost_of(main, entry.node, text));
        lost.extend(lost_keys(main, network(), entry.node, text));
        lost.extend(
            entry.ipam.and_then(page).map(|ipam| lost_of(ipam, entry.node, text)).unwrap_or_default(),
        );
    }
    lost
}

/// Returns the plugin itself if Go has no such plugin, and otherwise its keys that are ignored.
fn lost_of(page: &'static Page, entry: &Node, text: &str) -> Vec<Lost> {
    if !page.keys.is_empty() && page.keys.iter().all(|key| !key.is_in_go) {
        vec![Lost { plugin: page.name, key: None, about: page.about }]
    } else {
        lost_keys(page, &page.keys, entry, text)
    }
}

/// Returns the keys that Go's plugin does not read and that differ from their defaults.
fn lost_keys(page: &Page, keys: &[Key], entry: &Node, text: &str) -> Vec<Lost> {
    let lost = keys.iter().filter(|key| !key.is_in_go && differs(entry, key.path, key.default, text));
    lost.map(|key| Lost { plugin: page.name, key: Some(key.path), about: key.about }).collect()
}

/// Returns whether the value at the path, or an element of it, differs from the default. Neither a missing value nor an
/// empty list differs. The texts are compared, so another way to write the same value counts as a difference.
fn differs(node: &Node, path: &str, default: &str, text: &str) -> bool {
    let (part, rest) = path.split_once('.').map_or((path, None), |(part, rest)| (part, Some(rest)));
    let mut values: Vec<&Node> = node.get(part.trim_end_matches("[]")).into_iter().collect();
    for _ in 0..part.matches("[]").count() {
        values = values.into_iter().flat_map(Node::elements).collect();
    }
    values.into_iter().any(|value| match (rest, &value.data) {
        (Some(rest), _) => differs(value, rest, default, text),
        (None, Data::List(list)) if list.is_empty() => false,
        (None, _) => text.get(value.range.clone()) != Some(default.trim_matches('`')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    fn lost(text: &str) -> Vec<(&'static str, Option<&'static str>)> {
        let file = File { path: "net.conflist".to_owned(), text: text.to_owned() };
        let document = Document::parse(file).unwrap();
        lost_with_go(&document).iter().map(|lost| (lost.plugin, lost.key)).collect()
    }

    #[test]
    fn keys_that_the_go_plugins_ignore_are_named_unless_they_have_their_default() {
        let found = lost(
            r#"{"name": "net", "plugins": [
                {"type": "bridge", "isGateway": true, "acceptra": false, "mtuAuto": false, "uplink": null, "ipMasqExclude": [],
                 "ipam": {"type": "host-local", "keepFor": 60,
                          "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00::/64", "exclude": ["fd00::9"]}]]}},
                {"type": "portmap", "acceptPublished": true, "snat": false, "logFile": "journal"},
                {"type": "their-own", "acceptPublished": true}
            ]}"#,
        );
        let expected = [
            ("bridge", Some("acceptRA")),
            ("host-local", Some("ipam.ranges[][].exclude")),
            ("host-local", Some("ipam.keepFor")),
            ("portmap", Some("acceptPublished")),
            ("portmap", Some("logFile")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_plugin_that_the_go_plugins_lack_is_named_once() {
        let found = lost(
            r#"{"name": "net", "plugins": [{"type": "ptp", "ipam": {"type": "cluster-local", "subnet": "10.1.0.0/16"}}]}"#,
        );
        assert_eq!(found, [("cluster-local", None)]);
    }
}
