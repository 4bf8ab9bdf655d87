//! Findings with their rule and position.

use std::ops::Range;

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A remark.
    Note,
    /// The configuration works, but does not do what it says.
    Warning,
    /// A plugin or the runtime refuses the configuration.
    Error,
}

impl Level {
    /// Returns the name of the level, which is SARIF's, too.
    pub fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

macro_rules! rules {
    ($($variant:ident $name:literal $about:literal)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule { $(#[doc = $about] $variant,)* }

        impl Rule {
            pub const ALL: &[Rule] = &[$(Rule::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Rule::$variant => $name),* }
            }

            pub fn about(self) -> &'static str {
                match self { $(Rule::$variant => $about),* }
            }
        }
    };
}

rules! {
    Syntax "syntax" "The file is no JSON, or no object."
    UnknownKey "unknown-key" "A key that the plugin doesn't read: it has no effect. Most are misspelt."
    DuplicateKey "duplicate-key" "A key that is given twice in an object: one value is lost."
    WrongType "wrong-type" "A value of another type than the plugin reads."
    InvalidValue "invalid-value" "A value that no plugin accepts."
    MissingKey "missing-key" "A key that the plugin can't do without."
    Conflict "conflict" "Keys that don't go together."
    NoEffect "no-effect" "A key that does nothing because of another one."
    Overlap "overlap" "A subnet that another network, a bridge or a route of the host has, too."
    ChainOrder "chain-order" "Plugins in an order that makes one of them fail or do nothing."
    Capability "capability" "A capability that no plugin takes, or one that a plugin needs and doesn't get."
    Version "version" "A version of the specification that there isn't, or that a plugin doesn't speak."
    Plugin "plugin" "A plugin that is missing, can't be asked, or refuses its configuration."
    UnknownPlugin "unknown-plugin" "A plugin whose keys aren't known here: they were not checked."
}

/// A problem in a file, or a remark about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    pub level: Level,
    /// The range of bytes in the file.
    pub range: Range<usize>,
    pub message: String,
}

impl Finding {
    /// Creates an error at a range of bytes.
    pub fn error(rule: Rule, range: Range<usize>, message: impl Into<String>) -> Self {
        Finding { rule, level: Level::Error, range, message: message.into() }
    }

    /// Creates a warning at a range of bytes.
    pub fn warning(rule: Rule, range: Range<usize>, message: impl Into<String>) -> Self {
        Finding { rule, level: Level::Warning, range, message: message.into() }
    }

    /// Creates a note at a range of bytes.
    pub fn note(rule: Rule, range: Range<usize>, message: impl Into<String>) -> Self {
        Finding { rule, level: Level::Note, range, message: message.into() }
    }
}

/// Findings while they are collected.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    pub(crate) fn error(&mut self, rule: Rule, range: &Range<usize>, message: impl Into<String>) {
        self.0.push(Finding::error(rule, range.clone(), message));
    }

    pub(crate) fn warning(&mut self, rule: Rule, range: &Range<usize>, message: impl Into<String>) {
        self.0.push(Finding::warning(rule, range.clone(), message));
    }

    pub(crate) fn note(&mut self, rule: Rule, range: &Range<usize>, message: impl Into<String>) {
        self.0.push(Finding::note(rule, range.clone(), message));
    }

    /// Returns the findings by position, each one once.
    pub(crate) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| (finding.range.start, finding.rule));
        self.0.dedup();
        self.0
    }
}
