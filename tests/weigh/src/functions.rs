//! Functions: their parameters and their length.

use crate::source::Source;

/// A function of the product.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The number of parameters, including `self`.
    pub(crate) parameters: usize,
    /// Parameters of the type `bool`.
    pub(crate) booleans: usize,
    /// Lines from the signature to the closing brace, without blank and comment lines.
    pub(crate) lines: usize,
}

/// The functions of a file, as rustfmt has laid them out.
pub(crate) fn functions(source: &Source) -> Vec<Function> {
    let starts = source.code.iter().enumerate().filter_map(|(at, line)| Some((at, name(line)?)));
    starts.map(|(at, name)| function(&source.code[at..], name)).collect()
}

/// The name of the function that a line declares.
fn name(line: &str) -> Option<&str> {
    let (before, after) =
        line.trim_start().split_once("fn ").or_else(|| Some(("", line.strip_prefix("fn ")?)))?;
    let is_modifier =
        |word| matches!(word, "const" | "async" | "unsafe" | "extern" | "\"\"") || word_is_pub(word);
    before.split_whitespace().all(is_modifier).then_some(())?;
    let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&after[..end]).filter(|name| !name.is_empty())
}

fn word_is_pub(word: &str) -> bool {
    word == "pub" || word.starts_with("pub(") || word.ends_with(')')
}

fn function(code: &[String], name: &str) -> Function {
    let indent = code[0].len() - code[0].trim_start().len();
    let end = format!("{}}}", " ".repeat(indent));
    let signature: String = signature(code);
    let parameters = parameters(&signature);
    let of_type_bool =
        |parameter: &&String| parameter.rsplit(':').next().is_some_and(|kind| kind.trim() == "bool");
    let has_body = signature.ends_with('{');
    let length =
        if has_body { code.iter().position(|line| *line == end).map_or(1, |last| last + 1) } else { 1 };
    Function {
        name: name.to_owned(),
        booleans: parameters.iter().filter(of_type_bool).count(),
        parameters: parameters.len(),
        lines: code[..length.min(code.len())].iter().filter(|line| !line.is_empty()).count(),
    }
}

/// The text from `fn` to the brace or semicolon that ends the signature.
fn signature(code: &[String]) -> String {
    let mut text = String::new();
    for line in code {
        text.push_str(line.trim());
        text.push(' ');
        if line.ends_with('{') || line.ends_with(';') || line.ends_with('}') {
            break;
        }
    }
    text.trim_end().to_owned()
}

/// The parameters of a signature.
fn parameters(signature: &str) -> Vec<String> {
    let (mut depth, mut angles) = (0_usize, 0_usize);
    let mut found = vec![String::new()];
    let mut before = ' ';
    // `pub(crate)` stands before.
    let start = signature.find("fn ").unwrap_or_default();
    for letter in signature[start..].chars() {
        let inside = depth > 0;
        match letter {
            '<' => angles += 1,
            '>' if before != '-' => angles = angles.saturating_sub(1),
            // Parentheses in generics before the list are not the list.
            '(' | '[' if inside || angles == 0 => depth += 1,
            ')' | ']' if depth == 1 => break,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = letter;
        match letter {
            ',' if depth == 1 && angles == 0 => found.push(String::new()),
            _ if inside => found.last_mut().expect("a parameter").push(letter),
            _ => {}
        }
    }
    found.retain(|text| !text.trim().is_empty());
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn parameters_and_lines_are_counted() {
        let text = "impl A {\n    pub(crate) async fn one<T: Fn(bool) -> u8>(&mut self, a: bool, b: (u8, u8)) -> bool {\n        // why\n\n        true\n    }\n}\nfn two(\n    a: BTreeMap<u8, bool>,\n    b: bool,\n) {\n}\ntrait B {\n    fn three();\n}\n";
        let all = functions(&Source::new(Path::new("a.rs"), text));
        let seen: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.parameters, f.booleans, f.lines)).collect();
        assert_eq!(seen, [("one", 3, 1, 3), ("two", 2, 1, 5), ("three", 0, 0, 1)]);
    }
}
