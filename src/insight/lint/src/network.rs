//! Checks a network's file: the keys of the list, and the keys of each plugin.

use std::path::Path;

use cnimble_cni::{CniResult, NetworkList, Version, names};

use super::entry::{PluginEntry, entries, is_list, shape_of};
use super::page::{Role, page, pages};
use super::rules;
use super::walk::{Walk, is_remark, nearest};
use super::{Data, Document, Finding, Findings, Node, Rule};

/// The keys of a list.
const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// A plugin that a file names.
#[derive(Debug, Clone)]
pub struct NamedPlugin {
    pub name: String,
    /// Whether its keys are known here.
    pub known: bool,
    /// The range of bytes of the type.
    pub place: std::ops::Range<usize>,
    /// The number of its entry from 0, and its range of bytes.
    pub entry: (usize, std::ops::Range<usize>),
}

/// Returns the plugins that the file names, in its order, each followed by its IPAM plugin.
pub fn named(document: &Document) -> Vec<NamedPlugin> {
    let mut all = Vec::new();
    for (n, entry) in entries(document).iter().enumerate() {
        let of = (n, entry.node.range.clone());
        let known = entry.shape.is_some();
        let name = entry.plugin.to_owned();
        all.push(NamedPlugin { name, known, place: entry.place.clone(), entry: of.clone() });
        let ipam = entry.node.path(&["ipam", "type"]);
        if let Some((ipam, name)) = ipam.and_then(|node| Some((node, node.text()?))) {
            let known = page(name).is_some();
            all.push(NamedPlugin { name: name.to_owned(), known, place: ipam.range.clone(), entry: of });
        }
    }
    all
}

/// Returns the range of the value that a plugin's error is about. The error must begin with its path, as in
/// `ipam.ranges[0][1].subnet: …`. `entry` is the number of the plugin's entry. It returns `None` if there is no such
/// value.
pub fn meant(document: &Document, entry: usize, message: &str) -> Option<std::ops::Range<usize>> {
    let path = message.split([':', ' ', ',']).next().filter(|path| !path.is_empty())?;
    let mut node = entries(document).get(entry)?.node;
    let mut place = None;
    for part in path.split('.') {
        let (key, elements) = part.split_once('[').map_or((part, ""), |(key, rest)| (key, rest));
        node = node.get(key)?;
        for n in elements.trim_end_matches(']').split("][").filter(|n| !n.is_empty()) {
            node = node.elements().get(n.parse::<usize>().ok()?)?;
        }
        place = Some(node.range.clone());
    }
    place
}

/// Checks a file in a network's folder. Such a file is one plugin's entry without a name.
pub fn lint_entry(document: &Document) -> Vec<Finding> {
    let mut found = Findings::default();
    plugin(&document.root, true, &mut found);
    if let Some(entry) = PluginEntry::from_node(&document.root) {
        rules::check(&entry, false, &mut found);
    }
    found.sorted()
}

/// Returns the number of entries, also of invalid ones.
fn count(document: &Document) -> usize {
    let list = document.root.get("plugins").map_or(0, |list| list.elements().len());
    if is_list(document) { list } else { 1 }
}

/// Checks a network's file. Returns the findings sorted by position. It reads no other file and asks no plugin.
pub fn lint(document: &Document) -> Vec<Finding> {
    let root = &document.root;
    if !matches!(root.data, Data::Object(_)) {
        return vec![Finding::error(Rule::Syntax, root.range.clone(), "a network is an object")];
    }
    let mut found = Findings::default();
    common(root, &mut found);
    if is_list(document) {
        list(document, &mut found);
    } else {
        plugin(root, true, &mut found);
    }
    let entries = entries(document);
    without_addresses(document, &entries, &mut found);
    // An invalid entry could be any plugin, so the order is not checked.
    if entries.len() == count(document) {
        rules::chain::check(&entries, &mut found);
    }
    for (n, entry) in entries.iter().enumerate() {
        rules::check(entry, n == 0, &mut found);
    }
    found.sorted()
}

/// Checks that the network's version can express the result. Results below 0.3.0 have no interfaces, and need an
/// address.
fn without_addresses(document: &Document, entries: &[PluginEntry<'_>], found: &mut Findings) {
    let text = document.file.text.as_bytes();
    let list = if is_list(document) { NetworkList::parse(text) } else { NetworkList::parse_single(text) };
    let Ok(NetworkList { version, .. }) = list else { return };
    if CniResult::default().to_value(version).is_ok() {
        return;
    }
    // The kernel gives loopback its address.
    let others = entries.iter().filter(|entry| entry.plugin != "loopback" && entry.ipam.is_none());
    for entry in others.filter(|entry| page(entry.plugin).is_some_and(|page| page.role == Role::Main)) {
        let message = format!(
            "{} has no ipam, and a result of CNI {version} needs an address: write cniVersion 0.3.0 or later",
            entry.plugin
        );
        found.error(Rule::Version, &entry.place, message);
    }
}

/// Returns the finding about a list without plugins in its file, with which every ADD fails. It reads no folder: call
/// it only if the network's folder has no plugins either.
pub fn lint_plugins(document: &Document) -> Option<Finding> {
    let list = NetworkList::parse(document.file.text.as_bytes()).ok().filter(|_| is_list(document))?;
    // A single plugin in a file for lists is another finding.
    let err = list.complete().err().filter(|_| document.root.get("type").is_none())?;
    let start = document.root.range.start;
    let message = format!("{}: `plugins` is missing, and the network's folder has none", err.msg);
    Some(Finding::error(Rule::MissingKey, start..start + 1, message))
}

/// Checks a version of the specification.
fn one_version(node: &Node, key: &str, found: &mut Findings) {
    match &node.data {
        Data::Text(text) if Version::parse(text).is_ok() => {}
        Data::Text(text) => {
            let hint = match text.trim().strip_prefix('v').map(Version::parse) {
                Some(Ok(version)) => format!("did you mean {version}?"),
                _ => format!("the newest is {}", Version::LATEST),
            };
            let text = text.escape_debug();
            let message = format!("{key}: there is no version \"{text}\" of the specification: {hint}");
            found.error(Rule::Version, &node.range, message);
        }
        Data::Null => {}
        _ => found.error(Rule::WrongType, &node.range, format!("{key}: expected a text, like \"1.0.0\"")),
    }
}

/// Checks the keys that a list and a single plugin's file have in common.
fn common(root: &Node, found: &mut Findings) {
    let start = root.range.start..root.range.start + 1;
    let version = root.get("cniVersion");
    let versions = root.get("cniVersions");
    version.iter().for_each(|node| one_version(node, "cniVersion", found));
    versions.into_iter().flat_map(Node::elements).for_each(|node| one_version(node, "cniVersions", found));
    if version.is_none() && versions.is_none_or(|list| list.elements().is_empty()) {
        let message =
            "cniVersion is missing: it counts as 0.1.0, which runtimes and plugins of today may refuse";
        found.warning(Rule::MissingKey, &start, message);
    }
    match root.get("name").map(|node| (node, &node.data)) {
        Some((node, Data::Text(name))) if !names::is_identifier(name) => {
            let message = format!(
                "name: \"{}\" can't be a network's name: letters, digits, _ . - only, a letter or digit first",
                name.escape_debug()
            );
            found.error(Rule::InvalidValue, &node.range, message);
        }
        Some((_, Data::Text(_))) => {}
        Some((node, _)) => {
            found.error(Rule::WrongType, &node.range, "name: expected a text");
        }
        None => found.error(Rule::MissingKey, &start, "the network needs a name"),
    }
}

/// Checks the keys of a list, and its entries.
fn list(document: &Document, found: &mut Findings) {
    let root = &document.root;
    list_keys(root, found);
    for key in ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"] {
        let Some(node) = root.get(key) else { continue };
        let fits = match &node.data {
            Data::Bool(_) => true,
            Data::Text(text) => ["true", "false"].iter().any(|word| text.eq_ignore_ascii_case(word)),
            _ => false,
        };
        if !fits {
            found.error(Rule::WrongType, &node.range, format!("{key}: expected true or false"));
        }
    }
    let start = root.range.start..root.range.start + 1;
    let only_inlined = root.is_true("loadOnlyInlinedPlugins");
    match root.get("plugins") {
        Some(node) if !matches!(node.data, Data::List(_)) => {
            found.error(Rule::WrongType, &node.range, "plugins: expected a list");
        }
        Some(node) => {
            let ending = Path::new(&document.file.path).extension();
            if ending.is_some_and(|ending| ending == "conf" || ending == "json") {
                let place = root.member("plugins").map_or(&start, |member| &member.range);
                let message = "runtimes skip this file: that of a list ends in .conflist";
                found.warning(Rule::NoEffect, place, message);
            }
            if node.elements().is_empty() {
                found.error(Rule::MissingKey, &node.range, "plugins: the list is empty");
            }
            for entry in node.elements() {
                plugin(entry, false, found);
            }
        }
        None if root.get("type").is_some() => {
            let message = "a .conflist has a list of plugins; the file of a single plugin ends in .conf";
            found.error(Rule::MissingKey, &start, message);
        }
        None if only_inlined => {
            let message = "plugins is missing, and loadOnlyInlinedPlugins rules out any other source";
            found.error(Rule::MissingKey, &start, message);
        }
        // The plugins may be in the network's folder.
        None => {}
    }
}

/// Reports duplicate keys of a list, and unknown ones that are likely mistakes: misspelt keys and those of plugins. A
/// runtime (nerdctl, podman) may add other keys.
fn list_keys(root: &Node, found: &mut Findings) {
    for (n, member) in root.members().iter().enumerate() {
        let key = member.key.as_str();
        let range = &member.range;
        if let Some(other) = root.members().iter().take(n).find(|it| it.key.eq_ignore_ascii_case(key)) {
            let message = format!("{} is given twice: one value is lost", other.key);
            found.warning(Rule::DuplicateKey, range, message);
        } else if LIST_KEYS.iter().any(|known| known.eq_ignore_ascii_case(key))
            || is_remark(key)
            || key == "args"
        {
        } else if let Some(near) = nearest(key, LIST_KEYS.into_iter()) {
            found.warning(Rule::UnknownKey, range, format!("a list has no key {key}: did you mean {near}?"));
        } else if is_of_plugins(key) && root.get("plugins").is_some() {
            let message = format!("a list has no key {key}: it belongs into a plugin's entry");
            found.warning(Rule::UnknownKey, range, message);
        }
    }
}

/// Returns whether plugins' entries have this key.
fn is_of_plugins(key: &str) -> bool {
    let mut known = pages().iter().flat_map(|page| &page.keys);
    ["type", "capabilities", "runtimeConfig"].contains(&key)
        || known.any(|known| known.path.split(['.', '[']).next() == Some(key))
}

/// Checks a plugin's entry. `alone` says that it is the whole file.
fn plugin(node: &Node, alone: bool, found: &mut Findings) {
    if !matches!(node.data, Data::Object(_)) {
        found.error(Rule::WrongType, &node.range, "a plugin's entry is an object");
        return;
    }
    let Some(entry) = PluginEntry::from_node(node) else {
        let (rule, place) = match node.get("type") {
            Some(of) if !matches!(of.data, Data::Text(_)) => (Rule::WrongType, of.range.clone()),
            Some(of) => (Rule::MissingKey, of.range.clone()),
            None => (Rule::MissingKey, node.range.start..node.range.start + 1),
        };
        let what = if alone { "the file" } else { "a plugin's entry" };
        found.error(rule, &place, format!("{what} needs a type: the plugin's name"));
        return;
    };
    match &entry.shape {
        // The rules about the chain report that an IPAM plugin has no place here.
        Some(_) if page(entry.plugin).is_some_and(|page| page.role == Role::Ipam) => {}
        Some(_) => known(&entry, true, found),
        None => strange(&entry, found),
    }
}

/// Checks the entry of a known plugin. `complete` says that required keys must be there.
fn known(entry: &PluginEntry<'_>, complete: bool, found: &mut Findings) {
    let Some(shape) = &entry.shape else { return };
    let mut walk = Walk { plugin: entry.plugin, ipam: entry.ipam, root: shape, complete, found };
    walk.value(entry.node, shape, "", false);
    let Some(ipam) = entry.ipam.filter(|ipam| page(ipam).is_none()) else { return };
    if let Some(place) = entry.node.path(&["ipam", "type"]) {
        not_known(ipam, &place.range, found);
    }
}

/// Reports an unknown plugin. Two of these, flannel and multus, delegate to known ones, which are checked.
fn strange(entry: &PluginEntry<'_>, found: &mut Findings) {
    not_known(entry.plugin, &entry.place, found);
    if let Some(delegate) = entry.node.get("delegate").filter(|_| entry.plugin == "flannel") {
        // flannel adds the addresses, and the type bridge if there is none.
        let plugin = delegate.text_of("type").unwrap_or("bridge");
        let ipam = delegate.get("ipam").and_then(|ipam| ipam.text_of("type"));
        let shape = shape_of(plugin, ipam);
        known(
            &PluginEntry { node: delegate, plugin, place: delegate.range.clone(), ipam, shape },
            false,
            found,
        );
    }
    let delegates = entry.node.get("delegates").filter(|_| entry.plugin == "multus");
    for delegate in delegates.map(Node::elements).unwrap_or_default() {
        match delegate.get("plugins") {
            Some(list) => list.elements().iter().for_each(|node| plugin(node, false, found)),
            None => plugin(delegate, false, found),
        }
    }
}

/// Reports an unknown plugin, as a warning if its name resembles a known one.
fn not_known(name: &str, place: &std::ops::Range<usize>, found: &mut Findings) {
    let shown = name.escape_debug();
    match nearest(name, pages().iter().map(|page| page.name)) {
        Some(near) if name.len() > 3 => {
            let message = format!("no plugin {shown} is known: did you mean {near}?");
            found.warning(Rule::UnknownPlugin, place, message);
        }
        _ => {
            let message = format!("the keys of {shown} aren't known: they were not checked");
            found.note(Rule::UnknownPlugin, place, message);
        }
    }
}
