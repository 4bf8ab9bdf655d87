//! ADD, CHECK and DEL of a whole chain. In ADD each plugin gets the result of the one before. In CHECK and DEL all get
//! the result of the ADD.

use std::path::PathBuf;

use serde_json::{Map, Value};

use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{CniResult, Code, Error as SpecError, NetworkList, Verb, Version, json};

use super::abandoned::Caller;
use super::error::{Error, Failure, Failures, PluginError, outcome};
use super::exec::{Parameters, first_line};
use super::recorded::{Recorded, UnusableRecord};
use super::{Attach, CacheError, Entry, Invoker, Lookup, check_names, find_plugin};

impl Invoker {
    /// Attaches a container. Returns the last plugin's result, after it was written to the cache.
    ///
    /// If a plugin fails, those that were run get a DEL, last one first. The error lists the cause first, and then
    /// failures of these DELs. The failed plugin gets a DEL, too, even if no time was left to start it. It gets none if
    /// its file is missing or could not be executed, or if it reports a conflict (code 102).
    /// If the cache has a result of this attachment already, no DEL runs, because it would remove a working container's
    /// network. The error says so. A record without a result ([`Entry::before_add`]) does not prevent a DEL.
    ///
    /// **Cancellation.** If the future is dropped, a task of the tokio runtime undoes the ADD. The running plugin is
    /// stopped as at a time limit: it gets SIGTERM, and SIGKILL two seconds later. DEL follows as after a failure, and
    /// no entry is written. If the entry is just being written, DEL removes it afterwards, or leaves it if a plugin
    /// fails. An attachment that gets no DEL keeps an entry. The task holds the locks, for two minutes at most while
    /// the runtime runs. It logs what it could not undo. Other operations of this invoker and its clones on the same
    /// attachment wait for it.
    ///
    /// The end of the tokio runtime ends the task, and kills the running plugin. Before that call [`Invoker::del`],
    /// which waits for the undo and reports what is left.
    ///
    /// # Errors
    /// Fails for a forbidden name, a missing plugin, a locked network, a failure of a plugin or of the cache. All
    /// plugins are looked for before the first one runs.
    pub async fn add(&self, network: &NetworkList, attach: &Attach) -> Result<Added, Error> {
        check_names(&network.name, attach)?;
        let missing = network.plugins.iter().filter_map(|plugin| {
            let cause = find_plugin(&plugin.plugin_type, &self.path).err()?;
            Some(failure(network, &plugin.plugin_type, Verb::Add, cause))
        });
        outcome(missing.collect())?;
        // The lock is held until the result is recorded. Until then only the lock shows others this ADD.
        let together = self.together(&network.name, attach).await?;
        let (this, owned, of) = (self.clone(), network.clone(), attach.clone());
        self.abandoned
            .run(&network.name, attach, |caller| async move {
                let _together = together;
                this.add_chain(&owned, &of, caller).await
            })
            .await
    }

    /// Runs ADD of all plugins and records the result. Undoes it after a failure, or once the caller has gone.
    async fn add_chain(
        &self,
        network: &NetworkList,
        attach: &Attach,
        caller: Caller,
    ) -> Result<Added, Error> {
        let mut this = self.begin();
        this.exec.caller = Some(caller.clone());
        // An entry without a result is of an ADD that did not end: the caller has recorded this one before it began.
        let known = matches!(
            self.cache.get(attach.key(&network.name)),
            Ok(Lookup::Entry(entry)) if entry.result.is_some()
        );
        let mut added = Added { result: CniResult::default(), document: Value::Null };
        for (index, plugin) in network.plugins.iter().enumerate() {
            let previous = Some(&added.document).filter(|_| index > 0);
            let failure = match this.add_one(network, plugin, attach, previous).await {
                Ok(next) => {
                    added = next;
                    continue;
                }
                Err(failure) => failure,
            };
            let mut failures = Failures::from_one(failure);
            if known {
                failures.note = Some(
                    "not rolled back, because the cache knows this attachment from an earlier ADD; \
                     DEL it before it is added again"
                        .to_owned(),
                );
            } else {
                let end = index + usize::from(failures.first.cause.may_leave_something());
                let ran = network.plugins.get(..end).unwrap_or_default();
                failures.others = self.begin().del_chain(network, ran, attach, previous).await;
            }
            return Err(failures.into());
        }
        let entry = Entry { result: Some(added.document.clone()), ..Entry::before_add(network, attach) };
        if let Err(cause) = self.record(entry).await {
            if known {
                log::warn!(
                    "network {}: the ADD of {} of {} is not rolled back, because the cache knows this attachment from \
                     an earlier ADD",
                    network.name,
                    attach.ifname,
                    attach.container_id
                );
                return Err(cause.into());
            }
            let rollback =
                self.begin().del_chain(network, &network.plugins, attach, Some(&added.document)).await;
            return Err(Error::Cache { cause, rollback });
        }
        if caller.has_gone() && !known {
            // The caller has gone while the entry was written, so the attachment is taken down again.
            self.del_unlocked(self.recorded(network, attach), attach).await?;
        }
        Ok(added)
    }

    /// Asks every plugin whether the attachment is still as ADD left it. If the network says `disableCheck`, it asks
    /// none and succeeds. The configuration of the ADD counts, as for [`Invoker::del`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] below version 0.4.0, and [`Error::NoResult`] without a usable result of ADD in the cache.
    /// Otherwise the first failure of a plugin, as the specification requires; later plugins are not asked.
    pub async fn check(&self, network: &NetworkList, attach: &Attach) -> Result<(), Error> {
        check_names(&network.name, attach)?;
        let _together = self.together(&network.name, attach).await?;
        let recorded = self.recorded(network, attach);
        recorded.configuration.warn(Verb::Check, attach);
        let network = &*recorded.configuration.network;
        if network.version < Version::V0_4_0 {
            return Err(Error::Unsupported {
                network: network.name.clone(),
                verb: Verb::Check,
                version: network.version,
                since: Version::V0_4_0,
            });
        }
        if network.disable_check {
            return Ok(());
        }
        let result = match recorded.result {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err(format!("the cache in {} has no result of an ADD", self.cache.dir().display())),
            Err(UnusableRecord { why, is_corrupt: true }) => Err(format!("{why}; DEL and ADD it again")),
            Err(UnusableRecord { why, is_corrupt: false }) => Err(why),
        };
        let result = result.map_err(|reason| Error::NoResult {
            network: network.name.clone(),
            container_id: attach.container_id.clone(),
            ifname: attach.ifname.clone(),
            reason,
        })?;
        let this = self.begin();
        for plugin in &network.plugins {
            this.call(Verb::Check, network, plugin, Some(attach), injection(attach, Some(&result)))
                .await
                .map_err(Failures::from_one)?;
        }
        Ok(())
    }

    /// Detaches a container: runs DEL of every plugin, last one first, with the cached result from version 0.4.0 on. It
    /// goes on past a plugin that fails. If all have succeeded, it removes the entry in the cache; a failure of that is
    /// only a warning. A damaged entry, or one without a usable result, is renamed instead, with a warning. Until all
    /// have succeeded the entry stays, so a repeated DEL goes by the same configuration.
    ///
    /// If the cache has the configuration of the ADD, DEL uses that one, and warns if `network` is another. Arguments
    /// are those of `attach`. See [`Invoker::with_given_configuration`].
    ///
    /// # Errors
    /// Fails for a forbidden name and a locked network, and with the failures of all plugins together.
    pub async fn del(&self, network: &NetworkList, attach: &Attach) -> Result<(), Error> {
        check_names(&network.name, attach)?;
        let _together = self.together(&network.name, attach).await?;
        let recorded = self.recorded(network, attach);
        recorded.configuration.warn(Verb::Del, attach);
        self.del_unlocked(recorded, attach).await
    }

    /// Does what [`Invoker::del`] does after its checks. The caller holds the lock of the network.
    pub(super) async fn del_unlocked(&self, recorded: Recorded<'_>, attach: &Attach) -> Result<(), Error> {
        let network = &*recorded.configuration.network;
        let key = attach.key(&network.name);
        let (result, is_corrupt) = match recorded.result {
            Ok(result) => (result, false),
            Err(UnusableRecord { why, is_corrupt }) => {
                log::warn!("{why}; DEL goes on without the result of ADD");
                (None, is_corrupt)
            }
        };
        outcome(self.begin().del_chain(network, &network.plugins, attach, result.as_ref()).await)?;
        // A record stays until its DEL has succeeded, because a repeated DEL may still go by its configuration.
        if is_corrupt {
            match self.cache.rename_corrupt(key) {
                Ok(path) => log::warn!("the corrupt cache entry is now {}", path.display()),
                Err(err) => log::warn!("{err}"),
            }
        } else if let Err(err) = self.cache.remove(key) {
            // The plugins have succeeded, and a second DEL is harmless. Until one succeeds, CHECK and liveness read the
            // entry, and the next ADD takes the attachment for a known one.
            log::warn!("{err}");
        }
        Ok(())
    }

    /// Runs ADD of one plugin with the result of the one before, and reads its result.
    async fn add_one(
        &self,
        network: &NetworkList,
        plugin: &ListEntry,
        attach: &Attach,
        previous: Option<&Value>,
    ) -> Result<Added, Failure> {
        let answer = self.call(Verb::Add, network, plugin, Some(attach), injection(attach, previous)).await?;
        let added = serde_json::from_slice(&answer.stdout)
            .map_err(|err| SpecError::new(Code::DECODE, format!("it is not JSON: {err}")))
            .and_then(|value| convert(value, network.version));
        added.map_err(|reason| {
            let output = first_line(&answer.stdout);
            let cause = PluginError::BadOutput { path: answer.file, reason, output };
            failure(network, &plugin.plugin_type, Verb::Add, cause)
        })
    }

    /// Runs DEL of the plugins in reverse order, and goes on past failures. Returns them all; an empty list is success.
    pub(super) async fn del_chain(
        &self,
        network: &NetworkList,
        plugins: &[ListEntry],
        attach: &Attach,
        result: Option<&Value>,
    ) -> Vec<Failure> {
        let result = result.filter(|_| network.version >= Version::V0_4_0);
        let mut failures = Vec::new();
        for plugin in plugins.iter().rev() {
            let answer = self.call(Verb::Del, network, plugin, Some(attach), injection(attach, result)).await;
            failures.extend(answer.err());
        }
        failures
    }

    /// Runs one verb of one plugin. `attach` is `None` for GC and STATUS.
    pub(super) async fn call(
        &self,
        verb: Verb,
        network: &NetworkList,
        plugin: &ListEntry,
        attach: Option<&Attach>,
        injection: Injection<'_>,
    ) -> Result<PluginOutput, Failure> {
        let file = find_plugin(&plugin.plugin_type, &self.path)
            .map_err(|cause| failure(network, &plugin.plugin_type, verb, cause))?;
        let none = Attach::default();
        let attach = attach.unwrap_or(&none);
        let parameters = Parameters {
            verb,
            container_id: &attach.container_id,
            netns: &attach.netns,
            ifname: &attach.ifname,
            args: &attach.args,
            env: &attach.env,
            path: &self.path,
        };
        let stdin = network.configuration(plugin, &injection).to_string();
        match self.exec.run(&file, &parameters, stdin.as_bytes()).await {
            Ok(stdout) => Ok(PluginOutput { file, stdout }),
            Err(cause) => Err(failure(network, &plugin.plugin_type, verb, cause)),
        }
    }

    /// Writes the entry on a thread that may block.
    async fn record(&self, entry: Entry) -> Result<(), CacheError> {
        let cache = self.cache.clone();
        let path = cache.path(entry.key());
        tokio::task::spawn_blocking(move || cache.put(&entry)).await.unwrap_or_else(|err| {
            Err(CacheError { doing: "writing", path, source: std::io::Error::other(err) })
        })
    }
}

/// The result of an ADD.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Added {
    /// The interfaces, addresses, routes and name servers.
    pub result: CniResult,
    /// The result as JSON in the network's version, also with the keys that the specification does not know.
    pub document: Value,
}

/// The output of a plugin that succeeded.
pub(super) struct PluginOutput {
    file: PathBuf,
    stdout: Vec<u8>,
}

fn injection<'a>(attach: &'a Attach, prev_result: Option<&'a Value>) -> Injection<'a> {
    Injection::attachment(prev_result, &attach.capability_args)
}

/// Returns the configuration to keep in the cache: the list as it was written, with the plugins of the network's
/// folder. So DEL needs neither the file nor the folder.
#[doc(hidden)]
pub fn inlined_config(network: &NetworkList) -> Value {
    let mut document = network.document.clone();
    let inlined = json::get(&document, "plugins").and_then(Value::as_array);
    if inlined.map_or(0, Vec::len) != network.plugins.len()
        && let Some(object) = document.as_object_mut()
    {
        let plugins = network.plugins.iter().map(|plugin| plugin.document.clone());
        set_key(object, "plugins", plugins.collect());
        set_key(object, "loadOnlyInlinedPlugins", Value::Bool(true));
    }
    document
}

/// Sets a key, and removes it in every other spelling, because the case of a key doesn't count.
fn set_key(object: &mut Map<String, Value>, key: &str, value: Value) {
    object.retain(|other, _| !other.eq_ignore_ascii_case(key));
    object.insert(key.to_owned(), value);
}

pub(super) fn failure(network: &NetworkList, plugin: &str, verb: Verb, cause: PluginError) -> Failure {
    Failure { network: network.name.clone(), plugin: plugin.to_owned(), verb, attachment: None, cause }
}

/// Converts a plugin's result into the network's version. A result without a version counts as one of this version. One
/// of this version keeps unknown keys. As in libcni, `null` is an empty result.
pub(super) fn convert(mut document: Value, version: Version) -> Result<Added, SpecError> {
    if document.is_null() {
        document = Value::Object(Map::new());
    }
    let result = CniResult::from_value(&document, version, "")?;
    match json::get(&document, "cniVersion").and_then(Value::as_str) {
        Some(own) if own == version.as_str() => {}
        None | Some("") => {
            if let Some(object) = document.as_object_mut() {
                object.insert("cniVersion".into(), version.as_str().into());
            }
        }
        Some(_) => document = result.to_value(version)?,
    }
    Ok(Added { result, document })
}
