//! Texts from outside, made safe for display.

use crate::redact;

/// The longest text that is shown, in characters.
const MESSAGE_LIMIT: usize = 300;

/// Returns whether a character is a control character, changes the direction of writing, or is invisible.
pub fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a text from outside in one line, without secrets, control characters and invisible ones. It is cut to 300
/// characters.
pub fn tame(text: &str) -> String {
    redact(text).chars().filter(|char| !is_unseen(*char)).take(MESSAGE_LIMIT).collect()
}
