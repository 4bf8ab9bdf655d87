//! Reports every execution of a plugin, for metrics and logs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cnimble_cni::Verb;

use super::error::PluginError;

/// An execution that has ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Execution<'a> {
    /// The file of the plugin.
    pub file: &'a Path,
    /// The verb.
    pub verb: Verb,
    /// The container. It is empty for GC, STATUS and VERSION.
    pub container_id: &'a str,
    /// The time from before the start of the process until it ended or was stopped.
    pub took: Duration,
    /// The error, if it failed.
    pub error: Option<&'a PluginError>,
}

impl Execution<'_> {
    /// Returns the name of the plugin.
    pub fn plugin(&self) -> String {
        self.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// A function that is called after every execution of a plugin, by the task that ran it. An execution whose future is
/// dropped is not reported. One for which no time was left is reported with its error.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&Execution<'_>) + Send + Sync>);

impl Observer {
    /// Wraps `tell`. It should not take long, because the operation waits for it.
    pub fn new(tell: impl Fn(&Execution<'_>) + Send + Sync + 'static) -> Self {
        Observer(Arc::new(tell))
    }

    pub(super) fn report(&self, execution: &Execution<'_>) {
        (self.0)(execution);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
