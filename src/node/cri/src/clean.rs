//! Makes a runtime's texts safe to print on a terminal.

/// The longest text in bytes. Names and messages are far shorter.
const LIMIT: usize = 16 << 10;

/// Replaces control characters, and those that change the direction of writing, by their number. A line end or a tab
/// becomes a space.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LIMIT));
    for letter in text.chars() {
        if out.len() >= LIMIT {
            out.push('…');
            break;
        }
        match letter {
            '\n' | '\t' => out.push(' '),
            letter if is_hostile(letter) => out.extend(letter.escape_unicode()),
            letter => out.push(letter),
        }
    }
    out
}

/// Returns whether a terminal would interpret the character instead of showing it.
pub(crate) fn is_hostile(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_by_its_number() {
        assert_eq!(clean("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb c");
        assert_eq!(clean("x\u{202e}y\u{9b}z\u{7f}"), "x\\u{202e}y\\u{9b}z\\u{7f}");
        assert_eq!(clean("größer"), "größer");
        assert!(clean(&"\u{0}".repeat(1 << 20)).len() < LIMIT + 16);
    }
}
