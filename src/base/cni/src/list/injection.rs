//! The configuration that a plugin of a list gets on its stdin (specification 1.1.0, "Deriving execution
//! configuration"). An injected key replaces every spelling of it, since a plugin may match keys without regard to
//! case. A `runtimeConfig` that the administrator wrote by hand stays if nothing replaces it, as with libcni.

use serde_json::{Map, Value};

use super::{ListEntry, NetworkList};
use crate::Attachment;
use crate::attachments::{OLD_ATTACHMENTS, VALID_ATTACHMENTS};

/// The keys that a runtime adds to a plugin's entry for one call. The default adds none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injection<'a> {
    prev_result: Option<&'a Value>,
    capability_args: Option<&'a Map<String, Value>>,
    valid_attachments: Option<&'a [Attachment]>,
    capabilities: bool,
}

impl<'a> Injection<'a> {
    /// The keys for ADD, CHECK and DEL: the result of the plugin before, or of the ADD before, and the arguments by
    /// capability.
    pub fn attachment(prev_result: Option<&'a Value>, capability_args: &'a Map<String, Value>) -> Self {
        Injection { prev_result, capability_args: Some(capability_args), ..Injection::default() }
    }

    /// The key for GC: the valid attachments, or none if they are unknown.
    pub fn gc(valid_attachments: Option<&'a [Attachment]>) -> Self {
        Injection { valid_attachments, ..Injection::default() }
    }

    /// Returns the injection of STATUS. `capabilities` stay in the configuration, as with libcni. By them alone can a
    /// plugin tell that something is to come with each attachment, such as host-local's ranges.
    pub fn status() -> Self {
        Injection { capabilities: true, ..Injection::default() }
    }
}

impl NetworkList {
    /// Returns the configuration that `entry` gets on stdin: its own with the network's name and version, and with the
    /// values of `injection`. It has no `capabilities`, unless `injection` keeps them.
    pub fn configuration(&self, entry: &ListEntry, injection: &Injection<'_>) -> Value {
        let mut config = entry.document.as_object().cloned().unwrap_or_default();
        if !injection.capabilities {
            remove(&mut config, "capabilities");
        }
        inject(&mut config, "name", Value::from(self.name.as_str()));
        inject(&mut config, "cniVersion", Value::from(self.version.as_str()));
        if let Some(result) = injection.prev_result {
            inject(&mut config, "prevResult", result.clone());
        }
        if let Some(args) = injection.capability_args {
            let wanted = entry.capabilities.iter();
            let granted: Map<String, Value> =
                wanted.filter_map(|key| Some((key.clone(), args.get(key)?.clone()))).collect();
            if !granted.is_empty() {
                inject(&mut config, "runtimeConfig", Value::Object(granted));
            }
        }
        if let Some(attachments) = injection.valid_attachments {
            let list: Value = attachments
                .iter()
                .map(|it| serde_json::json!({ "containerID": it.container_id, "ifname": it.ifname }))
                .collect();
            inject(&mut config, OLD_ATTACHMENTS, list.clone());
            inject(&mut config, VALID_ATTACHMENTS, list);
        }
        Value::Object(config)
    }
}

/// Removes every spelling of a key.
/// Gives a key this value.
fn inject(config: &mut Map<String, Value>, key: &str, value: Value) {
    // Another spelling left beside ours could win in a plugin that reads any case.
    remove(config, key);
    config.insert(key.to_owned(), value);
}

fn remove(config: &mut Map<String, Value>, key: &str) {
    config.retain(|other, _| !other.eq_ignore_ascii_case(key));
}
