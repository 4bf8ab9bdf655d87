//! The options of a network (`podman network create --opt`) and of a container on it (`--network NAME:KEY=VALUE`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use cnimble_runtime::{DEFAULT_CNI_PATH, DEFAULT_CONF_DIR};

use crate::{Failure, said};

/// The CNI network that is used. Without this option the network is the one that podman describes.
pub const NETWORK: &str = "network";
/// The directory of CNI networks.
pub const CONF_DIR: &str = "conf-dir";
/// The directories of plugins, separated by colons.
pub const PLUGIN_DIR: &str = "plugin-dir";
/// Whether this network publishes the container's ports.
pub const PUBLISH: &str = "publish";
/// Whether the container's default route leads by this network.
pub const DEFAULT_ROUTE: &str = "default-route";
/// The copy of the CNI network, which `create` adds. So podman keeps it, and removes it with its network.
pub const COPY: &str = "conflist";

/// The options of a network.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a>(Option<&'a BTreeMap<String, String>>);

impl<'a> Options<'a> {
    pub fn new(options: Option<&'a BTreeMap<String, String>>) -> Self {
        Options(options)
    }

    /// Returns the value of an option, or `None` without it.
    pub fn get(self, key: &str) -> Option<&'a str> {
        self.0.and_then(|options| options.get(key)).map(String::as_str)
    }

    /// Returns an option that is `true` or `false`, or `None` without it. Fails for another value.
    pub fn flag(self, key: &str) -> Result<Option<bool>, Failure> {
        match self.get(key) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => said(format!("{key}={other}: expected true or false")),
        }
    }

    /// Returns an option that is a number, or `None` without it. Fails for another value.
    pub fn number(self, key: &str) -> Result<Option<u32>, Failure> {
        let Some(text) = self.get(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => said(format!("{key}={text}: expected a whole number")),
        }
    }

    /// Returns the directories of plugins in this option, or else the usual ones.
    pub fn plugin_dirs(self) -> Vec<PathBuf> {
        std::env::split_paths(self.get(PLUGIN_DIR).unwrap_or(DEFAULT_CNI_PATH)).collect()
    }

    /// Returns the directory of CNI networks in this option, or else the usual one.
    pub fn conf_dir(self) -> PathBuf {
        PathBuf::from(self.get(CONF_DIR).unwrap_or(DEFAULT_CONF_DIR))
    }

    /// Fails if there is an option that is not in `known`.
    pub fn must_be_among(self, known: &[&str], what: &str) -> Result<(), Failure> {
        let mut keys = self.0.into_iter().flat_map(BTreeMap::keys);
        match keys.find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => said(format!("{what} has no option {key}; the options are {}", known.join(", "))),
        }
    }
}

/// Returns false for the names that podman gives to interfaces of further networks, which are `eth1`, `eth2` and so on.
/// Returns true for all others, so an interface with a name of the user's choice counts as the first network's.
///
/// The first network publishes the container's ports and has its default route, unless an option says otherwise.
pub fn is_of_first_network(ifname: &str) -> bool {
    match ifname.strip_prefix("eth").map(str::parse::<u32>) {
        Some(Ok(number)) => number == 0,
        _ => true,
    }
}

/// Returns what the container says about `key`, or else what the network says. Returns `None` if neither does.
pub fn chosen(key: &str, container: Options<'_>, network: Options<'_>) -> Result<Option<bool>, Failure> {
    match container.flag(key)? {
        Some(flag) => Ok(Some(flag)),
        None => network.flag(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_tells_the_first_network() {
        for (ifname, first) in
            [("eth0", true), ("eth1", false), ("eth12", false), ("lan", true), ("ethernet", true)]
        {
            assert_eq!(is_of_first_network(ifname), first, "{ifname}");
        }
    }

    #[test]
    fn what_the_container_says_wins() {
        let network = BTreeMap::from([("publish".to_owned(), "false".to_owned())]);
        let container = BTreeMap::from([("publish".to_owned(), "true".to_owned())]);
        let (network, container) = (Options::new(Some(&network)), Options::new(Some(&container)));
        assert_eq!(chosen("publish", container, network).unwrap(), Some(true));
        assert_eq!(chosen("publish", Options::new(None), network).unwrap(), Some(false));
        assert!(chosen("publish", Options::new(None), Options::new(None)).unwrap().is_none());
    }
}
