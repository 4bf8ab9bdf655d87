//! The log of a history: operations as they begin and end, and looks at the kernel. The checker reads it in memory. A
//! file has one JSON object a line for people.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::chain::Set;

/// The properties of an attachment, each as a line: `address 10.1.2.3/24`, `lease 10.1.2.3`.
pub(crate) type Facts = BTreeSet<String>;

/// Microseconds since the log was opened.
pub(crate) type Moment = u64;

/// The effect of an operation on its attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// If it succeeds, the attachment has the properties of its result from then on.
    Adds,
    /// As soon as it begins, the attachment may lose everything.
    Ends,
    /// No effect: a check, a clean-up, the start of a process.
    Other,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It failed with an exit status.
    Failed(String),
    /// It failed after one of its processes had been killed.
    Killed(String),
    /// It failed with plugins that are not ours.
    Theirs(String),
}

/// A line of the log.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Begin { op: usize, at: Moment, meaning: Meaning, who: String, actor: String, what: String },
    End { op: usize, at: Moment, outcome: Outcome, told: Facts },
    Look { from: Moment, to: Moment, who: String, seen: Facts },
}

impl Outcome {
    /// Returns the outcome for plugins of that set.
    pub(crate) fn of(self, set: Set) -> Self {
        match self {
            Outcome::Failed(why) if set == Set::Go => Outcome::Theirs(why),
            other => other,
        }
    }
}

impl Event {
    fn line(&self) -> Value {
        match self {
            Event::Begin { op, at, who, actor, what, .. } => {
                json!({"t": at, "begins": op, "by": actor, "what": what, "who": who})
            }
            Event::End { op, at, outcome, told } => {
                let (word, why) = match outcome {
                    Outcome::Done => ("done", ""),
                    Outcome::Failed(why) => ("failed", why.as_str()),
                    Outcome::Killed(why) => ("killed", why.as_str()),
                    Outcome::Theirs(why) => ("failed, theirs", why.as_str()),
                };
                json!({"t": at, "ends": op, "outcome": word, "why": why, "told": told})
            }
            Event::Look { from, to, who, seen } => json!({"from": from, "t": to, "look": who, "seen": seen}),
        }
    }
}

/// A log that many threads write.
pub(crate) struct Log {
    path: PathBuf,
    began: Instant,
    next: AtomicUsize,
    lines: Mutex<(File, Vec<Event>)>,
}

/// An operation that has begun.
#[must_use]
pub(crate) struct Begun(usize);

impl Log {
    pub(crate) fn create(path: &Path) -> Self {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        Log {
            path: path.to_owned(),
            began: Instant::now(),
            next: AtomicUsize::new(0),
            lines: Mutex::new((file, Vec::new())),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.began.elapsed().as_micros()).unwrap()
    }

    pub(crate) fn begin(&self, actor: &str, meaning: Meaning, who: &str, what: &str) -> Begun {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        let (who, actor, what) = (who.to_owned(), actor.to_owned(), what.to_owned());
        self.write(|at| Event::Begin { op, at, meaning, who, actor, what });
        Begun(op)
    }

    pub(crate) fn end(&self, Begun(op): Begun, outcome: Outcome, told: Facts) {
        self.write(|at| Event::End { op, at, outcome, told });
    }

    /// Logs a look that began at `from` and ends now.
    pub(crate) fn look(&self, from: Moment, who: &str, seen: Facts) {
        let who = who.to_owned();
        self.write(|to| Event::Look { from, to, who, seen });
    }

    /// The time is taken under the lock, so that lines are in order.
    fn write(&self, event: impl FnOnce(Moment) -> Event) {
        let mut lines = self.lines.lock().unwrap();
        let event = event(self.now());
        // A single write(2), so that the file is complete even if the test is killed.
        lines.0.write_all(format!("{}\n", event.line()).as_bytes()).unwrap();
        lines.1.push(event);
    }

    /// Returns all events so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.lines.lock().unwrap().1.clone()
    }
}
