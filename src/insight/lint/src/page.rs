//! Reads the plugins' pages, with the keys of each plugin.

use std::sync::OnceLock;

use super::shape::{self, Key, Shape};

/// The name, role, first sentence and table of each page.
const PAGES: &[(&str, &str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// The page of keys that belong to no single plugin.
const NETWORK: &str = include_str!("../network.md");

/// What a plugin does in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It makes the pod's interface, or configures loopback.
    Main,
    /// It works on the interface of an earlier plugin.
    Chained,
    /// Another plugin calls it for addresses.
    Ipam,
}

/// A plugin as its page describes it.
#[derive(Debug)]
pub struct Page {
    pub name: &'static str,
    pub role: Role,
    /// The first sentence.
    pub about: &'static str,
    pub keys: Vec<Key>,
    /// The shape that the keys form.
    pub shape: Shape,
}

/// Returns the pages of all plugins of cnimble.
pub fn pages() -> &'static [Page] {
    static ALL: OnceLock<Vec<Page>> = OnceLock::new();
    ALL.get_or_init(|| PAGES.iter().map(read).collect())
}

/// Returns the keys of a network's file that belong to no single plugin.
pub fn network() -> &'static [Key] {
    static ALL: OnceLock<Vec<Key>> = OnceLock::new();
    ALL.get_or_init(|| NETWORK.lines().filter(|line| line.starts_with("| `")).flat_map(row).collect())
}

/// Returns the page of a plugin. It returns `None` for an unknown one.
pub fn page(name: &str) -> Option<&'static Page> {
    pages().iter().find(|page| page.name == name)
}

/// Returns whether the words of a key's type are known. The tests of the pages ask this.
pub fn understood(page: &Page, key: &Key) -> bool {
    shape::of_key(key, &page.shape).is_some()
}

fn read(&(name, role, about, table): &(&'static str, &str, &'static str, &'static str)) -> Page {
    let role = match role {
        "main" => Role::Main,
        "chained" => Role::Chained,
        _ => Role::Ipam,
    };
    let keys: Vec<Key> = table.lines().flat_map(row).collect();
    let shape = shape::build_shape(&keys);
    Page { name, role, about, keys, shape }
}

/// Returns the keys of a row of the table. Several keys may share one.
fn row(line: &'static str) -> Vec<Key> {
    let mut cells = line.trim_start_matches("| ").trim_end_matches('|').split(" | ").map(str::trim);
    let [paths, kind, default, example, about] = [(); 5].map(|()| cells.next().unwrap_or_default());
    let example = example.trim_matches('`');
    let mut parts = paths.split('`').skip(1);
    let mut paths = Vec::new();
    while let Some(path) = parts.next() {
        let is_in_go = !parts.next().is_some_and(|after| after.starts_with('†'));
        paths.push(Key { path, kind, default, example, about, is_in_go });
    }
    paths
}
