//! The language of pages and comments: hard sentences, and names of files that do not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{root, sentences};

/// Hard sentences for a thousand words that a page may have.
const PAGE: f64 = 9.0;

/// Hard sentences for a thousand words that the comments of a crate may have.
const COMMENTS: f64 = 8.0;

/// Shorter texts are not judged.
const FEW: usize = 150;

/// Pages and crates with a higher limit, one a line. `CNIMBLE_WRITE_PAGE=1` writes their current values, and a limit
/// only falls.
const LIMITS: &str = "tests/policy/prose.limits";

/// A longer sentence is hard.
const LONG: usize = 30;

/// Beginnings of sentences with a late subject. A question may begin so.
const OPENINGS: [&str; 14] = [
    "Who ",
    "Whose ",
    "Whom ",
    "What ",
    "Whoever ",
    "Whatever ",
    "Whichever ",
    "One that ",
    "One who ",
    "Those that ",
    "Those who ",
    "Those of ",
    "That which ",
    "That of ",
];

/// Pronouns that replace a noun.
const PRONOUNS: [&str; 8] =
    ["somebody", "nobody", "anybody", "whoever", "whatever", "whose", "whom", "whence"];

/// The hard sentences of a text, and its number of words.
#[derive(Default)]
struct Text {
    words: usize,
    hard: Vec<String>,
}

impl Text {
    fn paragraph(&mut self, paragraph: &str, is_comment: bool) {
        let plain = plain(paragraph.trim());
        let words = plain.split_whitespace().count();
        self.words += words;
        if is_comment && words <= 3 && !plain.starts_with("See") {
            self.hard.push(format!("too short to say anything: {plain}"));
        }
        for sentence in sentences(&plain) {
            self.hard.extend(faults(sentence).into_iter().map(|fault| format!("{fault}: {sentence}")));
        }
    }

    fn rate(&self) -> f64 {
        self.hard.len() as f64 * 1000.0 / self.words.max(1) as f64
    }
}

fn faults(sentence: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    if OPENINGS.iter().any(|opening| sentence.starts_with(opening)) && !sentence.ends_with('?') {
        found.push("the subject comes late");
    }
    if sentence.split_whitespace().count() > LONG {
        found.push("long");
    }
    let count = |marks: &[char]| sentence.matches(marks).count();
    if count(&[';', ':']) >= 2 || count(&[',']) >= 4 {
        found.push("a chain");
    }
    let words = sentence.split(|letter: char| !letter.is_alphabetic());
    let pronouns = words.filter(|word| PRONOUNS.contains(&word.to_lowercase().as_str()));
    found.extend(pronouns.map(|_| "a pronoun for a noun"));
    found
}

/// Returns the text without code, emphasis and the targets of links.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for (number, part) in text.split('`').enumerate() {
        out.push_str(if number % 2 == 0 { part } else { "CODE" });
    }
    while let Some(start) = out.find("](") {
        let Some(end) = out[start..].find(')') else { break };
        out.replace_range(start..=start + end, "]");
    }
    out.retain(|letter| !matches!(letter, '[' | ']' | '*' | '_'));
    ["e.g.", "i.e.", "etc.", "vs."]
        .iter()
        .fold(out, |text, short| text.replace(short, short.trim_end_matches('.')))
}

/// Splits after `.`, `!` or `?` if a capital letter follows.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let ends = text.match_indices(['.', '!', '?']).map(|(at, _)| at + 1);
    for end in ends {
        let next = text[end..].trim_start();
        let is_end = text[end..].starts_with(char::is_whitespace)
            && next.starts_with(|letter: char| letter.is_uppercase() || matches!(letter, '(' | '"' | '\''));
        if is_end {
            found.push(text[start..end].trim());
            start = end;
        }
    }
    found.push(text[start..].trim());
    found.retain(|sentence| !sentence.is_empty());
    found
}

fn read_page(text: &str, into: &mut Text) {
    let mut is_code = false;
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let line_text = line.trim();
        let is_fence = line_text.starts_with("```");
        is_code ^= is_fence;
        let item = line_text.split_once(' ').filter(|(mark, _)| is_mark(mark)).map(|(_, rest)| rest);
        let is_other =
            is_code || is_fence || line_text.is_empty() || line_text.starts_with(['#', '<', '|', '!']);
        if (is_other || item.is_some()) && !paragraph.is_empty() {
            into.paragraph(&std::mem::take(&mut paragraph), false);
        }
        if line_text.starts_with('|') && !is_code {
            let cells = line_text.split('|').filter(|cell| cell.split_whitespace().count() > 6);
            cells.for_each(|cell| into.paragraph(cell.trim(), false));
        }
        if !is_other {
            paragraph.push_str(item.unwrap_or(line_text));
            paragraph.push(' ');
        }
    }
}

/// Returns true if a word begins an item of a list.
fn is_mark(word: &str) -> bool {
    matches!(word, "-" | "*" | "+")
        || word.strip_suffix(['.', ')']).is_some_and(|number| number.parse::<u8>().is_ok())
}

fn read_comments(text: &str, into: &mut Text) {
    let mut is_code = false;
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let comment =
            line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
        let is_fence = comment.is_some_and(|comment| comment.starts_with("```"));
        is_code ^= is_fence;
        let words = comment.filter(|comment| {
            !is_code
                && !is_fence
                && !comment.is_empty()
                && !comment.starts_with(['#', '|'])
                && !is_list(comment)
        });
        match words {
            Some(words) => {
                paragraph.push_str(words);
                paragraph.push(' ');
            }
            None if !paragraph.is_empty() => into.paragraph(&std::mem::take(&mut paragraph), true),
            None => {}
        }
    }
}

fn is_list(comment: &str) -> bool {
    comment.starts_with("- ") || comment.starts_with("* ")
}

/// Returns the files that git knows, with these endings.
fn tracked(endings: &[&str]) -> Vec<PathBuf> {
    let git =
        |args: &[&str]| std::process::Command::new("git").arg("-C").arg(root()).args(args).output().unwrap();
    let listed = git(&["ls-files", "--cached", "--others", "--exclude-standard"]);
    let text = String::from_utf8(listed.stdout).unwrap();
    let is_wanted = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        endings.contains(&ending) && root().join(path).is_file()
    };
    text.lines().map(PathBuf::from).filter(is_wanted).collect()
}

/// Returns the crate of a source file: its folders before `src/` of the crate, or `tests`.
fn crate_of(path: &Path) -> String {
    let folders = match path.iter().next().and_then(|top| top.to_str()) {
        Some("tests" | "fuzz") => 1,
        Some("src") if !path.starts_with("src/cnimble") => 3,
        _ => 2,
    };
    path.iter().take(folders).collect::<PathBuf>().display().to_string()
}

/// Returns the limit of a text that is not in the list.
fn usual(name: &str) -> f64 {
    if name.ends_with(".md") { PAGE } else { COMMENTS }
}

#[test]
fn pages_and_comments_are_easy_to_read() {
    let mut texts: BTreeMap<String, Text> = BTreeMap::new();
    for path in tracked(&["md", "rs"]) {
        // Its cells are messages with placeholders, and no prose.
        if path == Path::new(sentences::LIST) {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        if path.extension().is_some_and(|ending| ending == "md") {
            read_page(&text, texts.entry(path.display().to_string()).or_default());
        } else {
            read_comments(&text, texts.entry(crate_of(&path)).or_default());
        }
    }
    texts.retain(|name, text| text.words >= FEW && text.rate() > usual(name));
    if std::env::var_os("CNIMBLE_WRITE_PAGE").is_some() {
        let line =
            |(name, text): (&String, &Text)| format!("{:.1} {name}\n", (text.rate() * 10.0).ceil() / 10.0);
        std::fs::write(root().join(LIMITS), texts.iter().map(line).collect::<String>()).unwrap();
    }
    let limits = std::fs::read_to_string(root().join(LIMITS)).unwrap();
    let limits: BTreeMap<&str, f64> = limits
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(rate, name)| (name, rate.parse().unwrap()))
        .collect();
    let mut wrong = Vec::new();
    for (name, text) in &texts {
        let (rate, limit) = (text.rate(), limits.get(name.as_str()).copied().unwrap_or(usual(name)));
        if rate > limit {
            let hard = text.hard.join("\n  ");
            wrong.push(format!(
                "{name} has {rate:.1} for a thousand words, {limit:.1} are allowed:\n  {hard}"
            ));
        }
    }
    let idle = limits.keys().filter(|name| !texts.contains_key(**name));
    wrong.extend(idle.map(|name| format!("{name} needs no limit of its own any more")));
    assert!(wrong.is_empty(), "hard sentences:\n{}", wrong.join("\n"));
}

/// Top folders of the repository, with which a path in a text begins.
const TOPS: [&str; 10] =
    ["src", "plugins", "ipam", "tests", "scripts", "docs", "deploy", "fuzz", "examples", "book"];

/// Returns the paths, and the names of Rust files, in code spans that do not exist in the repository.
fn missing(path: &Path, text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let folders: Vec<PathBuf> = path.ancestors().skip(1).map(|folder| root().join(folder)).collect();
    let spans =
        text.lines().filter(|line| line.contains('`')).flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |span: &&str| {
        span.contains('/')
            && TOPS.contains(&span.split('/').next().unwrap_or_default())
            && span.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || "/-_.".contains(letter)
            })
    };
    let is_name = |span: &&str| !span.contains(['/', ' ', '*']) && span.ends_with(".rs");
    spans
        .filter(|span| {
            if is_name(span) {
                !names.contains(*span)
            } else {
                is_path(span) && folders.iter().all(|folder| !folder.join(span).exists())
            }
        })
        .map(|span| format!("{}: {span}", path.display()))
        .collect()
}

#[test]
fn files_that_texts_name_exist() {
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let names: BTreeSet<String> = tracked(&["rs"]).into_iter().map(name).collect();
    let mut wrong = Vec::new();
    for path in tracked(&["md", "rs", "toml"]) {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let comments =
            |line: &&str| line.trim_start().starts_with("//") || line.trim_start().starts_with('#');
        let text: String = match path.extension().and_then(|ending| ending.to_str()) {
            Some("md") => text,
            _ => text.lines().filter(comments).fold(String::new(), |all, line| all + line + "\n"),
        };
        wrong.extend(missing(&path, &text, &names));
    }
    assert!(wrong.is_empty(), "no such files:\n{}", wrong.join("\n"));
}

#[test]
fn hard_sentences_are_found() {
    let mut page = Text::default();
    read_page(
        "# Who\n\nWhose is it? Who fails looks again.\n\n- one; two: three; nobody\n\n```\nWhat a\n```\n",
        &mut page,
    );
    assert_eq!(page.hard.len(), 4, "{:?}", page.hard);
    let mut comments = Text::default();
    read_comments(
        "/// The kernel's.\nfn a() {}\n// Returns the [name](x) of `a.b`, which stands here.\n",
        &mut comments,
    );
    assert_eq!(comments.hard, ["too short to say anything: The kernel's."]);
}
