//! Writes to stdout and stderr.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use cnimble_cni::json;

use super::report::{Exit, Report};
use super::style::Paint;
use super::{Session, plain};

/// The output of a verb, as JSON and as text.
pub(super) trait View: Serialize {
    /// Returns the text form. [`Session::show`] escapes control characters in it.
    fn text(&self, paint: Paint) -> String;
}

impl Session {
    /// Prints the output of a verb in the requested form.
    pub(super) fn show(&self, view: &impl View) -> Result<(), Report> {
        if self.json { print_json(view) } else { print(&view.text(self.paint)) }
    }

    /// Fails with the problems of a listing, if it has any. With `--json` only the exit status remains, because the
    /// listing already has them.
    pub(super) fn judge(&self, exit: Exit, what: &str, problems: &[String]) -> Result<(), Report> {
        match problems {
            [] => Ok(()),
            _ if self.json => Err(Report::new(exit, "")),
            _ => Err(problems.iter().fold(Report::new(exit, what), |report, why| report.row("why", why))),
        }
    }
}

/// Prints a text, and escapes control characters. A closed pipe, as with `head`, is no error.
pub(super) fn print(text: &str) -> Result<(), Report> {
    judged(emit(text))
}

/// Prints a text with its control characters. Use it only for text without foreign parts.
pub(super) fn print_as_is(text: &str) -> Result<(), Report> {
    judged(write(text))
}

/// Converts the outcome of a write, and ignores a closed pipe.
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

/// Prints a value as JSON with sorted keys, and escapes invisible characters.
pub(super) fn print_json(value: &(impl Serialize + ?Sized)) -> Result<(), Report> {
    let value = serde_json::to_value(value);
    let value = value.map_err(|err| Report::because(Exit::Files, "can't write the output as JSON", err))?;
    print(&plain::json(&format!("{}\n", json::to_pretty(&value))))
}

/// Prints a text like [`print()`], but fails with [`ErrorKind::BrokenPipe`] if the pipe is closed. A verb that prints
/// without end stops then.
pub(super) fn emit(text: &str) -> io::Result<()> {
    write(&plain::text(text))
}

/// Returns the report for a failed write to stdout.
pub(super) fn unwritten(err: &io::Error) -> Report {
    Report::because(Exit::Files, "can't write to stdout", err)
}

/// Prints a note on stderr. A failure is ignored.
pub(super) fn print_note(text: &str) {
    let _ = io::stderr().write_all(format!("cnimble: {}\n", plain::text(text)).as_bytes());
}
