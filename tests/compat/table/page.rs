//! Generates the tables of docs/COMPATIBILITY.md from the rows.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::rows::{Row, Table, Verdict, folder};

/// The line before the tables.
const MARK: &str = "<!-- The rest is made from compat.json of each plugin: see CONTRIBUTING.md. -->\n";

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/COMPATIBILITY.md")
}

/// Returns the keys on a plugin's page, in their spelling there.
pub(super) fn keys(plugin: &str) -> Vec<String> {
    marked_keys(plugin).into_iter().map(|(key, _)| key).collect()
}

/// Returns the keys on a plugin's page, and whether `†` marks them as unknown to the Go plugin.
pub(super) fn marked_keys(plugin: &str) -> Vec<(String, bool)> {
    let page = std::fs::read_to_string(folder(plugin).join("README.md")).unwrap();
    let mut keys = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").next().unwrap().split('`').skip(1).collect();
        let key = |pair: &[&str]| (pair[0].to_owned(), pair[1].starts_with('†'));
        keys.extend(cells.chunks(2).map(key));
    }
    keys
}

/// Returns the test that runs the row with both sets.
fn test(table: &Table, row: &Row) -> &'static str {
    if row.in_machine(table) {
        "every_row_that_needs_another_kernel_is_what_both_sets_do"
    } else {
        "every_row_is_what_both_sets_do"
    }
}

/// A line of the page: rows of a plugin with the same outcome.
struct Line<'a> {
    /// The keys of the rows, with the case of a difference.
    uses: Vec<String>,
    like: &'a Row,
    test: &'static str,
}

impl Line<'_> {
    fn text(&self) -> String {
        let mut uses: Vec<&str> = Vec::new();
        for used in &self.uses {
            if !uses.contains(&used.as_str()) {
                uses.push(used);
            }
        }
        let (verdict, between) = match self.like.verdict {
            Verdict::Same => ("same", " "),
            Verdict::Better => ("**better**", "<br>"),
            Verdict::Different => ("*different*", "<br>"),
        };
        let differs = match self.like.differs.as_slice() {
            [] => String::new(),
            parts => format!(" ({})", parts.join(", ")),
        };
        format!("| {} | {verdict}{differs} | {} | `{}` |\n", uses.join(between), self.like.note, self.test)
    }
}

/// Returns the lines of a plugin, in the order of their first rows.
fn lines(table: &Table) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in &table.rows {
        let (used, test) = (uses(row), test(table, row));
        let is_like = |line: &&mut Line<'_>| {
            (line.like.verdict, &line.like.differs, &line.like.note, line.test)
                == (row.verdict, &row.differs, &row.note, test)
        };
        match lines.iter_mut().find(is_like) {
            Some(line) => line.uses.extend(used),
            None => lines.push(Line { uses: used, like: row, test }),
        }
    }
    lines
}

/// Returns what a line says of a row: its keys, and with a difference its case.
fn uses(row: &Row) -> Vec<String> {
    let keys = row.keys.iter().map(|key| format!("`{key}`"));
    match row.verdict {
        Verdict::Same => keys.collect(),
        _ => vec![format!("{} ({})", keys.collect::<Vec<_>>().join(" and "), row.case)],
    }
}

fn made(tables: &[Table]) -> String {
    let count =
        |verdict| tables.iter().flat_map(|table| &table.rows).filter(|row| row.verdict == verdict).count();
    let mut text = format!(
        "\n{} cases: {} same, {} better, {} different.\n",
        tables.iter().map(|table| table.rows.len()).sum::<usize>(),
        count(Verdict::Same),
        count(Verdict::Better),
        count(Verdict::Different),
    );
    for table in tables {
        let _ = write!(text, "\n## {}\n\n| options | | why | test |\n|---|---|---|---|\n", table.plugin);
        text.extend(lines(table).iter().map(Line::text));
    }
    text
}

/// # Panics
/// If the page differs from the rows. With `CNIMBLE_WRITE_PAGE` set, the page is written instead.
pub(super) fn assert_current(tables: &[Table]) {
    let old = std::fs::read_to_string(path()).unwrap();
    let (head, rest) = old.split_once(MARK).expect("docs/COMPATIBILITY.md has lost its mark");
    let new = made(tables);
    if std::env::var_os("CNIMBLE_WRITE_PAGE").is_some() {
        std::fs::write(path(), format!("{head}{MARK}{new}")).unwrap();
        return;
    }
    assert!(
        rest == new,
        "docs/COMPATIBILITY.md is not what compat.json says: run the test with CNIMBLE_WRITE_PAGE=1"
    );
}
