//! Values that are sent to a server and never printed.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

/// The shortest secret that is searched for in texts, in bytes. Shorter ones are parts of ordinary words.
const SHORTEST: usize = 6;
/// The length of a truncated secret that is still hidden, in bytes.
const BEGINNING: usize = 12;
const HIDDEN: &str = "[secret]";

/// The number of secrets that are searched for. A replaced token remains valid for a while.
const MANY: usize = 64;

/// The latest is the last.
static KNOWN: Mutex<VecDeque<Arc<str>>> = Mutex::new(VecDeque::new());

/// A token, a password, or the value of a header. Its `Debug` does not show it, and [`redact`] finds it in other texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Returns a secret with this text. Afterwards the process leaves no core dump (PR_SET_DUMPABLE, prctl(2)).
    pub fn new(text: &str) -> Self {
        let secret: Arc<str> = text.into();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|other| **other != *text);
        if text.len() >= SHORTEST {
            known.push_back(Arc::clone(&secret));
        }
        if known.len() > MANY {
            known.pop_front();
        }
        drop(known);
        // The process leaves no core dump. If the kernel refuses, the secret is still hidden in texts.
        let _ = nix::sys::prctl::set_dumpable(false);
        Secret(secret)
    }

    /// Returns the secret itself, so that it can be sent.
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
        Ok(Secret::new(&String::deserialize(deserializer)?))
    }
}

/// Returns a text without the secrets of this process. A server may repeat a secret: unchanged, escaped, or truncated.
pub fn redact(text: &str) -> Cow<'_, str> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    known.iter().fold(Cow::Borrowed(text), |text, secret| {
        let escaped = secret.escape_debug().to_string();
        let quoted = serde_json::Value::from(&**secret).to_string();
        let forms = [&**secret, escaped.as_str(), quoted.trim_matches('"')];
        forms.into_iter().fold(text, |text, form| match without(&text, form) {
            Some(text) => Cow::Owned(text),
            None => text,
        })
    })
}

/// Returns the text without a secret and its beginnings, or `None` if there is nothing to hide.
fn without(text: &str, secret: &str) -> Option<String> {
    let end = (0..=BEGINNING.min(secret.len())).rev().find(|end| secret.is_char_boundary(*end))?;
    let beginning = secret.get(..end)?;
    let mut rest = text;
    let mut out = String::new();
    while let Some((before, behind)) = rest.split_once(beginning).filter(|_| !beginning.is_empty()) {
        let more = secret.get(beginning.len()..).unwrap_or_default();
        let same = behind.chars().zip(more.chars()).take_while(|(one, other)| one == other);
        let length: usize = same.map(|(char, _)| char.len_utf8()).sum();
        out.push_str(before);
        out.push_str(HIDDEN);
        rest = behind.get(length..).unwrap_or_default();
    }
    (!out.is_empty()).then(|| out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_no_text() {
        let secret = Secret::new("g3heim-\"t0ken\\und mehr");
        let json = serde_json::Value::from(secret.expose()).to_string();
        for (text, shown) in [
            (format!("no: {} {0}.", secret.expose()), "no: [secret] [secret]."),
            (format!("{:?}", secret.expose()), "\"[secret]\""),
            (json, "\"[secret]\""),
            ("cut g3heim-\"t0ken".to_owned(), "cut [secret]"),
            (format!("{secret:?}"), "[secret]"),
            ("g3heim- is a word".to_owned(), "g3heim- is a word"),
        ] {
            assert_eq!(redact(&text), shown);
        }
        let short = Secret::new("abc");
        assert_eq!(redact("abcdef"), "abcdef");
        drop((secret, short));
        for number in 0..MANY {
            Secret::new(&format!("another-{number}-secret"));
        }
        assert_eq!(redact("g3heim-\"t0ken"), "g3heim-\"t0ken", "it is too long ago");
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
    }
}
