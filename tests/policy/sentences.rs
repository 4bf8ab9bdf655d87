//! Checks the list of the sentences that doctor, check, del, gc and tree can print.

use std::fs;

use super::root;

/// The list: a heading for each source file, and below it a table with a row for each sentence.
pub(super) const LIST: &str = "tests/command/sentences.md";

/// The number of bytes that the words of a sentence have at least, so that they are found by no chance.
const SHORTEST: usize = 4;

/// Returns the cells of a row of a table, or `None` for another line, a head or the line below it.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells = row.replace("\\|", "\0");
    let cells: Vec<String> = cells.split(" | ").map(|cell| cell.trim().replace('\0', "|")).collect();
    (cells[0] != "verbs").then_some(cells)
}

/// Returns the longest part of a sentence without placeholders, which are in braces. ` / ` is between two sentences of one
/// row.
fn words(sentence: &str) -> &str {
    let mut longest = "";
    for part in sentence.split(" / ") {
        for piece in part.split('{') {
            let piece = piece.rsplit_once('}').map_or(piece, |(_, rest)| rest);
            for fragment in piece.split(['|', '…']) {
                let fragment = fragment.trim_matches([' ', ':', ';', ',', '.', '(', ')', '"']);
                if fragment.len() > longest.len() {
                    longest = fragment;
                }
            }
        }
    }
    longest
}

/// Returns a source file with each text in one piece, as it is printed.
fn joined(source: &str) -> String {
    let mut pieces = source.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.trim_start()).replace("\\\"", "\"")
}

/// Returns what is wrong with a row of the list, for a source file.
fn fault(row: &[String], source: &str) -> Option<String> {
    let [_, sentence, _, test] = row else { return Some("expected four cells".to_owned()) };
    let words = words(sentence);
    if words.len() < SHORTEST || !source.contains(words) {
        return Some(format!("the file has no text \"{words}\""));
    }
    if test == "-" {
        return None;
    }
    let named = test.trim_matches('`').split_once("::");
    let exists = named.is_some_and(|(file, name)| {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        text.contains(&format!("fn {name}("))
    });
    (!exists).then(|| format!("there is no test {test}"))
}

#[test]
fn each_sentence_of_the_list_is_printed_and_its_test_exists() {
    let list = fs::read_to_string(root().join(LIST)).unwrap();
    let (mut name, mut source, mut rows) = ("", String::new(), 0);
    let mut wrong = Vec::new();
    for line in list.lines() {
        if let Some(file) = line.strip_prefix("## ") {
            name = file;
            source = joined(&fs::read_to_string(root().join(file)).unwrap_or_default());
        } else if let Some(row) = cells(line) {
            rows += 1;
            wrong.extend(fault(&row, &source).map(|fault| format!("{name}: {}: {fault}", row[1])));
        }
    }
    assert!(rows > 200 && wrong.is_empty(), "{rows} rows of {LIST}:\n{}", wrong.join("\n"));
}

#[test]
fn a_sentence_that_is_gone_and_a_test_that_is_missing_are_seen() {
    let source = joined("warn!(\"the \\\"lease\\\" of {} \\\n        stays\", ip)");
    let row =
        |sentence: &str, test: &str| [String::new(), sentence.to_owned(), String::new(), test.to_owned()];
    assert_eq!(fault(&row("{warning} the \"lease\" of {ip} stays", "-"), &source), None);
    let here = "`tests/policy/sentences.rs::a_sentence_that_is_gone_and_a_test_that_is_missing_are_seen`";
    assert_eq!(fault(&row("the \"lease\" of {ip}", here), &source), None);
    for (sentence, test) in [
        ("the lease of {ip} is gone / {ip} stays", "-"),
        ("{ip}", "-"),
        ("the \"lease\" of {ip}", "`tests/policy/sentences.rs::nothing`"),
        ("the \"lease\" of {ip}", "`tests/nothing.rs::a_test`"),
    ] {
        assert!(fault(&row(sentence, test), &source).is_some(), "{sentence} {test}");
    }
    assert_eq!(cells("| verbs | sentence | facts that must hold | test |"), None);
    assert_eq!(cells("| a | b \\| c | d | - |").unwrap(), ["a", "b | c", "d", "-"]);
}
