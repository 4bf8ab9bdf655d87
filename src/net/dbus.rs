//! A client of the system bus, as far as one plugin needs it: it calls methods whose arguments
//! are texts, and waits for each answer. No signals, no file descriptors, no runtime.
//!
//! Written after the [D-Bus specification](https://dbus.freedesktop.org/doc/dbus-specification.html):
//! "Authentication Protocol", "Server Addresses" and "Message Protocol".

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

const ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT_ADDRESS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// How long one answer may take: what libdbus gives a method.
const PATIENCE: Duration = Duration::from_secs(25);
/// No answer that we ask for comes near this; the specification's limit is 128 MiB.
const LARGEST: usize = 1 << 20;
/// Lines of the authentication have a few dozen bytes.
const LONGEST_LINE: usize = 4096;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
/// An answer's kind, fields and body begin behind this.
const HEADER: usize = 16;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// Why there is no answer.
#[derive(Debug)]
pub enum Error {
    /// The bus can't be reached, or the connection broke.
    Io(String, io::Error),
    /// The bus or the service says no: the error's name and its text.
    Refused(String, String),
    /// What came makes no sense.
    Protocol(&'static str),
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
    /// The service.
    pub destination: &'a str,
    /// The object.
    pub path: &'a str,
    /// The interface.
    pub interface: &'a str,
    /// The name.
    pub member: &'a str,
}

/// A connection to the system bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
}

impl Bus {
    /// Connects to the bus that `DBUS_SYSTEM_BUS_ADDRESS` names, or the usual one, as the
    /// process's user.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no bus; if it doesn't take us.
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

    /// `EXTERNAL`: the kernel has told the bus who we are.
    fn authenticate(&mut self) -> Result<(), Error> {
        let failed = |err| Error::Io("log in to the system bus".into(), err);
        let user = nix::unistd::geteuid().to_string();
        let user: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).map_err(failed)?;
        let end = Instant::now() + PATIENCE;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() > LONGEST_LINE {
                return Err(Error::Protocol("a line of the authentication is too long"));
            }
            let mut byte = [0];
            self.read(&mut byte, end).map_err(failed)?;
            line.extend(byte);
        }
        if !line.starts_with(b"OK ") {
            return Err(Error::Protocol("the bus doesn't take us for who we are"));
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(failed)
    }

    /// Calls a method and returns its answer. A service that isn't running is not started.
    ///
    /// # Errors
    /// [`Error::Refused`] with what the service says; the connection's.
    pub fn call(&mut self, method: &Method<'_>, arguments: &[&str]) -> Result<Answer, Error> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let failed = |err| Error::Io(format!("call {}.{}", method.interface, method.member), err);
        self.stream.write_all(&encode(method, arguments, self.serial)).map_err(failed)?;
        let end = Instant::now() + PATIENCE;
        loop {
            let message =
                self.receive(end).map_err(failed)?.ok_or(Error::Protocol("a message is too long"))?;
            let parsed = parse(&message).ok_or(Error::Protocol("a message is malformed"))?;
            if parsed.reply_to != Some(self.serial) {
                // A signal, such as the word that we have a name now.
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

    /// One whole message; `None` if it is too long.
    fn receive(&mut self, end: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut message = vec![0; HEADER];
        self.read(&mut message, end)?;
        let Some(length) = length(&message).filter(|length| *length <= LARGEST) else { return Ok(None) };
        let mut rest = vec![0; length.saturating_sub(HEADER)];
        self.read(&mut rest, end)?;
        message.append(&mut rest);
        Ok(Some(message))
    }

    /// Fills `room`, in time.
    fn read(&mut self, mut room: &mut [u8], end: Instant) -> io::Result<()> {
        while !room.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in 25 seconds"));
            }
            self.stream.set_read_timeout(Some(left))?;
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

/// Tries the addresses one after the other.
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

/// The socket that a part of an address names.
fn socket(part: &str) -> Option<io::Result<SocketAddr>> {
    let (key, value) = part.split_once('=')?;
    let value = unescape(value)?;
    match key {
        "path" => Some(SocketAddr::from_pathname(OsString::from_vec(value))),
        "abstract" => Some(SocketAddr::from_abstract_name(value)),
        _ => None,
    }
}

/// `%2d` and the like.
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

/// A call in little-endian bytes, which every bus takes.
fn encode(method: &Method<'_>, arguments: &[&str], serial: u32) -> Vec<u8> {
    const NO_AUTO_START: u8 = 2;
    let mut body = Vec::new();
    for argument in arguments {
        put_text(&mut body, argument);
    }
    let mut message = vec![b'l', CALL, NO_AUTO_START, 1];
    put_number(&mut message, body.len());
    message.extend(serial.to_le_bytes());
    // The length of the fields comes here.
    message.extend([0; 4]);
    let strings = [
        (PATH, b'o', method.path),
        (INTERFACE, b's', method.interface),
        (MEMBER, b's', method.member),
        (DESTINATION, b's', method.destination),
    ];
    for (field, kind, value) in strings {
        pad(&mut message, 8);
        message.extend([field, 1, kind, 0]);
        put_text(&mut message, value);
    }
    if !arguments.is_empty() {
        pad(&mut message, 8);
        message.extend([SIGNATURE, 1, b'g', 0, u8::try_from(arguments.len()).unwrap_or(u8::MAX)]);
        message.extend(arguments.iter().map(|_| b's'));
        message.push(0);
    }
    let fields = message.len().saturating_sub(HEADER);
    if let Some(place) = message.get_mut(12..16) {
        place.copy_from_slice(&u32::try_from(fields).unwrap_or(u32::MAX).to_le_bytes());
    }
    pad(&mut message, 8);
    message.append(&mut body);
    message
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    put_number(bytes, text.len());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

/// What a method returns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    signature: String,
    body: Vec<u8>,
    big_endian: bool,
}

impl Answer {
    /// The first value, if it is a text.
    pub fn text(&self) -> Option<String> {
        if !self.signature.starts_with('s') {
            return None;
        }
        let length = self.number(0)?;
        Some(String::from_utf8_lossy(self.body.get(4..length.checked_add(4)?)?).into_owned())
    }

    /// The first value, if it is true or false.
    pub fn truth(&self) -> Option<bool> {
        if !self.signature.starts_with('b') {
            return None;
        }
        Some(self.number(0)? != 0)
    }

    fn number(&self, offset: usize) -> Option<usize> {
        number(&self.body, offset, self.big_endian)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    kind: u8,
    reply_to: Option<u32>,
    error: String,
    answer: Answer,
}

fn number(bytes: &[u8], offset: usize, big_endian: bool) -> Option<usize> {
    let four = *bytes.get(offset..)?.first_chunk()?;
    let number = if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    usize::try_from(number).ok()
}

/// The length of the message that begins with this header.
fn length(header: &[u8]) -> Option<usize> {
    let big_endian = header.first() == Some(&b'B');
    let fields = number(header, 12, big_endian)?.checked_add(HEADER)?.checked_next_multiple_of(8)?;
    fields.checked_add(number(header, 4, big_endian)?)
}

/// `None` if it makes no sense.
fn parse(message: &[u8]) -> Option<Parsed> {
    let big_endian = match message.first()? {
        b'l' => false,
        b'B' => true,
        _ => return None,
    };
    let mut parsed = Parsed { kind: *message.get(1)?, ..Parsed::default() };
    let end = number(message, 12, big_endian)?.checked_add(HEADER)?;
    let mut at = HEADER;
    while at < end {
        at = at.checked_next_multiple_of(8)?;
        let (field, kind) = (*message.get(at)?, *message.get(at.checked_add(2)?)?);
        // All fields have a signature of one letter.
        if *message.get(at.checked_add(1)?)? != 1 {
            return None;
        }
        let value = at.checked_add(4)?;
        at = match kind {
            b'u' => {
                let number = number(message, value, big_endian)?;
                if field == REPLY_SERIAL {
                    parsed.reply_to = u32::try_from(number).ok();
                }
                value.checked_add(4)?
            }
            b's' | b'o' => {
                let begin = value.checked_add(4)?;
                let stop = begin.checked_add(number(message, value, big_endian)?)?;
                if field == ERROR_NAME {
                    parsed.error = String::from_utf8_lossy(message.get(begin..stop)?).into_owned();
                }
                stop.checked_add(1)?
            }
            b'g' => {
                let begin = value.checked_add(1)?;
                let stop = begin.checked_add(usize::from(*message.get(value)?))?;
                if field == SIGNATURE {
                    parsed.answer.signature = String::from_utf8_lossy(message.get(begin..stop)?).into_owned();
                }
                stop.checked_add(1)?
            }
            _ => return None,
        };
    }
    parsed.answer.body = message.get(end.checked_next_multiple_of(8)?..)?.to_vec();
    parsed.answer.big_endian = big_endian;
    Some(parsed)
}

/// Any bytes in the place of an answer, for fuzzers.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = length(bytes);
    if let Some(parsed) = parse(bytes) {
        let _ = (parsed.answer.text(), parsed.answer.truth());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHOD: Method<'static> =
        Method { destination: "org.example", path: "/org/example", interface: "org.example.I", member: "do" };

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

    #[test]
    fn a_call_is_read_as_it_was_written() {
        for arguments in [&[][..], &["trusted", "10.1.2.3/32"], &[""]] {
            let message = encode(&METHOD, arguments, 7);
            assert_eq!(length(&message), Some(message.len()));
            let parsed = parse(&message).unwrap();
            assert_eq!((parsed.kind, parsed.reply_to), (CALL, None));
            assert_eq!(parsed.answer.signature, "s".repeat(arguments.len()));
            assert_eq!(parsed.answer.text().as_deref(), arguments.first().copied());
            assert_eq!(parsed.answer.truth(), None);
        }
    }

    #[test]
    fn answers_of_either_byte_order() {
        let little = [
            &[b'l', RETURN, 1, 1, 4, 0, 0, 0, 9, 0, 0, 0, 15, 0, 0, 0][..],
            &[REPLY_SERIAL, 1, b'u', 0, 7, 0, 0, 0, SIGNATURE, 1, b'g', 0, 1, b'b', 0, 0, 1, 0, 0, 0],
        ]
        .concat();
        let big = [
            &[b'B', RETURN, 1, 1, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0, 15][..],
            &[REPLY_SERIAL, 1, b'u', 0, 0, 0, 0, 7, SIGNATURE, 1, b'g', 0, 1, b'b', 0, 0, 0, 0, 0, 1],
        ]
        .concat();
        for message in [little, big] {
            assert_eq!(length(&message), Some(message.len()));
            let parsed = parse(&message).unwrap();
            assert_eq!((parsed.kind, parsed.reply_to, parsed.answer.truth()), (RETURN, Some(7), Some(true)));
            assert_eq!(parsed.answer.text(), None);
        }
    }

    #[test]
    fn broken_messages() {
        let message = encode(&METHOD, &["a", "b"], 1);
        for length in 0..message.len() {
            let cut = message.get(..length).unwrap();
            if let Some(parsed) = parse(cut) {
                // The body may be cut: then its values can't be read, or they are whole.
                assert!(parsed.answer.text().is_none_or(|text| text == "a"), "{length}");
            }
        }
        for at in 0..message.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut broken = message.clone();
                broken[at] = byte;
                fuzz(&broken);
            }
        }
    }
}
