use std::fmt;

use cnimble_api::yaml::Step;

use super::{MAX_SIZE, Origin};
use crate::PodId;

/// An error in a manifest. Its text is `FILE:LINE:COLUMN: pod NAMESPACE/NAME: PATH: PROBLEM`, without the parts that
/// are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    pub origin: Origin,
    /// Line and column, both from 1.
    pub position: Option<(usize, usize)>,
    pub pod: Option<Box<PodId>>,
    /// The field, such as `spec.containers[0].name`. It is empty if the problem is of no field.
    pub path: String,
    pub problem: Problem,
}

impl std::error::Error for ManifestError {}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if let Some(pod) = &self.pod {
            write!(f, ": pod {pod}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// An error in a manifest, or in one of its fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is larger than {MAX_SIZE} bytes")]
    TooLarge,
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("there is no pod in it")]
    Empty,
    #[error("{0}")]
    Syntax(String),
    /// The name of another kind of object.
    #[error("expected a Pod, PodList or List of apiVersion v1, got {0}")]
    Kind(String),
    /// The number of further faults.
    #[error("{0} more things are wrong")]
    More(usize),
    #[error("{0}")]
    Invalid(String),
}

impl From<cnimble_api::yaml::Problem> for Problem {
    fn from(problem: cnimble_api::yaml::Problem) -> Self {
        match problem {
            cnimble_api::yaml::Problem::Syntax(text) => Problem::Syntax(text),
            cnimble_api::yaml::Problem::TooComplex(text) => Problem::Invalid(text),
        }
    }
}

/// Returns the text of a path, such as `a.b[0].c` or `metadata.annotations[example.com/x]`.
pub(super) fn shown(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Index(index) => text.push_str(&format!("[{index}]")),
            Step::Key(key) if key.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            Step::Key(key) => text.push_str(&format!("[{}]", key.escape_debug())),
        }
    }
    short(text)
}

/// How many characters of a text from outside an error shows.
const SHOWN: usize = 300;

/// Cuts a text to [`SHOWN`] characters.
pub(super) fn short(text: String) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
