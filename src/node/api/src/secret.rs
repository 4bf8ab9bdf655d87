//! Values that are sent to a server and never printed.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The shortest secret that is searched for in texts, in characters. Shorter ones are parts of ordinary words.
const SHORTEST: usize = 6;
/// The length of a part of a longer secret that is still hidden, in characters.
const PART: usize = 8;
const HIDDEN: &str = "[secret]";

/// How many of the latest secrets are searched for. A replaced token remains valid for a while.
const MANY: usize = 64;

static KNOWN: Mutex<Known> = Mutex::new(Known { secrets: VecDeque::new(), parts: BTreeMap::new() });

/// The latest secrets of this process, and their parts.
#[derive(Clone)]
struct Known {
    /// The latest is the last.
    secrets: VecDeque<Arc<str>>,
    /// The parts by their length in characters, with all escapes decoded.
    parts: BTreeMap<usize, Arc<HashSet<Box<[char]>>>>,
}

impl Known {
    /// Adds a secret, and forgets the oldest if there are too many.
    fn add(&mut self, secret: &Arc<str>) {
        let known = self.secrets.len();
        self.secrets.retain(|other| other != secret);
        let is_new = self.secrets.len() == known;
        self.secrets.push_back(Arc::clone(secret));
        if self.secrets.len() > MANY {
            self.secrets.pop_front();
        }
        if is_new {
            self.parts = parts(&self.secrets);
        }
    }
}

/// Returns the parts of the secrets by length. A secret, or a word of one, that is no longer than [`PART`] is one part.
fn parts(secrets: &VecDeque<Arc<str>>) -> BTreeMap<usize, Arc<HashSet<Box<[char]>>>> {
    let mut parts: BTreeMap<usize, HashSet<Box<[char]>>> = BTreeMap::new();
    for secret in secrets {
        for text in std::iter::once(&**secret).chain(secret.split_whitespace()) {
            let chars: Vec<char> = read_through(text).into_iter().map(|read| read.char).collect();
            let length = chars.len().min(PART);
            if length >= SHORTEST {
                parts.entry(length).or_default().extend(chars.windows(length).map(Box::from));
            }
        }
    }
    parts.into_iter().map(|(length, parts)| (length, Arc::new(parts))).collect()
}

/// A token, a password, or the value of a header. Its `Debug` hides it, and [`redact`] finds it in other texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Makes a secret of this text, which [`redact`] hides from now on unless it is shorter than six characters. The
    /// process then leaves no core dump (PR_SET_DUMPABLE, prctl(2)).
    pub fn new(text: &str) -> Self {
        let secret: Arc<str> = text.into();
        if text.len() >= SHORTEST {
            KNOWN.lock().unwrap_or_else(PoisonError::into_inner).add(&secret);
        }
        // If the kernel refuses this, the secret is still hidden in texts.
        let _ = nix::sys::prctl::set_dumpable(false);
        Secret(secret)
    }

    /// Returns the secret itself, to send it. Do not print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error of serde would repeat a value of another type, such as a number.
        let text = String::deserialize(deserializer).map_err(|_| D::Error::custom("expected a string"))?;
        Ok(Secret::new(&text))
    }
}

/// Returns a text without the secrets of this process. A server may repeat a secret, or a part of it: unchanged,
/// escaped, or decoded.
pub fn redact(text: &str) -> Cow<'_, str> {
    let parts = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).parts.clone();
    if parts.is_empty() {
        return Cow::Borrowed(text);
    }
    let read = read_through(text);
    let chars: Vec<char> = read.iter().map(|read| read.char).collect();
    let mut is_secret = vec![false; chars.len()];
    for (length, parts) in &parts {
        for (start, window) in chars.windows(*length).enumerate() {
            if parts.contains(window) {
                is_secret.iter_mut().skip(start).take(*length).for_each(|is_secret| *is_secret = true);
            }
        }
    }
    let (mut out, mut end, mut hides) = (String::new(), 0, false);
    spare_spaces(&chars, &mut is_secret);
    for (read, is_secret) in read.iter().zip(is_secret) {
        if !is_secret {
            out.push_str(text.get(read.start..read.end).unwrap_or_default());
        } else if !hides {
            out.push_str(HIDDEN);
        }
        (end, hides) = (read.end, is_secret);
    }
    out.push_str(text.get(end..).unwrap_or_default());
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// Unmarks white space at both ends of each marked part. The parts of a secret with several words may begin with a
/// space.
fn spare_spaces(chars: &[char], is_secret: &mut [bool]) {
    let mut hides = false;
    for (char, is_secret) in chars.iter().zip(is_secret.iter_mut()) {
        *is_secret &= hides || !char.is_whitespace();
        hides = *is_secret;
    }
    hides = false;
    for (char, is_secret) in chars.iter().zip(is_secret.iter_mut()).rev() {
        *is_secret &= hides || !char.is_whitespace();
        hides = *is_secret;
    }
}

/// A character, and the bytes of the text that stand for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Read {
    char: char,
    start: usize,
    end: usize,
}

/// Decodes the escapes in a text: those of JSON and Rust (`\"`, `\u0041`, `\u{41}`, `\x41`), and those of URLs (`%41`).
/// It decodes twice, because a text may have been escaped twice.
fn read_through(text: &str) -> Vec<Read> {
    let plain = text.char_indices().map(|(start, char)| Read { char, start, end: start + char.len_utf8() });
    decode(&decode(&plain.collect::<Vec<_>>()))
}

/// Decodes the escapes once.
fn decode(text: &[Read]) -> Vec<Read> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    // The position of a backslash, which belongs to the next character.
    let mut before: Option<usize> = None;
    while let [first, behind @ ..] = rest {
        let start = before.take().unwrap_or(first.start);
        if let Some((char, length)) = escaped(rest)
            && let Some(last) = rest.get(length - 1)
        {
            out.push(Read { char, start, end: last.end });
            rest = rest.get(length..).unwrap_or_default();
        } else {
            match first.char {
                '\\' if !behind.is_empty() => before = Some(start),
                char => out.push(Read { char, start, end: first.end }),
            }
            rest = behind;
        }
    }
    out
}

/// Returns the character of the escape with which the text begins, and the escape's length. It returns `None` if it
/// begins with no escape.
fn escaped(text: &[Read]) -> Option<(char, usize)> {
    match (char_at(text, 0)?, char_at(text, 1)?) {
        // A secret is sent in a header or a URL, where other characters than those of ASCII are escaped in bytes.
        ('%', _) => Some((char::from_u32(parse_hex(text, 1, 2)?)?, 3)),
        ('\\', 'x') => Some((char::from_u32(parse_hex(text, 2, 2)?)?, 4)),
        ('\\', 'u') if char_at(text, 2)? == '{' => {
            let length = text.get(3..)?.iter().take(7).position(|read| read.char == '}')?;
            Some((char::from_u32(parse_hex(text, 3, length)?)?, length + 4))
        }
        ('\\', 'u') => Some((char::from_u32(parse_hex(text, 2, 4)?)?, 6)),
        _ => None,
    }
}

fn char_at(text: &[Read], at: usize) -> Option<char> {
    text.get(at).map(|read| read.char)
}

/// Parses the hexadecimal number of `length` digits at `at`. Returns `None` if another character is among them, or if
/// the text ends before.
fn parse_hex(text: &[Read], at: usize, length: usize) -> Option<u32> {
    let digits: String = text.get(at..at + length)?.iter().map(|read| read.char).collect();
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_number { u32::from_str_radix(&digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_no_text() {
        let secret = Secret::new("g3heim-\"t0ken\\und mehr");
        let json = serde_json::Value::from(secret.expose()).to_string();
        let twice = serde_json::Value::from(json.as_str()).to_string();
        for (text, shown) in [
            (format!("no: {} {0}.", secret.expose()), "no: [secret] [secret]."),
            (format!("{:?}", secret.expose()), "\"[secret]\""),
            (json, "\"[secret]\""),
            (twice, "\"\\\"[secret]\\\"\""),
            ("cut g3heim-\"t0ken".to_owned(), "cut [secret]"),
            ("its end: …0ken\\und mehr!".to_owned(), "its end: …[secret]!"),
            ("\\u0067\\u{33}heim-\\x22t0k".to_owned(), "[secret]"),
            (r"g3heim-\u0022t0ken\u005cund%20mehr".to_owned(), "[secret]"),
            ("?key=g3heim-%22t0ken%5Cund%20mehr&x=1".to_owned(), "?key=[secret]&x=1"),
            (format!("{secret:?}"), "[secret]"),
            ("g3heim- is a word".to_owned(), "g3heim- is a word"),
            ("50% off \\ and \\u1 %2".to_owned(), "50% off \\ and \\u1 %2"),
        ] {
            assert_eq!(redact(&text), shown);
        }
        let of_url = Secret::new("p%40ssword%2Fof");
        assert_eq!(redact("bad p@ssword/of query"), "bad [secret] query");
        let header = Secret::new("Digest hunter22 x");
        assert_eq!(redact("what is hunter22?"), "what is [secret]?");
        let short = Secret::new("abc");
        assert_eq!(redact("abcdef"), "abcdef");
        drop((secret, short, of_url, header));
        for number in 0..MANY {
            Secret::new(&format!("another-{number}-secret"));
        }
        assert_eq!(redact("g3heim-\"t0ken"), "g3heim-\"t0ken", "it is too long ago");
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
    }

    /// Texts keep their bytes, and any text can be read.
    #[test]
    fn escapes_cover_a_text_without_a_gap() {
        let chars = ["\\", "%", "u", "{", "}", "4", "x", "ä"];
        for mut number in 0..8_usize.pow(6) {
            let mut text = String::new();
            while number > 0 {
                text.push_str(chars[number % 8]);
                number /= 8;
            }
            let mut end = 0;
            for one in read_through(&text) {
                assert_eq!(one.start, end, "{text}");
                end = one.end;
            }
            assert_eq!(end, text.len(), "{text}");
        }
    }
}
