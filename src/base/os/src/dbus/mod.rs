//! A client of the system bus for the needs of two plugins. It calls methods with texts or properties as arguments, and
//! waits for each answer. It follows the [D-Bus
//! specification](https://dbus.freedesktop.org/doc/dbus-specification.html): "Authentication Protocol", "Server
//! Addresses" and "Message Protocol".

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use crate::child::signal;

pub use wire::{Answer, Arguments, Value};
use wire::{ERROR, HEADER, RETURN, encode, length, parse};

mod wire;

/// The environment variable with the address of the system bus.
pub const ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT_ADDRESS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The time to wait for an answer. libdbus waits as long for a method.
const PATIENCE: Duration = Duration::from_secs(25);
/// The time after which a termination signal is noticed at the latest.
const NAP: Duration = Duration::from_millis(100);
/// The largest accepted message, in bytes. The expected answers are much smaller, and the specification allows 128 MiB.
const LARGEST: usize = 1 << 20;
/// The longest accepted line of the authentication, in bytes. Usual lines have a few dozen.
const LONGEST_LINE: usize = 4096;

/// The reason why there is no answer.
#[derive(Debug)]
pub enum Error {
    /// The bus cannot be reached, or the connection broke.
    Io(String, io::Error),
    /// The bus or the service refused the call. Contains the name of the error and its text.
    Refused(String, String),
    /// The received data is not valid.
    Protocol(&'static str),
}

/// Returns the error that the login fails.
fn login_error(err: io::Error) -> Error {
    Error::Io("log in to the system bus".into(), err)
}

/// Returns the error that the connection breaks during a call.
fn call_error(method: &Method<'_>, err: io::Error) -> Error {
    Error::Io(format!("call {}.{}", method.interface, method.member), err)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(what, err) => write!(f, "{what}: {err}"),
            Error::Refused(name, text) if text.is_empty() => f.write_str(name),
            Error::Refused(_, text) => f.write_str(text),
            Error::Protocol(what) => write!(f, "D-Bus: {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// A method of an object.
#[derive(Debug, Clone, Copy)]
pub struct Method<'a> {
    /// The name of the service.
    pub destination: &'a str,
    /// The path of the object.
    pub path: &'a str,
    /// The name of the interface.
    pub interface: &'a str,
    /// The name of the method.
    pub member: &'a str,
}

/// A connection to the system bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
}

impl Bus {
    /// Connects to the bus in `DBUS_SYSTEM_BUS_ADDRESS`, or to the default one, as the process's user.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if there is no bus. Fails if the bus refuses the user.
    pub fn system() -> Result<Self, Error> {
        let addresses = std::env::var(ADDRESS).unwrap_or_default();
        let addresses = if addresses.is_empty() { DEFAULT_ADDRESS } else { &addresses };
        let stream = connect(addresses)?;
        let mut bus = Bus { stream, serial: 0 };
        bus.authenticate()?;
        let hello = Method {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member: "Hello",
        };
        bus.call(&hello, &[])?;
        Ok(bus)
    }

    /// Logs in with the mechanism `EXTERNAL`: the kernel has told the bus which user we are.
    fn authenticate(&mut self) -> Result<(), Error> {
        let user = nix::unistd::geteuid().to_string();
        let user: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).map_err(login_error)?;
        let end = patience();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() > LONGEST_LINE {
                return Err(Error::Protocol("a line of the authentication is too long"));
            }
            let mut byte = [0];
            self.read(&mut byte, end).map_err(login_error)?;
            line.extend(byte);
        }
        if !line.starts_with(b"OK ") {
            return Err(Error::Protocol("the bus refuses to authenticate this user"));
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(login_error)
    }

    /// Calls a method with texts and returns its answer. A service that is not running is not started.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] with the error of the service. Fails if the connection breaks.
    pub fn call(&mut self, method: &Method<'_>, arguments: &[&str]) -> Result<Answer, Error> {
        self.call_with(method, &Arguments::texts(arguments))
    }

    /// Calls a method with arguments of other types than [`call`](Self::call).
    ///
    /// # Errors
    /// Fails as [`call`](Self::call) does.
    pub fn call_with(&mut self, method: &Method<'_>, arguments: &Arguments) -> Result<Answer, Error> {
        self.serial = self.serial.wrapping_add(1).max(1);
        self.stream
            .write_all(&encode(method, arguments, self.serial))
            .map_err(|err| call_error(method, err))?;
        let end = patience();
        loop {
            let message = self.receive(end).map_err(|err| call_error(method, err))?;
            let message = message.ok_or(Error::Protocol("a message is too long"))?;
            let parsed = parse(&message).ok_or(Error::Protocol("a message is malformed"))?;
            if parsed.reply_to != Some(self.serial) {
                // The message is a signal, such as NameAcquired.
                continue;
            }
            return match parsed.kind {
                RETURN => Ok(parsed.answer),
                ERROR => {
                    let text = parsed.answer.text().unwrap_or_default();
                    Err(Error::Refused(parsed.error, text))
                }
                _ => Err(Error::Protocol("a call was answered by neither a value nor an error")),
            };
        }
    }

    /// Reads one message. Returns `None` if it is too long.
    fn receive(&mut self, end: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut message = vec![0; HEADER];
        self.read(&mut message, end)?;
        let Some(length) = length(&message).filter(|length| *length <= LARGEST) else { return Ok(None) };
        let mut rest = vec![0; length.saturating_sub(HEADER)];
        self.read(&mut rest, end)?;
        message.append(&mut rest);
        Ok(Some(message))
    }

    /// Fills `room`. Fails after `end`, and after a termination signal.
    fn read(&mut self, mut room: &mut [u8], end: Instant) -> io::Result<()> {
        while !room.is_empty() {
            if let Err(err) = signal::check() {
                signal::cut();
                return Err(io::Error::other(err));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            self.stream.set_read_timeout(Some(left.min(NAP)))?;
            match self.stream.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => room = room.get_mut(length..).unwrap_or_default(),
                Err(err) if matches!(err.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }
}

/// Returns the time until which an answer is waited for. After a termination signal it is earlier.
fn patience() -> Instant {
    let end = Instant::now() + PATIENCE;
    signal::deadline().map_or(end, |deadline| deadline.min(end))
}

/// Connects to the first of the addresses that answers.
fn connect(addresses: &str) -> Result<UnixStream, Error> {
    let mut outcome = Err(Error::Protocol("the address of the system bus is not that of a Unix socket"));
    for address in addresses.split(';') {
        let Some(socket) = address.strip_prefix("unix:").and_then(|rest| rest.split(',').find_map(socket))
        else {
            continue;
        };
        let opened = socket.and_then(|socket| UnixStream::connect_addr(&socket));
        match opened.and_then(|stream| stream.set_write_timeout(Some(PATIENCE)).map(|()| stream)) {
            Ok(stream) => return Ok(stream),
            Err(err) => outcome = Err(Error::Io(format!("connect to the system bus {address}"), err)),
        }
    }
    outcome
}

fn socket(part: &str) -> Option<io::Result<SocketAddr>> {
    let (key, value) = part.split_once('=')?;
    let value = unescape(value)?;
    match key {
        "path" => Some(SocketAddr::from_pathname(OsString::from_vec(value))),
        "abstract" => Some(SocketAddr::from_abstract_name(value)),
        _ => None,
    }
}

/// Decodes escapes such as `%2d`.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(behind.get(..2)?, 16).ok()?);
        rest = behind.get(2..)?;
    }
    bytes.extend(rest.as_bytes());
    Some(bytes)
}

/// Entry point for fuzzers: parses any bytes as an answer.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(bytes: &[u8]) {
    let _ = length(bytes);
    if let Some(parsed) = parse(bytes) {
        let _ = (parsed.answer.text(), parsed.answer.truth());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (part, path) in [("path=/run/bus", "/run/bus"), ("path=/run/a%20b%2c", "/run/a b,")] {
            let found = socket(part).unwrap().unwrap();
            assert_eq!(found.as_pathname().unwrap().to_str(), Some(path));
        }
        assert_eq!(socket("abstract=/tmp/x").unwrap().unwrap().as_abstract_name(), Some(&b"/tmp/x"[..]));
        for part in ["guid=12", "path", "path=%2", "path=%zz", "path=%é"] {
            assert!(socket(part).is_none(), "{part}");
        }
        for address in ["", "tcp:host=localhost", "unix:dir=/tmp"] {
            assert!(matches!(connect(address), Err(Error::Protocol(_))), "{address}");
        }
        let missing = connect("tcp:host=a;unix:path=/nowhere/bus,guid=1").unwrap_err();
        assert!(
            matches!(missing, Error::Io(_, _)) && missing.to_string().contains("/nowhere/bus"),
            "{missing}"
        );
    }
}
