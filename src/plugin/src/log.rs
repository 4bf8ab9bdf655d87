//! Logs go to stderr and only when asked for: `CNIMBLE_LOG` is `error`, `warn`, `info`,
//! `debug` or `trace`; unset is `warn`.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        // A closed stderr is no reason to fail.
        let _ = writeln!(std::io::stderr(), "cnimble: {level}: {}", record.args());
    }

    fn flush(&self) {}
}

/// Reads `CNIMBLE_LOG` and starts logging. An unknown level counts as `warn`.
pub fn init() {
    let level =
        std::env::var("CNIMBLE_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::Warn);
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}
