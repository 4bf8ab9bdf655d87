//! A stand-in for firewalld: only the needed part of D-Bus, independent of the plugin's own client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use cnimble_tests::MessageBus;

use super::NAME;

/// Maps each address to its zone.
pub(super) type Sources = Arc<Mutex<BTreeMap<String, String>>>;

/// Answers until the bus ends.
pub(super) fn stand_in(bus: &MessageBus) -> Sources {
    let mut stream = UnixStream::connect(bus.socket()).unwrap();
    let user: String = nix::unistd::geteuid().to_string().bytes().map(|b| format!("{b:02x}")).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    assert!(line.starts_with(b"OK "), "{line:?}");
    stream.write_all(b"BEGIN\r\n").unwrap();
    let bus_call = |serial, member: &str, body: Option<(&str, Vec<u8>)>| {
        let mut fields = Fields::default();
        fields.text(1, 'o', "/org/freedesktop/DBus").text(2, 's', "org.freedesktop.DBus");
        fields.text(3, 's', member).text(6, 's', "org.freedesktop.DBus");
        fields.message(1, serial, body)
    };
    stream.write_all(&bus_call(1, "Hello", None)).unwrap();
    let name = [text_bytes(NAME), vec![0; (4 - text_bytes(NAME).len() % 4) % 4], vec![4, 0, 0, 0]].concat();
    stream.write_all(&bus_call(2, "RequestName", Some(("su", name)))).unwrap();
    let sources = Sources::default();
    let shared = Arc::clone(&sources);
    let (ready, named) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut serial = 2;
        while let Some(message) = Incoming::read(&mut stream) {
            if message.reply_to == Some(2) {
                ready.send(message.kind).unwrap();
            }
            if message.kind == 1 {
                serial += 1;
                let answer = answer(&message, &mut shared.lock().unwrap());
                let mut fields = Fields::default();
                fields.number(5, message.serial).text(6, 's', &message.sender);
                let reply = match answer {
                    Ok(Some(truth)) => {
                        fields.message(2, serial, Some(("b", u32::from(truth).to_le_bytes().to_vec())))
                    }
                    Ok(None) => fields.message(2, serial, Some(("s", text_bytes(&message.texts[0])))),
                    Err(text) => {
                        fields.text(4, 's', &format!("{NAME}.Exception"));
                        fields.message(3, serial, Some(("s", text_bytes(&text))))
                    }
                };
                if stream.write_all(&reply).is_err() {
                    break;
                }
            }
        }
    });
    let kind = named.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(kind, 2, "the bus didn't give us the name");
    sources
}

/// Nothing, a boolean or the text of an error.
fn answer(call: &Incoming, sources: &mut BTreeMap<String, String>) -> Result<Option<bool>, String> {
    let (zone, source) = (call.texts[0].clone(), call.texts[1].clone());
    if !["trusted", "public"].contains(&zone.as_str()) {
        return Err(format!("INVALID_ZONE: {zone}"));
    }
    match (call.member.as_str(), sources.get(&source)) {
        ("querySource", found) => Ok(Some(found == Some(&zone))),
        ("addSource", Some(now)) if *now == zone => {
            Err(format!("ZONE_ALREADY_SET: '{source}' already bound to '{zone}'"))
        }
        ("removeSource", None) => Err(format!("UNKNOWN_SOURCE: '{source}' is not in any zone")),
        ("addSource" | "removeSource", Some(now)) if *now != zone => {
            Err(format!("ZONE_CONFLICT: '{source}' already bound to a zone"))
        }
        ("addSource", _) => {
            sources.insert(source, zone);
            Ok(None)
        }
        ("removeSource", _) => {
            sources.remove(&source);
            Ok(None)
        }
        (other, _) => Err(format!("no method {other}")),
    }
}

fn text_bytes(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes(), &[0]].concat()
}

#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn begin(&mut self, code: u8, kind: char) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend([code, 1, kind as u8, 0]);
    }

    fn text(&mut self, code: u8, kind: char, text: &str) -> &mut Self {
        self.begin(code, kind);
        self.0.extend(text_bytes(text));
        self
    }

    fn number(&mut self, code: u8, number: u32) -> &mut Self {
        self.begin(code, 'u');
        self.0.extend(number.to_le_bytes());
        self
    }

    fn message(&mut self, kind: u8, serial: u32, body: Option<(&str, Vec<u8>)>) -> Vec<u8> {
        let mut content = Vec::new();
        if let Some((signature, body)) = body {
            self.begin(8, 'g');
            self.0.push(u8::try_from(signature.len()).unwrap());
            self.0.extend(signature.as_bytes());
            self.0.push(0);
            content = body;
        }
        let mut message = vec![b'l', kind, 0, 1];
        for number in [content.len(), serial as usize, self.0.len()] {
            message.extend(u32::try_from(number).unwrap().to_le_bytes());
        }
        message.extend(&self.0);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend(content);
        message
    }
}

#[derive(Default)]
struct Incoming {
    kind: u8,
    serial: u32,
    reply_to: Option<u32>,
    member: String,
    sender: String,
    texts: Vec<String>,
}

impl Incoming {
    /// `None` when the bus has ended.
    fn read(stream: &mut UnixStream) -> Option<Self> {
        let mut bytes = vec![0; 16];
        stream.read_exact(&mut bytes).ok()?;
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let text = |bytes: &[u8], at: usize| {
            let end = at + 4 + number(bytes, at) as usize;
            (String::from_utf8(bytes[at + 4..end].to_vec()).unwrap(), end + 1)
        };
        let fields = 16 + number(&bytes, 12) as usize;
        let body = fields.next_multiple_of(8);
        let mut rest = vec![0; body - 16 + number(&bytes, 4) as usize];
        stream.read_exact(&mut rest).ok()?;
        bytes.append(&mut rest);
        let mut message = Incoming { kind: bytes[1], serial: number(&bytes, 8), ..Incoming::default() };
        let (mut at, mut signature) = (16, String::new());
        while at < fields {
            at = at.next_multiple_of(8);
            let (code, kind, value) = (bytes[at], bytes[at + 2], at + 4);
            at = match kind {
                b'u' => {
                    message.reply_to = (code == 5).then(|| number(&bytes, value)).or(message.reply_to);
                    value + 4
                }
                b'g' => {
                    let end = value + 1 + usize::from(bytes[value]);
                    signature = String::from_utf8(bytes[value + 1..end].to_vec()).unwrap();
                    end + 1
                }
                _ => {
                    let (found, end) = text(&bytes, value);
                    match code {
                        3 => message.member = found,
                        7 => message.sender = found,
                        _ => {}
                    }
                    end
                }
            };
        }
        at = body;
        for _ in signature.chars().take_while(|kind| *kind == 's') {
            let (found, end) = text(&bytes, at.next_multiple_of(4));
            message.texts.push(found);
            at = end;
        }
        Some(message)
    }
}
