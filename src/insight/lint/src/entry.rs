//! The entries of a network's file. Each is a plugin with the shape of its configuration.

use std::path::Path;

use super::page::page;
use super::shape::{self, Fields, Shape};
use super::{Data, Document, Node};

/// A plugin's entry in a network's file.
pub(crate) struct PluginEntry<'a> {
    pub(crate) node: &'a Node,
    /// The plugin's type.
    pub(crate) plugin: &'a str,
    /// The range of bytes of the type.
    pub(crate) place: std::ops::Range<usize>,
    /// The type of its IPAM plugin.
    pub(crate) ipam: Option<&'a str>,
    /// It is `None` if the plugin is unknown.
    pub(crate) shape: Option<Shape>,
}

impl<'a> PluginEntry<'a> {
    /// Reads an entry. It returns `None` without a type.
    pub(crate) fn from_node(node: &'a Node) -> Option<Self> {
        let of = node.get("type")?;
        let plugin = of.text()?;
        let ipam = node.get("ipam").and_then(|ipam| ipam.text_of("type"));
        Some(PluginEntry { node, plugin, place: of.range.clone(), ipam, shape: shape_of(plugin, ipam) })
    }
}

impl PluginEntry<'_> {
    /// Returns the range of a key in `node`, or that of the plugin's type if the key is missing.
    pub(crate) fn range_of(&self, node: &Node, key: &str) -> std::ops::Range<usize> {
        node.member(key).map_or(self.place.clone(), |member| member.range.clone())
    }

    /// Returns whether the runtime passes the capability. It returns true also if `capabilities` is no object, which
    /// another finding reports.
    pub(crate) fn declares(&self, capability: &str) -> bool {
        self.node.get("capabilities").is_some_and(|map| match &map.data {
            Data::Object(_) => map.is_true(capability),
            _ => true,
        })
    }
}

/// Returns whether the file is a list: its name ends in `.conflist`, or it has the key `plugins`.
pub(crate) fn is_list(document: &Document) -> bool {
    let ending = Path::new(&document.file.path).extension();
    ending.is_some_and(|ending| ending == "conflist") || document.root.get("plugins").is_some()
}

/// Returns the plugins' entries, in order. Those without a type are left out.
pub(crate) fn entries(document: &Document) -> Vec<PluginEntry<'_>> {
    if !is_list(document) {
        return PluginEntry::from_node(&document.root).into_iter().collect();
    }
    let list = document.root.get("plugins").map(Node::elements).unwrap_or_default();
    list.iter().filter_map(PluginEntry::from_node).collect()
}

/// Returns the shape of an entry: the keys of the plugin, of its IPAM plugin, and of every plugin. It returns `None`
/// for an unknown plugin.
pub(crate) fn shape_of(plugin: &str, ipam: Option<&str>) -> Option<Shape> {
    let own = &page(plugin)?.shape;
    let takes_ipam = shape::find_shape(own, "ipam.type").is_some();
    let mut shape = own.clone();
    match ipam.map(page) {
        Some(Some(ipam)) if takes_ipam => shape = shape::merge(&shape, &ipam.shape),
        // The keys and capabilities of that IPAM plugin are unknown.
        Some(None) if takes_ipam => {
            let Shape::Object(fields) = &mut shape else { return None };
            fields.extend(["ipam", "runtimeConfig"].map(|name| (name.to_owned(), (Shape::Any, false))));
        }
        _ => {}
    }
    Some(shape::merge(&shape, &every_plugins()))
}

/// Returns the keys that every plugin's entry may have.
pub(crate) fn every_plugins() -> Shape {
    shape::object(&[
        ("type", Shape::Text, true),
        ("name", Shape::Text, false),
        ("cniVersion", Shape::Text, false),
        ("capabilities", Shape::Map(Box::new(Shape::Bool)), false),
        ("args", Shape::Object(Fields::new()), false),
        ("runtimeConfig", Shape::Object(Fields::new()), false),
        ("prevResult", Shape::Any, false),
        ("dns", shape::dns(), false),
        ("logFile", Shape::Text, false),
        ("logLevel", Shape::Text, false),
    ])
}
