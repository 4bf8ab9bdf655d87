//! The plugins that failed in an operation, in the order of time.

use std::fmt;

use cnimble_cni as cni;
use cnimble_cni::Verb;

use super::PluginError;

/// One plugin that failed in an operation on a network.
#[derive(Debug, thiserror::Error)]
#[error("{verb} of plugin {plugin} in network {network}{}: {cause}", of_another(attachment.as_ref()))]
#[non_exhaustive]
pub struct Failure {
    /// The name of the network.
    pub network: String,
    /// The type of the plugin.
    pub plugin: String,
    /// The verb that failed.
    pub verb: Verb,
    /// The attachment, if it is not the one that the caller gave. GC runs DEL of other attachments.
    pub attachment: Option<cni::Attachment>,
    /// The reason of the failure.
    #[source]
    pub cause: PluginError,
}

fn of_another(attachment: Option<&cni::Attachment>) -> String {
    attachment.map_or_else(String::new, |of| format!(" for {} {}", of.container_id, of.ifname))
}

/// All plugins that failed in one operation, in the order of time: the first is the cause.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failures {
    /// The failure that came first.
    pub first: Failure,
    /// Later failures, of other plugins of a DEL or of the rollback of an ADD.
    pub others: Vec<Failure>,
    /// Further facts for the reader.
    pub note: Option<String>,
}

impl Failures {
    /// Returns the single failure of an operation.
    pub(crate) fn from_one(first: Failure) -> Self {
        Failures { first, others: Vec::new(), note: None }
    }

    /// Combines failures in the order of time. Returns `None` for an empty list.
    pub fn from_list(mut failures: Vec<Failure>) -> Option<Self> {
        if failures.is_empty() {
            return None;
        }
        let others = failures.split_off(1);
        Some(Failures { first: failures.pop()?, others, note: None })
    }

    /// Converts the failures into one error of the specification, by the rules of [`Error::to_spec`].
    ///
    /// [`Error::to_spec`]: super::Error::to_spec
    pub(super) fn to_spec(&self) -> cni::Error {
        let first = &self.first;
        let mut error = match &first.cause {
            PluginError::Refused { error, .. } => error.clone().context(format_args!(
                "{} of plugin {} in network {}",
                first.verb, first.plugin, first.network
            )),
            _ => cni::Error::new(first.cause.code(), first.to_string()),
        };
        for other in &self.others {
            error = error.details(format!("then {other}"));
        }
        match &self.note {
            Some(note) => error.details(note),
            None => error,
        }
    }

    /// Returns all failures, the first one in front.
    pub fn iter(&self) -> impl Iterator<Item = &Failure> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.first, super::then(&self.others))?;
        if let Some(note) = &self.note {
            write!(f, "; {note}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failures {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.first.cause)
    }
}
