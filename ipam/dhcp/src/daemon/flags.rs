//! The options of `dhcp daemon`: those of the Go daemon, in Go's form, and `-once`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::slice;

use crate::config;
use crate::ipc::LeaseRequest;

/// The values of the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) pidfile: Option<PathBuf>,
    /// The host's root directory as the daemon sees it. Empty if the daemon runs on the host.
    pub(crate) host_prefix: String,
    pub(crate) socket: PathBuf,
    /// Whether servers are asked to broadcast their answers.
    pub(crate) broadcast: bool,
    /// A limit in milliseconds. The smaller of `timeout` and `resend_max` limits the pause before a repetition.
    pub(crate) timeout: u64,
    /// The other limit of that pause, in milliseconds.
    pub(crate) resend_max: u64,
    /// The time that an ADD has if its network sets no limit, in milliseconds.
    pub(crate) resend_timeout: u64,
    /// Whether the daemon exits after its last lease. The Go daemon has no such option.
    pub(crate) once: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            pidfile: None,
            host_prefix: String::new(),
            socket: config::SOCKET.into(),
            broadcast: false,
            timeout: 10_000,
            resend_max: 62_000,
            resend_timeout: 208_000,
            once: false,
        }
    }
}

pub(crate) const USAGE: &str = "usage: dhcp daemon [OPTION]...
  -pidfile PATH            write the process ID there
  -hostprefix PATH         the host's root directory, where the daemon runs in a container
  -socketpath PATH         where to listen (default /run/cnimble/dhcp.sock)
  -timeout DURATION        of one message, before it is sent again (default 10s)
  -resendmax DURATION      the longest pause before a message is sent again (default 1m2s)
  -resendtimeout DURATION  of an ADD (default 3m28s)
  -broadcast               ask servers to broadcast their answers
  -once                    end when the last lease has ended
";

impl Flags {
    /// Parses the arguments after `daemon`. Fails with the reason.
    pub(crate) fn read(args: &[OsString]) -> Result<Flags, String> {
        let mut flags = Flags::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let text = arg.to_str().ok_or("an option is not valid UTF-8")?;
            let name = text
                .strip_prefix("--")
                .or_else(|| text.strip_prefix('-'))
                .ok_or(format!("unexpected argument {text}"))?;
            let (name, inline) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, None),
            };
            if let Some(flag) = flags.switch(name) {
                *flag = match inline {
                    None | Some("true" | "1" | "t" | "T" | "TRUE" | "True") => true,
                    Some("false" | "0" | "f" | "F" | "FALSE" | "False") => false,
                    Some(other) => {
                        return Err(format!("-{name}: invalid value {other}, expected true or false"));
                    }
                };
                continue;
            }
            match name {
                "pidfile" => {
                    let path = value_of(name, inline, &mut args)?;
                    flags.pidfile = (!path.is_empty()).then(|| path.into());
                }
                "hostprefix" => flags.host_prefix = value_of(name, inline, &mut args)?,
                "socketpath" => {
                    let path = value_of(name, inline, &mut args)?;
                    if !path.is_empty() {
                        flags.socket = path.into();
                    }
                }
                "timeout" => flags.timeout = duration(name, &value_of(name, inline, &mut args)?)?,
                "resendmax" => flags.resend_max = duration(name, &value_of(name, inline, &mut args)?)?,
                "resendtimeout" => {
                    flags.resend_timeout = duration(name, &value_of(name, inline, &mut args)?)?;
                }
                _ => return Err(format!("unknown option -{name}")),
            }
        }
        match &flags.pidfile {
            Some(path) if !path.is_absolute() => {
                Err(format!("Error writing pidfile \"{}\": path not absolute", path.display()))
            }
            _ => Ok(flags),
        }
    }

    /// Returns the option of this name that needs no value, or `None`.
    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "broadcast" => Some(&mut self.broadcast),
            "once" => Some(&mut self.once),
            _ => None,
        }
    }

    /// Returns the time that this ADD has, in milliseconds.
    pub(crate) fn limit(&self, wanted: &LeaseRequest) -> u64 {
        wanted.timeout.map_or(self.resend_timeout, |seconds| u64::from(seconds) * 1000)
    }

    /// Returns the path by which the lease daemon finds the host's `path`.
    pub(crate) fn on_host(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("{}{path}", self.host_prefix))
    }
}

/// Returns the value of the option `name`: the text after `=`, or else the next argument. Fails if there is neither.
fn value_of(
    name: &str,
    inline: Option<&str>,
    args: &mut slice::Iter<'_, OsString>,
) -> Result<String, String> {
    if let Some(value) = inline {
        return Ok(value.to_owned());
    }
    match args.next().map(|value| value.to_str()) {
        Some(Some(value)) => Ok(value.to_owned()),
        _ => Err(format!("-{name} needs a value")),
    }
}

/// Parses a duration in Go's notation (`1m30s`, `1.5s`, `300ms`) to milliseconds. Fractions of a millisecond are
/// dropped.
fn duration(option: &str, text: &str) -> Result<u64, String> {
    let (mut rest, mut sum) = (text, 0_f64);
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| invalid_duration(option, text))?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let factor = match unit {
            "h" => 3_600_000.0,
            "m" => 60_000.0,
            "s" => 1000.0,
            "ms" => 1.0,
            "us" | "µs" => 0.001,
            "ns" => 0.000_001,
            _ => return Err(invalid_duration(option, text)),
        };
        sum += number.parse::<f64>().map_err(|_| invalid_duration(option, text))? * factor;
        rest = tail;
    }
    // The limit is far above any useful duration.
    if text.is_empty() || sum > 1e15 { Err(invalid_duration(option, text)) } else { Ok(sum as u64) }
}

/// Returns the error text for a text that is no duration.
fn invalid_duration(option: &str, text: &str) -> String {
    format!("-{option}: invalid duration {text}, expected one such as 10s or 1m30s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Flags, String> {
        Flags::read(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_the_go_daemon_are_read() {
        let flags = read(
            "-pidfile /run/dhcp.pid -hostprefix=/host --socketpath /run/cni/dhcp.sock -broadcast=true \
             -timeout 1.5s -resendmax=1m2s -resendtimeout 300ms",
        )
        .unwrap();
        let expected = Flags {
            pidfile: Some("/run/dhcp.pid".into()),
            host_prefix: "/host".into(),
            socket: "/run/cni/dhcp.sock".into(),
            broadcast: true,
            timeout: 1500,
            resend_max: 62_000,
            resend_timeout: 300,
            once: false,
        };
        assert_eq!(flags, expected);
        assert_eq!(read("").unwrap(), Flags::default());
        assert_eq!(flags.on_host("/run/x"), PathBuf::from("/host/run/x"));
    }

    #[test]
    fn says_what_is_wrong() {
        for line in [
            "x",
            "-x",
            "-timeout",
            "-timeout 5",
            "-timeout=s",
            "-timeout=-1s",
            "-timeout=1x",
            "-timeout=99999999999999h",
            "-broadcast=x",
            "-pidfile x",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
