//! Completes names. The shell runs this command at each press of the key: it is quick, prints nothing on stderr, and
//! treats unreadable files as empty.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};

use cnimble_doctor::tree::kubernetes_name;
use cnimble_lint::pages;
use cnimble_liveness::named::short_name;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Filter;
use cnimble_runtime::{Cache, ConfDir, DEFAULT_CACHE_DIR, DEFAULT_CONF_DIR, Entry};

use super::explain;

const NETNS_DIR: &str = "/run/netns";

/// Completes networks, or files after a slash.
pub(super) fn networks(current: &OsStr) -> Vec<CompletionCandidate> {
    if current.as_encoded_bytes().contains(&b'/') {
        return PathCompleter::file().complete(current);
    }
    let dir =
        given("--conf-dir").or_else(|| variable("NETCONFPATH")).unwrap_or_else(|| DEFAULT_CONF_DIR.into());
    let listing = ConfDir::new(PathBuf::from(dir)).list();
    let networks = listing.map(|listing| listing.networks).unwrap_or_default();
    matching(current, networks.into_iter().map(|network| network.list.name))
}

/// Completes the namespaces of `ip netns`, or paths after a slash.
pub(super) fn namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    if current.as_encoded_bytes().contains(&b'/') {
        return PathCompleter::any().complete(current);
    }
    let entries = std::fs::read_dir(NETNS_DIR).into_iter().flatten().flatten();
    matching(current, entries.filter_map(|entry| entry.file_name().into_string().ok()))
}

/// Completes the pods of `cnimble pod` and `cnimble run` that are in a network.
pub(super) fn pods(current: &OsStr) -> Vec<CompletionCandidate> {
    let cache_dir = given("--cache-dir").map(PathBuf::from).unwrap_or_else(|| {
        let state_dir = given("--state-dir").unwrap_or_else(|| "/var/lib/cnimble".into());
        PathBuf::from(state_dir).join("cni")
    });
    let cache = Cache::new(cache_dir);
    let entries = cache.list().unwrap_or_default();
    matching(current, entries.iter().filter_map(|entry| kubernetes_name(&entry.args)).map(short))
}

/// Completes the IDs of attached containers.
pub(super) fn containers(current: &OsStr) -> Vec<CompletionCandidate> {
    matching(current, entries().map(|entry| entry.container_id))
}

/// Completes attached pods, and attached containers without a pod.
pub(super) fn attached(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = entries().map(|entry| match kubernetes_name(&entry.args) {
        Some(pod) => short(pod),
        None => short_name(&entry.container_id, entry.namespace()).to_owned(),
    });
    matching(current, names)
}

/// Completes networks, and then attached pods.
pub(super) fn networks_and_attached(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = networks(current);
    found.extend(attached(current));
    found
}

/// Completes the names of interfaces of attachments.
pub(super) fn attached_interfaces(current: &OsStr) -> Vec<CompletionCandidate> {
    matching(current, entries().map(|entry| entry.ifname))
}

/// Completes the links of the host.
pub(super) fn interfaces(current: &OsStr) -> Vec<CompletionCandidate> {
    let links = Netlink::open().and_then(|mut netlink| netlink.links(&Filter::default()));
    matching(current, links.unwrap_or_default().into_iter().map(|link| link.name))
}

/// Completes plugins that have a page of keys.
pub(super) fn plugins(current: &OsStr) -> Vec<CompletionCandidate> {
    matching(current, pages().iter().map(|page| page.name.to_owned()))
}

/// Completes everything that `explain` knows.
pub(super) fn explained(current: &OsStr) -> Vec<CompletionCandidate> {
    matching(current, explain::words())
}

/// Returns the entries of the cache that is on the line, or else of the usual ones. Loopback interfaces are left out.
fn entries() -> impl Iterator<Item = Entry> {
    let caches = match given("--cache-dir") {
        Some(dir) => vec![Cache::new(dir)],
        None => [DEFAULT_CACHE_DIR, cnimble_liveness::DEFAULT_PODS_CACHE_DIR].map(Cache::new).into(),
    };
    let entries = caches.into_iter().flat_map(|cache| cache.list().unwrap_or_default());
    entries.filter(|entry| entry.ifname != "lo")
}

/// Returns the name of a pod without the namespace `default`.
fn short(pod: String) -> String {
    pod.strip_prefix("default/").map(str::to_owned).unwrap_or(pod)
}

/// Returns the names that begin with the current word, sorted and each once. A name with a control character can't be
/// typed and is left out.
fn matching(current: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let names = names.filter(|name| name.as_bytes().starts_with(current.as_encoded_bytes()));
    let names: BTreeSet<String> = names.filter(|name| !name.contains(char::is_control)).collect();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the value of an option that is already on the line, as `--option value` or `--option=value`. The line
/// follows a `--` in the arguments of this program.
fn given(option: &str) -> Option<OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "--");
    while let Some(word) = words.next() {
        if word == option {
            return words.next().filter(|value| !value.is_empty());
        }
        let value = word.to_str().and_then(|word| word.strip_prefix(option)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(value.into());
        }
    }
    None
}

/// Returns the value of a variable. An empty one counts as unset.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
