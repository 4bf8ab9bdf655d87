//! Words of shell commands that messages suggest.

use std::ffi::OsStr;

/// Returns an option with its value, behind a space and quoted for a shell.
pub fn option(name: &str, value: &OsStr) -> String {
    format!(" {name} {}", quoted(&value.to_string_lossy()))
}

/// Returns a word as a shell reads it, in single quotes if it has a special character.
fn quoted(word: &str) -> String {
    if word.chars().all(|of| of.is_ascii_alphanumeric() || "/._-+:@%=".contains(of)) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::{option, quoted};

    #[test]
    fn an_option_begins_with_a_space() {
        assert_eq!(option("--cache-dir", "/my dir".as_ref()), " --cache-dir '/my dir'");
    }

    #[test]
    fn a_word_with_special_characters_is_quoted() {
        assert_eq!(quoted("/var/lib/cni"), "/var/lib/cni");
        assert_eq!(quoted("my dir"), "'my dir'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
