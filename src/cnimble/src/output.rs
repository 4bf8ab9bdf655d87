//! Writing to stdout and stderr.

use std::io::{self, ErrorKind, Write};

use serde_json::Value;

use cnimble_cni::json;

use super::plain;
use super::report::{Exit, Report};

/// Writes a text to stdout. A reader that closes the pipe early, as `head` does, is no error.
pub(super) fn print(text: &str) -> Result<(), Report> {
    judged(emit(text))
}

/// The same, with all control characters: for what this program has composed alone.
pub(super) fn print_as_is(text: &str) -> Result<(), Report> {
    judged(write(text))
}

fn judged(written: io::Result<()>) -> Result<(), Report> {
    match written {
        Err(err) if err.kind() != ErrorKind::BrokenPipe => Err(unwritten(&err)),
        _ => Ok(()),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

pub(super) fn print_json(value: &Value) -> Result<(), Report> {
    print(&plain::json(&format!("{}\n", json::to_pretty(value))))
}

/// Writes a text to stdout; a closed pipe is an error of its own kind.
pub(super) fn emit(text: &str) -> io::Result<()> {
    write(&plain::text(text))
}

/// The error for output that did not reach stdout.
pub(super) fn unwritten(err: &io::Error) -> Report {
    Report::new(Exit::Files, "can't write to stdout").row("why", err.to_string())
}

/// Writes a note to stderr. A closed stderr is no reason to fail.
pub(super) fn note(text: &str) {
    let _ = io::stderr().write_all(format!("cnimble: {}\n", plain::text(text)).as_bytes());
}
