//! What is shown is text: words of plugins, servers and manifests are in it, and none of them may
//! steer a terminal, or hide what stands beside them.

/// What [`Paint`](crate::style::Paint) writes.
const COLOURS: [&str; 5] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;31m"];

/// Control characters, and those that turn the direction of writing around or can't be seen.
fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Lines of text, with what can't be seen in it escaped.
pub(super) fn text(text: &str) -> String {
    escaped(text, &[])
}

/// The same, but the colours stay.
pub(super) fn painted(text: &str) -> String {
    escaped(text, &COLOURS)
}

fn escaped(text: &str, keep: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if let Some(code) = keep.iter().find(|code| char == '\x1b' && rest.starts_with(**code)) {
            out.push_str(code);
            rest = rest.strip_prefix(code).unwrap_or_default();
            continue;
        }
        match is_unseen(char) && !matches!(char, '\n' | '\t') {
            true => out.extend(char.escape_default()),
            false => out.push(char),
        }
        rest = rest.get(char.len_utf8()..).unwrap_or_default();
    }
    out
}

/// JSON that means the same, with what can't be seen in it escaped.
pub(super) fn json(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, char| {
        // Outside of texts there are line ends only. All that is unseen has four digits.
        match is_unseen(char) && char != '\n' {
            true => out.push_str(&format!("\\u{:04x}", u32::from(char))),
            false => out.push(char),
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
            text("pod ä: \u{1b}[31mred\u{7f}\u{202e}\u{9b}2J \r\n\tat"),
            "pod ä: \\u{1b}[31mred\\u{7f}\\u{202e}\\u{9b}2J \\r\n\tat"
        );
        assert_eq!(text("\u{1b}[1mbold\u{1b}[0m"), "\\u{1b}[1mbold\\u{1b}[0m");
        assert_eq!(
            painted("\u{1b}[1;31mcnimble:\u{1b}[0m a\u{1b}[2J\u{1b}"),
            "\u{1b}[1;31mcnimble:\u{1b}[0m a\\u{1b}[2J\\u{1b}"
        );
    }

    #[test]
    fn json_stays_what_it_is() {
        let value = serde_json::json!({"a\u{7f}": "\u{1b}\u{9b}\u{202e}ä\"\\\n", "b": [1]});
        let shown = json(&format!("{value:#}\n"));
        assert!(shown.chars().all(|char| char == '\n' || !is_unseen(char)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
