//! Logs. Lines go to stderr, at the level of `CNIMBLE_LOG` (`error` to `trace`, `warn` by default).
//!
//! Most runtimes drop a plugin's stderr. So the keys `logFile` and `logLevel` of a configuration, as Multus names them,
//! name a file besides. It gets a JSON object a line, with the fields of `cnimble run --log-format json`, and the
//! outcome of each call. The value `journal` names systemd's journal instead of a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::{Map, Value, json};

use cnimble_cni::{Error, PluginConfig, json};

/// The level of the log file unless `logLevel` says otherwise.
const FILE_LEVEL: LevelFilter = LevelFilter::Info;

struct Logger {
    stderr: AtomicUsize,
    file: OnceLock<LogFile>,
}

/// The value of `logFile` that stands for systemd's journal.
const JOURNAL: &str = "journal";

/// The socket of the journal (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

enum Target {
    File(File),
    Journal(UnixDatagram),
}

/// The log file of this call.
struct LogFile {
    target: Target,
    level: LevelFilter,
    started: Instant,
    /// The fields that are in every line.
    call: Map<String, Value>,
}

static LOGGER: Logger = Logger { stderr: AtomicUsize::new(0), file: OnceLock::new() };

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level();
        if level as usize <= self.stderr.load(Ordering::Relaxed) {
            // A closed stderr is no reason to fail.
            let _ = writeln!(std::io::stderr(), "cnimble: {}: {}", level_name(level), record.args());
        }
        if let Some(file) = self.file.get() {
            file.write(level, &record.args().to_string(), []);
        }
    }

    fn flush(&self) {}
}

/// Returns the name of a level in the log of cnimble.
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

impl LogFile {
    /// Writes a line if the level is high enough. Ignores an error: a full disk is no reason to fail.
    fn write<const N: usize>(&self, level: Level, message: &str, fields: [(&str, Value); N]) {
        if level > self.level {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let own = [
            ("time", json!(timestamp(now))),
            ("level", json!(level_name(level))),
            ("message", json!(message)),
        ];
        let mut object: Map<String, Value> =
            own.into_iter().chain(fields).map(|(key, value)| (key.to_owned(), value)).collect();
        object.extend(self.call.clone());
        let _ = match &self.target {
            // One write(2) for a line, so that lines of concurrent calls do not mix.
            Target::File(file) => (&mut &*file).write_all(format!("{}\n", Value::Object(object)).as_bytes()),
            Target::Journal(socket) => socket.send(&entry(level, &object)).map(drop),
        };
    }
}

/// Returns an entry in the journal's format. A field of the log becomes `CNI_` and its name, except the message. Time
/// and level are left out, because the journal has fields of its own for them.
fn entry(level: Level, object: &Map<String, Value>) -> Vec<u8> {
    // Priorities of syslog(3).
    let priority = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    let mut bytes = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=cnimble\n").into_bytes();
    for (key, value) in object.iter().filter(|(key, _)| *key != "time" && *key != "level") {
        let name =
            if key == "message" { "MESSAGE".to_owned() } else { format!("CNI_{}", key.to_ascii_uppercase()) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        // The form for values that may have several lines: name, length and value.
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// Opens the file of `logFile`, or a socket to the journal.
fn target(path: &str) -> io::Result<Target> {
    if path == JOURNAL {
        let socket = UnixDatagram::unbound()?;
        // A full journal would stop the call.
        socket.set_nonblocking(true)?;
        socket.connect(JOURNAL_SOCKET)?;
        return Ok(Target::Journal(socket));
    }
    // The working directory is the runtime's, and may be any.
    if !path.starts_with('/') {
        return Err(io::Error::other("it is no absolute path"));
    }
    // Who can write to the directory could name any file of the host by a link. A FIFO without a reader would stop the
    // call.
    let mut options = File::options();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    options.open(path).map(Target::File).map_err(|err| match err.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        _ => err,
    })
}

/// Starts the log on stderr. An unknown level in `CNIMBLE_LOG` counts as `warn`.
pub(crate) fn init() {
    let level =
        std::env::var("CNIMBLE_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::Warn);
    LOGGER.stderr.store(level as usize, Ordering::Relaxed);
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(level);
    }
}

/// Opens the file of `logFile`, if the key is there. The fields `call` are in every line. If the file can't be opened,
/// this only warns: a log keeps no pod from its network.
///
/// Fails with code 7 if a key is no text, or the level is unknown. The caller lets DEL and GC go on without a log file
/// then. Without `logFile`, `logLevel` is not read, so its value is no error.
pub(crate) fn open(config: &PluginConfig, call: &[(&str, &str)]) -> Result<(), Error> {
    let Some(path) = text(config, "logFile")? else { return Ok(()) };
    let level = text(config, "logLevel")?.map_or(Ok(FILE_LEVEL), level_of)?;
    let target = match target(path) {
        Ok(target) => target,
        Err(err) => {
            log::warn!("can't open the log file {path}: {err}");
            return Ok(());
        }
    };
    let known = call.iter().filter(|(_, value)| !value.is_empty());
    let call = known.map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if LOGGER.file.set(LogFile { target, level, started: Instant::now(), call }).is_ok() {
        log::set_max_level(log::max_level().max(level));
    }
    Ok(())
}

/// Writes the outcome of the call to the log file alone. Its caller prints it to stdout.
pub(crate) fn outcome(outcome: Result<(), &Error>) {
    let Some(file) = LOGGER.file.get() else { return };
    let seconds = ("seconds", json!(file.started.elapsed().as_secs_f64()));
    match outcome {
        Ok(()) => file.write(Level::Info, "done", [seconds]),
        Err(err) => file.write(Level::Error, &err.to_string(), [seconds, ("code", json!(err.code.0))]),
    }
}

/// Reads a key with a text. `None` if it is missing or empty.
fn text<'c>(config: &'c PluginConfig, key: &str) -> Result<Option<&'c str>, Error> {
    match json::get(config.document(), key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty()).map(String::as_str)),
        Some(_) => Err(Error::config(format!("{key} is not a text"))),
    }
}

/// Reads the key `logLevel`. `panic` and `verbose` are levels of Multus.
fn level_of(text: &str) -> Result<LevelFilter, Error> {
    match text {
        "panic" => Ok(LevelFilter::Error),
        "warning" => Ok(LevelFilter::Warn),
        "verbose" => Ok(LevelFilter::Info),
        other => other.parse().map_err(|_| {
            Error::config(format!("unknown logLevel \"{}\"", other.escape_default()))
                .details("known are error, warning, info, debug and trace, and panic and verbose of Multus")
        }),
    }
}

/// Returns the time since 1970 in UTC, in the form of RFC 3339: `2026-11-24T22:40:01.250000Z`.
fn timestamp(since: Duration) -> String {
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day of a leap year is the last; 719,468 days lie between 1 March of the
    // year 0 and 1970 (https://howardhinnant.github.io/date_algorithms.html, civil_from_days).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month < 3);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339() {
        let at = |seconds, micros: u32| timestamp(Duration::new(seconds, micros * 1000));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400, 5), "2000-02-29T00:00:00.000005Z");
        assert_eq!(at(1_735_689_599, 999_999), "2024-12-31T23:59:59.999999Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }

    #[test]
    fn levels_are_ours_and_those_of_multus() {
        for (text, level) in
            [("debug", LevelFilter::Debug), ("verbose", LevelFilter::Info), ("panic", LevelFilter::Error)]
        {
            assert_eq!(level_of(text).unwrap(), level);
        }
        assert!(level_of("loud").unwrap_err().to_string().contains("unknown logLevel \"loud\""));
    }
}
