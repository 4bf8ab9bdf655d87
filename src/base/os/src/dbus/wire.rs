//! D-Bus messages as bytes: "Message Protocol" of the specification.

use super::Method;

const CALL: u8 = 1;
pub(super) const RETURN: u8 = 2;
pub(super) const ERROR: u8 = 3;
/// The header fields and the body follow.
pub(super) const HEADER: usize = 16;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// The arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    signature: String,
    body: Vec<u8>,
}

/// The value of a property.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A text, with the signature `s`.
    Text(&'a str),
    /// An array of numbers, with the signature `au`.
    Numbers(&'a [u32]),
}

impl Arguments {
    /// Returns arguments that are texts.
    pub fn texts(texts: &[&str]) -> Self {
        let mut arguments = Arguments::default();
        for text in texts {
            arguments.signature.push('s');
            put_text(&mut arguments.body, text);
        }
        arguments
    }

    /// Appends an array of names with their values: `a(sv)`.
    #[must_use]
    pub fn properties(mut self, properties: &[(&str, Value<'_>)]) -> Self {
        self.signature.push_str("a(sv)");
        put_array(&mut self.body, 8, |body| {
            for (name, value) in properties {
                pad(body, 8);
                put_text(body, name);
                value.append_to(body);
            }
        });
        self
    }

    /// Appends an empty array with elements of this signature, such as `(sa(sv))`.
    #[must_use]
    pub fn empty(mut self, element: &str) -> Self {
        self.signature.push('a');
        self.signature.push_str(element);
        put_array(&mut self.body, 8, |_| {});
        self
    }
}

/// Appends the signature of a variant: its length in one byte, the text and a NUL.
fn put_signature(body: &mut Vec<u8>, signature: &str) {
    body.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    body.extend(signature.as_bytes());
    body.push(0);
}

impl Value<'_> {
    fn append_to(self, body: &mut Vec<u8>) {
        match self {
            Value::Text(text) => {
                put_signature(body, "s");
                put_text(body, text);
            }
            Value::Numbers(numbers) => {
                put_signature(body, "au");
                put_array(body, 4, |body| {
                    numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
                });
            }
        }
    }
}

/// The length is without the padding of the first element.
fn put_array(bytes: &mut Vec<u8>, alignment: usize, elements: impl FnOnce(&mut Vec<u8>)) {
    pad(bytes, 4);
    let at = bytes.len();
    bytes.extend([0; 4]);
    pad(bytes, alignment);
    let begin = bytes.len();
    elements(bytes);
    let length = u32::try_from(bytes.len().saturating_sub(begin)).unwrap_or(u32::MAX);
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = length.to_le_bytes();
    }
}

/// Writes a call in little-endian bytes, which every bus accepts.
pub(super) fn encode(method: &Method<'_>, arguments: &Arguments, serial: u32) -> Vec<u8> {
    const NO_AUTO_START: u8 = 2;
    let Arguments { signature, body } = arguments;
    let mut message = vec![b'l', CALL, NO_AUTO_START, 1];
    put_number(&mut message, body.len());
    message.extend(serial.to_le_bytes());
    // A placeholder for the length of the fields.
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
    if !signature.is_empty() {
        pad(&mut message, 8);
        message.extend([SIGNATURE, 1, b'g', 0, u8::try_from(signature.len()).unwrap_or(u8::MAX)]);
        message.extend(signature.as_bytes());
        message.push(0);
    }
    let fields = message.len().saturating_sub(HEADER);
    if let Some(place) = message.get_mut(12..16) {
        place.copy_from_slice(&u32::try_from(fields).unwrap_or(u32::MAX).to_le_bytes());
    }
    pad(&mut message, 8);
    message.extend(body);
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

/// The values that a method returned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    signature: String,
    body: Vec<u8>,
    big_endian: bool,
}

impl Answer {
    /// Returns the first value, if it is a text.
    pub fn text(&self) -> Option<String> {
        if !self.signature.starts_with('s') {
            return None;
        }
        let length = self.number(0)?;
        Some(String::from_utf8_lossy(self.body.get(4..length.checked_add(4)?)?).into_owned())
    }

    /// Returns the first value, if it is a boolean.
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
pub(super) struct Parsed {
    pub(super) kind: u8,
    pub(super) reply_to: Option<u32>,
    pub(super) error: String,
    pub(super) answer: Answer,
}

fn number(bytes: &[u8], offset: usize, big_endian: bool) -> Option<usize> {
    let four = *bytes.get(offset..)?.first_chunk()?;
    let number = if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    usize::try_from(number).ok()
}

pub(super) fn length(header: &[u8]) -> Option<usize> {
    let big_endian = header.first() == Some(&b'B');
    let fields = number(header, 12, big_endian)?.checked_add(HEADER)?.checked_next_multiple_of(8)?;
    fields.checked_add(number(header, 4, big_endian)?)
}

pub(super) fn parse(message: &[u8]) -> Option<Parsed> {
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
        // The signature of every field has one letter.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dbus::fuzz;

    const METHOD: Method<'static> =
        Method { destination: "org.example", path: "/org/example", interface: "org.example.I", member: "do" };

    #[test]
    fn a_call_is_read_as_it_was_written() {
        for arguments in [&[][..], &["trusted", "10.1.2.3/32"], &[""]] {
            let message = encode(&METHOD, &Arguments::texts(arguments), 7);
            assert_eq!(length(&message), Some(message.len()));
            let parsed = parse(&message).unwrap();
            assert_eq!((parsed.kind, parsed.reply_to), (CALL, None));
            assert_eq!(parsed.answer.signature, "s".repeat(arguments.len()));
            assert_eq!(parsed.answer.text().as_deref(), arguments.first().copied());
            assert_eq!(parsed.answer.truth(), None);
        }
    }

    /// The bytes follow the rules of the specification, section "Marshaling (Wire Format)".
    #[test]
    fn properties_and_an_empty_array() {
        let properties = [("A", Value::Text("b")), ("C", Value::Numbers(&[0, 7]))];
        let arguments = Arguments::texts(&["x"]).properties(&properties).empty("(sa(sv))");
        assert_eq!(arguments.signature, "sa(sv)a(sa(sv))");
        let expected = [
            // A text, the length of the array, and its padding.
            &[1, 0, 0, 0, b'x', 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 0, 0, b'A', 0, 1, b's', 0, 0, 0, 0, 1, 0, 0, 0, b'b', 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, b'C', 0, 2, b'a', b'u', 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0],
            &[0; 8],
        ];
        assert_eq!(arguments.body, expected.concat());
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
        let message = encode(&METHOD, &Arguments::texts(&["a", "b"]), 1);
        for length in 0..message.len() {
            let cut = message.get(..length).unwrap();
            if let Some(parsed) = parse(cut) {
                // If the body is truncated, its values are either complete or cannot be read.
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
