//! Escapes output: text from plugins, servers and manifests must not control a terminal or hide other text.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use cnimble_api::{is_unseen, redact};

/// The mark in front of this program's escape codes. It is random, so foreign text can't contain it.
static KEY: LazyLock<String> = LazyLock::new(|| format!("\x1b{:016x}", RandomState::new().hash_one(0)));

/// Returns a marked escape code, of which `code` is the part after ESC, such as `[1m`. [`text`] and [`line()`] let it
/// through.
pub(super) fn code(code: &str) -> String {
    format!("{}{code}", *KEY)
}

/// Returns the mark that begins this program's escape codes.
pub(super) fn key() -> &'static str {
    &KEY
}

/// Returns text without secrets and with invisible characters escaped, other than line breaks and tabs. Apply it last,
/// as it turns marked escape codes into real ones.
pub(super) fn text(text: &str) -> String {
    escaped(text, &['\n', '\t'])
}

/// Returns one line without secrets, and with line breaks and tabs escaped, too. Marked escape codes stay marked.
pub(super) fn line(text: &str) -> String {
    let text = escaped(text, &[]);
    // The text is escaped again before it is written.
    text.replace('\x1b', &KEY)
}

/// Removes secrets, escapes invisible characters but those in `keep`, and turns each mark into ESC.
fn escaped(text: &str, keep: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    // An escape code of this program follows the key.
    for (index, part) in redact(text).split(KEY.as_str()).enumerate() {
        if index > 0 {
            out.push('\x1b');
        }
        for char in part.chars() {
            if is_unseen(char) && !keep.contains(&char) {
                out.extend(char.escape_default());
            } else {
                out.push(char);
            }
        }
    }
    out
}

/// Returns equivalent JSON without secrets and with invisible characters escaped.
pub(super) fn json(text: &str) -> String {
    let text = redact(text);
    text.chars().fold(String::with_capacity(text.len()), |mut out, char| {
        // Outside of strings JSON has no invisible characters except line breaks.
        if is_unseen(char) && char != '\n' {
            let units = char
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            out.push_str(&units);
        } else {
            out.push(char);
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_but_text() {
        assert_eq!(
            text("pod ä: \u{1b}[31mred\u{7f}\u{202e}\u{61c}\u{9b}2J \r\n\tat"),
            "pod ä: \\u{1b}[31mred\\u{7f}\\u{202e}\\u{61c}\\u{9b}2J \\r\n\tat"
        );
        assert_eq!(text("\u{1b}[1mbold\u{1b}[0m"), "\\u{1b}[1mbold\\u{1b}[0m", "colours of others are none");
        assert_eq!(
            text(&format!("{}cnimble:{} a\u{1b}[2J", code("[1;31m"), code("[0m"))),
            "\u{1b}[1;31mcnimble:\u{1b}[0m a\\u{1b}[2J"
        );
        assert_eq!(text(&line(&format!("{}a\nb\tc", code("[1m")))), "\u{1b}[1ma\\nb\\tc");
    }

    #[test]
    fn json_stays_what_it_is() {
        let value = serde_json::json!({"a\u{7f}": "\u{1b}\u{9b}\u{202e}\u{e0041}ä\"\\\n", "b": [1]});
        let shown = json(&format!("{value:#}\n"));
        assert!(shown.chars().all(|char| char == '\n' || !is_unseen(char)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
