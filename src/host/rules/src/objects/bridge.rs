//! Bridges that the plugin bridge makes.
//!
//! A new bridge needs an alias, which tells later ADDs who made it, but the kernel ignores an alias at the creation. So
//! the plugin makes the bridge with a link group of its own. Then one message writes the alias and the default group. A
//! bridge that has still that group and no alias is what a killed ADD has left, unless an ADD holds the [`LOCK`].

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{NetworkList, json};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, Netlink};

/// The plugin's name, as in the key `type`.
const PLUGIN: &str = "bridge";

/// The kind of the link, as `ip link add type` takes it.
pub const KIND: &str = "bridge";

/// The link group of a bridge that has no alias yet (1668178546).
pub const UNFINISHED: u32 = u32::from_be_bytes(*b"cnbr");

const DIR: &str = "/run/cnimble";

/// An ADD holds this lock while it makes a bridge, and a removal of bridges holds it, too.
pub const LOCK: &str = "/run/cnimble/bridges.lock";

/// Opens the file of the [`LOCK`], and makes it if it is missing. The caller must lock it.
pub fn open_lock() -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o755).create(DIR)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(LOCK)
}

/// Returns whether a bridge has no alias yet: its ADD was killed, or is still running.
pub fn is_unfinished(link: &Link) -> bool {
    link.kind == KIND && link.group == UNFINISHED && link.alias.is_empty()
}

/// Returns whether a bridge is unfinished and unused: it is down, and has neither ports nor addresses. Only who holds
/// the [`LOCK`] may remove it. A bridge that is up is in use by an earlier version of the plugin, which knows no link
/// group.
pub fn is_left_over(host: &mut Netlink, link: &Link) -> netlink::Result<bool> {
    if !is_unfinished(link) || link.up {
        return Ok(false);
    }
    let has_ports = !host.links(&Filter { master: Some(link.index), kind: None })?.is_empty();
    Ok(!has_ports && host.addrs(link.index)?.is_empty())
}

/// The alias of a bridge that the plugin made.
pub const OURS: &str = "bridge, made by cnimble";

/// The alias of a bridge for a network with `removeUnusedBridge`.
pub const OURS_REMOVABLE: &str = "bridge, made by cnimble, goes with its last pod";

/// The alias of a bridge for a network with `uplink`, which connects it with other hosts.
pub const UPLINKED: &str = "bridge with an uplink, made by cnimble";
/// The alias of a bridge for a network with `uplink` and `removeUnusedBridge`.
pub const UPLINKED_REMOVABLE: &str = "bridge with an uplink, made by cnimble, goes with its last pod";

/// The alias of a removable bridge whose uplink was down before. The uplink is switched off with the bridge.
pub const WAKES_UPLINK: &str = "bridge with an uplink that was down, made by cnimble, goes with its last pod";

/// Returns whether the plugin made this bridge, and nobody has changed its alias since.
pub fn is_made_here(link: &Link) -> bool {
    let aliases = [OURS, OURS_REMOVABLE, UPLINKED, UPLINKED_REMOVABLE, WAKES_UPLINK];
    link.kind == KIND && aliases.contains(&link.alias.as_str())
}

/// The name of the bridge if the key `bridge` is missing.
pub const DEFAULT_NAME: &str = "cni0";

/// Returns the names of the bridges of a network's plugins `bridge`. Delegates are not looked at; see [`all`].
pub fn configured(list: &NetworkList) -> impl Iterator<Item = String> {
    list.plugins.iter().filter(|plugin| plugin.plugin_type == PLUGIN).map(|plugin| {
        let name = json::get(&plugin.document, "bridge").and_then(|name| name.as_str());
        name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME).to_owned()
    })
}

/// Returns the names of all bridges that the network's plugins may use, also by a delegate.
pub fn all(list: &NetworkList) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = configured(list).collect();
    for delegate in list.plugins.iter().filter_map(delegated) {
        let name = json::get(&delegate.document, "bridge").and_then(|name| name.as_str());
        names.insert(name.unwrap_or(DEFAULT_NAME).to_owned());
    }
    names
}

/// Returns the plugin in the key `delegate` of another one, as flannel has it. Like flannel, takes bridge as its type
/// and true as `isGateway` if these are missing. Returns `None` without the key, or if it is invalid.
pub fn delegated(plugin: &ListEntry) -> Option<ListEntry> {
    let mut document = json::get(&plugin.document, "delegate")?.as_object()?.clone();
    let kind = document.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty());
    if kind.is_none_or(|kind| kind == PLUGIN) {
        document.insert("type".to_owned(), PLUGIN.into());
        document.entry("isGateway").or_insert(Value::Bool(true));
    }
    let mut entry = ListEntry::from_value(Value::Object(document), "").ok()?;
    entry.capabilities.clear();
    Some(entry)
}
