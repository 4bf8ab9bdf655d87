//! The configuration that CHECK, DEL and GC of an attachment go by: that of its ADD, which the cache has recorded.
//!
//! The specification wants the same configuration for both, and an administrator edits the file while pods live. By the
//! edited file no DEL would reach a plugin that was taken out of the chain, or leases in another `dataDir`. The
//! configuration that a verb is given counts where there is no record, or one without configuration (libcni before 0.8).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{NetworkList, Verb, Version, json};

use super::chain::convert;
use super::{Attach, Entry, Invoker, Key, Lookup};

/// The configuration that a verb uses for an attachment, and the result of its ADD.
pub(super) struct Recorded<'n> {
    /// The configuration that the verb uses.
    pub(super) configuration: Configuration<'n>,
    /// The result of ADD in the network's version. `None` without a record.
    pub(super) result: Result<Option<Value>, UnusableRecord>,
}

/// The configuration that counts for an attachment.
pub(super) struct Configuration<'n> {
    /// That of the record, or the given one (borrowed) if both are the same or the record's does not count.
    pub(super) network: Cow<'n, NetworkList>,
    /// How the given one differs from `network`, for messages. It is `None` if it doesn't, or has no record to differ
    /// from.
    pub(super) difference: Option<String>,
    /// Why the record's can't be used, so that `network` is the given one. It is `None` if the record is usable, missing,
    /// or without a configuration.
    pub(super) unusable: Option<String>,
}

impl<'n> Configuration<'n> {
    /// Uses the given one.
    fn given(network: &'n NetworkList) -> Self {
        Configuration { network: Cow::Borrowed(network), difference: None, unusable: None }
    }
}

/// A record of an ADD that is there and can't be used.
#[derive(Debug, Clone)]
pub(super) struct UnusableRecord {
    /// The reason, for people.
    pub(super) why: String,
    /// Whether the file was read and is damaged, rather than unreadable for this user.
    pub(super) is_corrupt: bool,
}

impl Configuration<'_> {
    /// Warns if the given configuration is not that of the ADD, or if that of the ADD can't be used.
    pub(super) fn warn(&self, verb: Verb, attach: &Attach) {
        if let Some(why) = &self.unusable {
            log::warn!("{why}; {verb} goes by the configuration that it was given");
        }
        if let Some(difference) = &self.difference {
            log::warn!(
                "network {} is not configured as at the ADD of {} of {}: {difference}; {verb} goes by the record of that ADD",
                self.network.name,
                attach.ifname,
                attach.container_id
            );
        }
    }
}

impl Invoker {
    /// Uses the configuration that CHECK, DEL and GC are given, as libcni does, and not that of the ADD. So DEL works
    /// after a plugin was uninstalled that the record names. Objects of that plugin may stay.
    #[must_use]
    pub fn with_given_configuration(mut self) -> Self {
        self.by_record = false;
        self
    }

    /// Returns the configuration that CHECK and DEL of this attachment use.
    #[doc(hidden)]
    pub fn configuration_of(&self, given: &NetworkList, attach: &Attach) -> NetworkList {
        self.recorded(given, attach).configuration.network.into_owned()
    }

    /// Reads the record of an attachment. An unusable record is no failure, but an error as the result. If the file
    /// can't be read or is corrupt, the given configuration counts. If only the result is unusable, the recorded one
    /// counts.
    pub(super) fn recorded<'n>(&self, given: &'n NetworkList, attach: &Attach) -> Recorded<'n> {
        let key = attach.key(&given.name);
        let unusable = match self.cache.get(key) {
            Ok(Lookup::Entry(entry)) => {
                let configuration = self.configuration(&entry, given);
                let result = match entry.result {
                    None if entry.config.is_empty() => Err(self.corrupt_record(key, &"it has no result")),
                    None => Err(self.unfinished_record(key)),
                    Some(result) => convert(result, configuration.network.version)
                        .map(|added| Some(added.document))
                        .map_err(|err| self.corrupt_record(key, &err)),
                };
                return Recorded { configuration, result };
            }
            Ok(Lookup::Nothing) => Ok(None),
            Ok(Lookup::Corrupt(why)) => Err(self.corrupt_record(key, &why)),
            Err(err) => Err(UnusableRecord { why: err.to_string(), is_corrupt: false }),
        };
        Recorded { configuration: Configuration::given(given), result: unusable }
    }

    /// Returns the error of a record that was written before an ADD, and has no result yet.
    fn unfinished_record(&self, key: Key<'_>) -> UnusableRecord {
        let path = self.cache.path(key);
        let why = format!("the record {} has no result: its ADD did not end, or runs", path.display());
        UnusableRecord { why, is_corrupt: false }
    }

    /// Returns the error of a record that is damaged.
    fn corrupt_record(&self, key: Key<'_>, why: &dyn Display) -> UnusableRecord {
        UnusableRecord {
            why: format!("the cache entry {} is corrupt: {why}", self.cache.path(key).display()),
            is_corrupt: true,
        }
    }

    /// Returns the configuration that counts for the attachment of `entry`. It logs nothing, because a call can ask more
    /// than once.
    fn configuration<'n>(&self, entry: &Entry, given: &'n NetworkList) -> Configuration<'n> {
        let mut counting = Configuration::given(given);
        if !self.by_record || entry.config.is_empty() {
            return counting;
        }
        let path = self.cache.path(entry.key());
        match entry.network_list() {
            Ok(added) if added.name == given.name => {
                let added = with_folder(added, given);
                counting.difference = difference(&added, given);
                if counting.difference.is_some() {
                    counting.network = Cow::Owned(added);
                }
            }
            Ok(other) => {
                counting.unusable =
                    Some(format!("the configuration in {} is of network {}", path.display(), other.name));
            }
            Err(err) => {
                counting.unusable =
                    Some(format!("the configuration in {} can't be used: {err}", path.display()));
            }
        }
        counting
    }

    /// Returns the plugins that GC must ask besides those of `given`, each with the network of its record. Only they
    /// know what they made for dead attachments. A plugin that CNI_PATH lacks is left out, with a warning. A record
    /// below 1.1.0, which has no GC, is left out without one.
    pub(super) fn recorded_plugins(
        &self,
        given: &NetworkList,
        entries: &[Entry],
    ) -> Vec<(NetworkList, ListEntry)> {
        let mut found: Vec<(NetworkList, ListEntry)> = Vec::new();
        let mut seen: BTreeSet<&[u8]> = BTreeSet::new();
        for entry in entries.iter().filter(|entry| seen.insert(&entry.config)) {
            let Cow::Owned(network) = self.configuration(entry, given).network else { continue };
            for plugin in &network.plugins {
                let mut known = given.plugins.iter().chain(found.iter().map(|(_, other)| other));
                let is_known = known.any(|other| other.document == plugin.document);
                if is_known || network.version < Version::V1_1_0 {
                    continue;
                }
                match super::find_plugin(&plugin.plugin_type, &self.path) {
                    Ok(_) => found.push((network.clone(), plugin.clone())),
                    Err(err) => log::warn!(
                        "network {}: an attachment was added with plugin {}, which is not asked to clean up: {err}",
                        given.name,
                        plugin.plugin_type
                    ),
                }
            }
        }
        found
    }
}

/// Adds the plugins of the network's folder to a recorded configuration. libcni records the file as it is written,
/// without the folder. `given` has its present content.
fn with_folder(mut added: NetworkList, given: &NetworkList) -> NetworkList {
    if !added.load_only_inlined_plugins {
        let inlined = json::get(&given.document, "plugins").and_then(Value::as_array).map_or(0, Vec::len);
        added.plugins.extend(given.plugins.iter().skip(inlined).cloned());
    }
    added
}

fn list_types(list: &NetworkList) -> String {
    let types = list.plugins.iter().map(|plugin| plugin.plugin_type.as_str());
    types.collect::<Vec<_>>().join(", ")
}

/// Returns how the plugins were configured at ADD, or `None` if `given` configures them in the same way.
fn difference(added: &NetworkList, given: &NetworkList) -> Option<String> {
    let (then, now) = (list_types(added), list_types(given));
    if then != now {
        return Some(format!("its plugins were {then}, and are {now}"));
    }
    if added.version != given.version {
        return Some(format!("its version was {}, and is {}", added.version, given.version));
    }
    if added.disable_check != given.disable_check {
        return Some(format!("disableCheck was {}, and is {}", added.disable_check, given.disable_check));
    }
    let pairs = added.plugins.iter().zip(&given.plugins);
    let changed = pairs.filter(|(then, now)| then.document != now.document);
    let changed: Vec<&str> = changed.map(|(then, _)| then.plugin_type.as_str()).collect();
    (!changed.is_empty()).then(|| format!("other keys of {}", changed.join(", ")))
}
