use std::fmt::{self, Write};

use cnimble_api::is_unseen;
use serde::{Deserialize, Serialize};

/// The namespace and name of a pod. Its text form is `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodId {
    /// The Kubernetes namespace (not the network namespace).
    pub namespace: String,
    pub name: String,
}

impl PodId {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        PodId { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text must be one readable line, also for an invalid name.
        for char in self.namespace.chars().chain(['/']).chain(self.name.chars()) {
            if is_unseen(char) { write!(f, "{}", char.escape_debug())? } else { f.write_char(char)? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_on_one_line() {
        assert_eq!(PodId::new("default", "web-0").to_string(), "default/web-0");
        assert_eq!(PodId::new("a\nb", "c\u{1b}[0m").to_string(), "a\\nb/c\\u{1b}[0m");
        assert_eq!(PodId::new("a", "b\u{202e}c").to_string(), "a/b\\u{202e}c");
    }
}
