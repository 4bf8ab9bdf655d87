//! The verbs of the protocol: `CNI_COMMAND`.

use std::fmt;

/// An operation of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Attaches a container to a network.
    Add,
    /// Detaches a container from a network.
    Del,
    /// Asks whether the attachment is as ADD left it.
    Check,
    /// Removes what belongs to no valid attachment.
    Gc,
    /// Asks whether ADD could succeed now.
    Status,
    /// Asks for the versions of the protocol that the plugin supports.
    Version,
}

impl Verb {
    /// Reads `ADD` and so on, in exactly this case, as the specification has it.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ADD" => Verb::Add,
            "DEL" => Verb::Del,
            "CHECK" => Verb::Check,
            "GC" => Verb::Gc,
            "STATUS" => Verb::Status,
            "VERSION" => Verb::Version,
            _ => return None,
        })
    }

    /// The value of `CNI_COMMAND`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_read_as_they_are_written() {
        for (verb, text) in [
            (Verb::Add, "ADD"),
            (Verb::Del, "DEL"),
            (Verb::Check, "CHECK"),
            (Verb::Gc, "GC"),
            (Verb::Status, "STATUS"),
            (Verb::Version, "VERSION"),
        ] {
            assert_eq!((Verb::parse(text), verb.to_string().as_str()), (Some(verb), text));
            assert_eq!(Verb::parse(&text.to_lowercase()), None);
        }
        assert_eq!(Verb::parse(""), None);
    }
}
