//! Checks pages: each link has a target, and the book has all pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::root;

/// Collects the repository's files with this ending, relative to its root.
fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root().join(dir)).unwrap() {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if entry.path().is_dir() && !hidden && !path.ends_with("target") {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
}

/// Returns all pages.
fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(Path::new(""), "md", &mut found);
    found.sort();
    found
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// Returns the text without code.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence && !line.starts_with("    ") {
            // Text between two backquotes is code.
            out.extend(line.split('`').enumerate().filter(|(place, _)| place % 2 == 0).map(|(_, part)| part));
        }
        out.push('\n');
    }
    out
}

/// Returns the targets of a page's links and pictures.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let ends = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    ends.filter_map(|rest| rest.split([')', ' ', '\n']).next()).map(str::to_owned).collect()
}

/// Returns the anchors of a page, as GitHub and mdbook derive them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !fenced && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
        }
    }
    found
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let (mut count, mut broken) = (0, Vec::new());
    // The book's list is relative to the root, and is tested below.
    for page in all().into_iter().filter(|page| !page.starts_with("book")) {
        for link in links(&read(&page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let there = root().join(&target).exists();
            let is_page = target.extension().is_some_and(|ending| ending == "md");
            if !there || (is_page && !anchor.is_empty() && !anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 150, "{count} links are too few");
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Returns true if the page is about a folder of the sources.
fn is_of_sources(page: &Path) -> bool {
    page.starts_with("src") || page.starts_with("tests") || page.starts_with("fuzz")
}

#[test]
fn the_book_has_every_page() {
    let summary = read(Path::new("book/SUMMARY.md"));
    let mut listed: Vec<PathBuf> = links(&summary).into_iter().map(PathBuf::from).collect();
    listed.sort();
    let mut pages = all();
    pages.retain(|page| !is_of_sources(page) && !page.starts_with("book"));
    assert_eq!(listed, pages, "book/SUMMARY.md has other pages than the repository");
}

/// Returns the cells of the page's table rows that begin with this text.
fn table_rows(page: &str, begin: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    page.lines().filter(|line| line.starts_with(begin)).map(cells).collect()
}

/// The README shows the run in the middle of the three runs in docs/PERFORMANCE.md.
#[test]
fn the_readme_has_the_figures_of_the_page_about_performance() {
    let readme = read(Path::new("README.md"));
    let performance = read(Path::new("docs/PERFORMANCE.md"));
    let mut shown: Vec<Vec<String>> = table_rows(&readme, "| ADD, ");
    shown.extend(table_rows(&readme, "| DEL, "));
    assert!(shown.len() >= 4, "{shown:?}");
    for row in shown {
        let measured = table_rows(&performance, &format!("|{}|", row[0]));
        assert_eq!(measured.len(), 1, "docs/PERFORMANCE.md has no row {:?}", row[0]);
        for (figure, runs) in row[1..].iter().zip(&measured[0][1..]) {
            let middle = runs.split('/').nth(1).unwrap_or_else(|| panic!("{runs} are not three runs"));
            assert_eq!(figure, &format!("{middle} ms"), "{}", row[0]);
        }
    }
    let date = performance.split("Three idle runs on ").nth(1).unwrap().split(',').next().unwrap();
    assert!(
        readme.contains(&format!(", {date}: of three idle runs")),
        "the README has another date than {date}"
    );
}

/// Words that a quick start may have, as `wc -w` counts.
const QUICK: usize = 300;

#[test]
fn quick_starts_are_short() {
    let start = Path::new("docs/start");
    let pages: Vec<PathBuf> = all().into_iter().filter(|page| page.starts_with(start)).collect();
    assert!(pages.len() >= 7, "{pages:?}");
    for page in pages {
        let words = read(&page).split_whitespace().count();
        assert!(words <= QUICK, "{} has {words} words", page.display());
    }
}

/// Returns the names of all tests.
fn tests() -> BTreeSet<String> {
    let (mut sources, mut names) = (Vec::new(), BTreeSet::new());
    files(Path::new(""), "rs", &mut sources);
    for source in sources {
        let mut is_test = false;
        for line in read(&source).lines().map(str::trim_start) {
            if let Some((name, _)) = line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                if is_test {
                    names.insert(name.to_owned());
                }
                is_test = false;
            }
            is_test |= line.starts_with("#[test]");
        }
    }
    names
}

/// Returns the rows of all tables of a page, with the text of their last cell.
fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("|--"));
    (0..lines.len()).filter_map(move |at| {
        let row = lines[at].strip_prefix("| ").filter(|_| !is_rule(lines.get(at + 1)))?;
        Some((row, row.trim_end_matches(" |").rsplit(" | ").next()?))
    })
}

#[test]
fn every_row_of_the_compatibility_page_names_a_test_that_holds_it() {
    let tests = tests();
    let page = read(Path::new("docs/COMPATIBILITY.md"));
    let (mut count, mut wrong) = (0, Vec::new());
    for (row, last) in rows(&page) {
        count += 1;
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            wrong.push(format!("no test: {row}"));
        }
        let unknown = named.iter().filter(|name| !tests.contains(**name));
        wrong.extend(unknown.map(|name| format!("there is no test {name}: {row}")));
    }
    assert!(count > 60, "{count} rows are too few");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_row_without_a_test_is_seen() {
    let text = "| what | test |\n|---|---|\n| this | `of_this` |\n| that |  |\n";
    assert_eq!(rows(text).map(|(_, last)| last).collect::<Vec<_>>(), ["`of_this`", ""]);
}

/// The comparison with libcni names public items that exist.
#[test]
fn the_comparison_with_libcni_names_what_exists() {
    let mut code = String::new();
    for crate_ in ["src/invoker/runtime/src", "src/base/cni/src"] {
        let mut sources = Vec::new();
        files(Path::new(crate_), "rs", &mut sources);
        code.extend(sources.iter().map(|source| read(source)));
    }
    let is_item = |name: &str| {
        let kinds = ["pub enum", "pub struct", "pub trait", "fn"];
        kinds.iter().any(|kind| code.contains(&format!("{kind} {name}")))
            || code.contains(&format!("as {name}"))
    };
    let page = read(Path::new("src/invoker/runtime/LIBCNI.md"));
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").nth(1));
    let names: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let parts =
        names.iter().flat_map(|name| name.split("::")).filter(|part| !["cni", "delegate"].contains(part));
    let missing: BTreeSet<&str> = parts.filter(|part| *part != "cnimble-plugin" && !is_item(part)).collect();
    assert!(names.len() > 40, "{} names are too few", names.len());
    assert!(missing.is_empty(), "names that do not exist: {missing:?}");
}
