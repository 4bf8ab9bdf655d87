//! Texts from outside, as people read them.

use crate::redact;

/// How much of what a server says about an error is kept.
const MESSAGE_LIMIT: usize = 300;

/// Control characters, and those that turn the direction of writing around or can't be seen: what
/// people read in a terminal has none of them.
pub fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line of a text from outside, without secrets of ours, without what means something to a terminal, and not
/// too long.
pub fn tame(text: &str) -> String {
    redact(text).chars().filter(|char| !is_unseen(*char)).take(MESSAGE_LIMIT).collect()
}
