//! The form of the code, as far as a line shows it: alarms for a reader, and no goals.

use crate::source::Source;

/// Words with which a whole sentence seldom begins. A doc comment that does is probably a fragment.
const OPENERS: [&str; 24] = [
    "and", "as", "also", "because", "but", "by", "else", "for", "from", "nor", "not", "of", "or", "same",
    "since", "so", "than", "then", "to", "unless", "until", "which", "who", "without",
];

/// Returns the places of closures with a name: `let name = |…|`. The bar may be on the next line.
pub(crate) fn closures(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        let Some(value) = bound_value(line) else { continue };
        let next = source.code.get(at + 1).map_or("", |next| next.trim_start());
        if is_closure(value) || value.is_empty() && is_closure(next) {
            found.push(place(source, at));
        }
    }
    found
}

/// Returns what a line binds to a single name, without the `=`.
fn bound_value(line: &str) -> Option<&str> {
    let (name, value) = line.trim_start().strip_prefix("let ")?.split_once('=')?;
    let name = name.trim().trim_start_matches("mut ");
    let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    Some(value.trim()).filter(|_| is_name)
}

fn is_closure(value: &str) -> bool {
    value.trim_start_matches("async ").trim_start_matches("move ").starts_with('|')
}

/// Returns the places of matches over a boolean, which `if` says in plainer words.
pub(crate) fn matches_over_booleans(source: &Source) -> Vec<String> {
    let arms = source.code.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("true =>"));
    arms.map(|(at, _)| place(source, at)).collect()
}

/// Returns the doc comments that begin like a fragment.
pub(crate) fn fragments(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for text in &source.docs {
        let first =
            text.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default().to_lowercase();
        if OPENERS.contains(&first.as_str()) {
            found.push(format!("{}: {text}", source.path.display()));
        }
    }
    found
}

fn place(source: &Source, at: usize) -> String {
    format!("{}: {}", source.path.display(), source.code[at].trim())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn forms_are_told_from_others() {
        let text = "/// Of no use.\n/// More.\nfn a() {\n    let f = |a| a;\n    let mut g = move || 1;\n    let h =\n        \
                    |b: u8| b;\n    let (x, y) = (|c| c, 2);\n    let z = 1 | 2;\n    match x {\n        true => 1,\n    }\n}\n\
                    /// Returns two.\nfn b() {}\n";
        let source = Source::new(Path::new("a.rs"), text);
        assert_eq!(
            closures(&source),
            ["a.rs: let f = |a| a;", "a.rs: let mut g = move || 1;", "a.rs: let h ="]
        );
        assert_eq!(matches_over_booleans(&source), ["a.rs: true => 1,"]);
        assert_eq!(source.docs, ["Of no use.", "Returns two."]);
        assert_eq!(fragments(&source), ["a.rs: Of no use."]);
    }
}
