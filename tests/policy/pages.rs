//! Pages: each link leads somewhere, and the book has all of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::root;

/// The repository's pages, relative to its root.
fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root().join(dir)).unwrap() {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if entry.path().is_dir() && !hidden && !path.ends_with("target") {
            pages(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    pages(Path::new(""), &mut found);
    found.sort();
    found
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// The text without code.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence && !line.starts_with("    ") {
            // What stands between two backquotes is code.
            out.extend(line.split('`').enumerate().filter(|(place, _)| place % 2 == 0).map(|(_, part)| part));
        }
        out.push('\n');
    }
    out
}

/// What the links and pictures of a page lead to.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let ends = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    ends.filter_map(|rest| rest.split([')', ' ', '\n']).next()).map(str::to_owned).collect()
}

/// The anchors of a page, as GitHub and mdbook make them of its headings.
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
    // The book's own list is relative to the root: see below.
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

/// Pages that are about a folder of the sources.
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
