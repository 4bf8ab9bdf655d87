//! Words of shell commands that messages suggest.

/// Returns a word as a shell reads it, in single quotes if it has a special character.
pub fn quoted(word: &str) -> String {
    if word.chars().all(|of| of.is_ascii_alphanumeric() || "/._-+:@%=".contains(of)) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_with_special_characters_is_quoted() {
        assert_eq!(quoted("/var/lib/cni"), "/var/lib/cni");
        assert_eq!(quoted("my dir"), "'my dir'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
