//! Source files, without comments, string contents and test modules.

use std::path::{Path, PathBuf};

/// A file of the product.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Its lines of code. Comments and the contents of strings are gone, and blank lines stay as such.
    pub(crate) code: Vec<String>,
    /// Lines with a comment and no code.
    pub(crate) comments: usize,
    /// The first lines of the doc comments of items.
    pub(crate) docs: Vec<String>,
}

impl Source {
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        let lines: Vec<&str> = product_lines(text);
        let comments = lines.iter().filter(|line| line.trim_start().starts_with("//")).count();
        let docs = docs(&lines);
        let code = strip(&lines.join("\n")).lines().map(|line| line.trim_end().to_owned()).collect();
        Source { path: path.to_owned(), code, comments, docs }
    }

    /// Returns the number of lines with code.
    pub(crate) fn lines(&self) -> usize {
        self.code.iter().filter(|line| !line.is_empty()).count()
    }
}

/// The first line of each doc comment of an item.
fn docs(lines: &[&str]) -> Vec<String> {
    let mut docs = Vec::new();
    let mut is_inside = false;
    for line in lines {
        let text = line.trim_start().strip_prefix("///");
        if let Some(text) = text.filter(|_| !is_inside) {
            docs.push(text.trim().to_owned());
        }
        is_inside = text.is_some();
    }
    docs
}

/// The lines of a file without modules that are for tests only. rustfmt puts the end of a module at the indentation
/// of its start.
fn product_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text.lines().peekable();
    while let Some(line) = rest.next() {
        if line.trim() != "#[cfg(test)]" {
            lines.push(line);
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let first = rest.next().unwrap_or_default();
        if first.ends_with('{') {
            rest.by_ref().find(|line| *line == end);
        }
    }
    lines
}

/// The text without comments, and with strings and characters emptied.
fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(length) = string(rest) {
            out.push_str("\"\"");
            // The lines of a long string count as code.
            out.extend(rest[..length].matches('\n').map(|_| "\n\"\""));
            length
        } else if let Some(length) = character(rest) {
            out.push_str("' '");
            length
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    out
}

/// The length of the string literal at the start of `text`.
fn string(text: &str) -> Option<usize> {
    let raw = text.strip_prefix('r').map(|rest| rest.len() - rest.trim_start_matches('#').len());
    if let Some(hashes) = raw.filter(|hashes| text[1 + hashes..].starts_with('"')) {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = hashes + 2;
        return Some(start + text[start..].find(&end)? + end.len());
    }
    let mut escaped = false;
    let inside = text.strip_prefix('"')?;
    for (at, letter) in inside.char_indices() {
        match letter {
            '"' if !escaped => return Some(at + 2),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

/// The length of the character literal at the start of `text`; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let escape = inside.starts_with('\\');
    let skipped = if escape { 2 } else { inside.chars().next()?.len_utf8() };
    let end = inside.get(skipped..)?.find('\'')?;
    (escape || end == 0).then_some(1 + skipped + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_tests_are_no_code() {
        let text = "let a = \"// no {\"; // yes\nlet b = '\"'; fn f<'a>() {}\n#[cfg(test)]\nmod tests {\n}\nlet c = r#\"\"{\"#;\n// end";
        let source = Source::new(Path::new("a.rs"), text);
        assert_eq!(
            source.code,
            ["let a = \"\";", "let b = ' '; fn f<'a>() {}", "let c = \"\";", ""][..source.code.len()]
        );
        assert_eq!((source.lines(), source.comments), (3, 1));
    }
}
