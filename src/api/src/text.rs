//! Texts from outside, as people read them.

/// How much of what a server says about an error is kept.
const MESSAGE_LIMIT: usize = 300;

/// Control characters, and those that turn the direction of writing around or can't be seen: what
/// people read in a terminal has none of them.
pub fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// One line of a text from outside, without what means something to a terminal, and not too long.
pub fn tame(text: &str) -> String {
    text.chars().filter(|char| !is_unseen(*char)).take(MESSAGE_LIMIT).collect()
}
