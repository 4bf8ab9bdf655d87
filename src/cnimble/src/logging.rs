//! Logs to stderr as text or JSON.

use std::io::Write;

use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::Map;

use cnimble_plugin::level_name;

use super::args::service::LogFormat;
use super::plain;
use super::report::{Report, usage};
use super::run::progress;

/// Writes each record as one line.
struct Stderr {
    format: LogFormat,
}

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = match self.format {
            LogFormat::Text => text(record),
            LogFormat::Json => json(record),
        };
        // Whole lines of several threads don't mix. If stderr is closed there is no place to report it.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Returns a record as text. Control characters are escaped, as a message can contain untrusted names.
fn text(record: &Record<'_>) -> String {
    let over = progress::before_line();
    // A plugin's message can have several lines. The indent distinguishes them from lines of the log.
    let message = plain::text(&record.args().to_string()).replace('\n', "\n  ");
    match record.level() {
        Level::Info => format!("{over}cnimble: {message}\n"),
        level => format!("{over}cnimble: {}: {message}\n", level_name(level)),
    }
}

/// Returns a record as a line of JSON with its fields.
fn json(record: &Record<'_>) -> String {
    let mut object = Map::new();
    object.insert("time".into(), jiff::Timestamp::now().to_string().into());
    object.insert("level".into(), level_name(record.level()).into());
    object.insert("message".into(), record.args().to_string().into());
    object.insert("module".into(), record.target().into());
    // Unreadable fields are omitted.
    let _ = record.key_values().visit(&mut Fields(&mut object));
    let mut line = plain::json(&serde_json::Value::Object(object).to_string());
    line.push('\n');
    line
}

/// Copies the fields of a record. A field with the name of an earlier one replaces it.
struct Fields<'a>(&'a mut Map<String, serde_json::Value>);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let value = match (value.to_u64(), value.to_f64(), value.to_bool()) {
            (Some(number), _, _) => number.into(),
            (_, Some(number), _) => number.into(),
            (_, _, Some(flag)) => flag.into(),
            _ => value.to_string().into(),
        };
        self.0.insert(key.as_str().to_owned(), value);
        Ok(())
    }
}

/// Starts logging at the level `usual`, which `CNIMBLE_LOG` overrides.
///
/// # Errors
/// Fails with a usage error if the variable names no level.
pub(super) fn init(format: LogFormat, usual: LevelFilter) -> Result<(), Report> {
    let given = std::env::var_os("CNIMBLE_LOG").filter(|text| !text.is_empty());
    let level = given.map_or(Ok(usual), |text| {
        let level = text.to_str().and_then(|text| text.parse().ok());
        level.ok_or_else(|| {
            usage(format!("CNIMBLE_LOG={} names no level of logs", text.display()))
                .hint("the levels are off, error, warn, info, debug and trace")
        })
    })?;
    if log::set_boxed_logger(Box::new(Stderr { format })).is_ok() {
        log::set_max_level(level);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_members_of_the_object() {
        let fields = [("pod", Value::from("default/web")), ("failures", Value::from(3_u32))];
        let args = format_args!("it \"failed\"");
        let record = Record::builder().args(args).level(Level::Warn).key_values(&fields).build();
        let read: serde_json::Value = serde_json::from_str(&json(&record)).unwrap_or_default();
        assert_eq!(read["level"], "warning");
        assert_eq!(read["message"], "it \"failed\"");
        assert_eq!((&read["pod"], &read["failures"]), (&"default/web".into(), &3.into()));
        assert!(read["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{read}");
    }
}
