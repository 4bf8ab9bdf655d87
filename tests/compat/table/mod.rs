//! Compares the Go plugins with ours, option by option.
//!
//! Each plugin's folder has the rows of its table in `compat.json`. A row describes a node after both sets have run the
//! same configuration. The result is the same, better or different, with the parts that differ. The tests run each row
//! with both sets and compare. docs/COMPATIBILITY.md is generated from the rows.

mod page;
mod picture;
mod rows;
mod site;

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use cnimble_tests::{go_to_meet, need, plugin_dir, skip};

use self::picture::Picture;
use self::rows::{Row, Table, Verdict};

/// Returns the Go plugins if they are new enough. Those before 1.8 don't support 1.1.0.
fn newest_go() -> Result<&'static Path, String> {
    let go = go_to_meet()?;
    let host = cnimble_tests::Host::new();
    let answer =
        host.call_in(go, "bridge").command("VERSION").stdin(r#"{"cniVersion": "1.0.0"}"#).run().result();
    let versions = answer["supportedVersions"].as_array().cloned().unwrap_or_default();
    if versions.iter().any(|version| version == "1.1.0") {
        return Ok(go);
    }
    Err(format!("the Go plugins in {} are older than those of the table", go.display()))
}

/// The time to wait for an answer: at first, and after an unexpected result.
const PATIENCE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(8)];

/// Returns the error in a row, or `None` if it holds.
fn wrong(table: &Table, row: &Row, go: &Path) -> Option<String> {
    let what = format!("{} ({}, {})", table.plugin, row.keys.join(", "), row.case);
    let mut text = String::new();
    for patience in PATIENCE {
        let both = std::thread::scope(|scope| {
            let theirs = scope.spawn(|| Picture::of(table, row, go, patience));
            let ours = Picture::of(table, row, plugin_dir(), patience);
            theirs.join().map(|theirs| (theirs, ours))
        });
        let Ok((theirs, ours)) = both else {
            // On a slow machine Go's plugins give up, for example after five seconds of DAD.
            text = format!("{what}: the test itself failed");
            continue;
        };
        let differs = theirs.differs(&ours);
        if row.differs == differs {
            return None;
        }
        text =
            format!("{what}: differs in {differs:?}, the row says {:?}\n{}", row.differs, theirs.diff(&ours));
    }
    Some(text)
}

/// Without `CNIMBLE_TABLE`, one of so many rows is tested.
const ONE_OF: usize = 4;

/// Runs rows with both sets, two rows at a time. They are those of the plugin that `CNIMBLE_TABLE` names, or all of
/// them if it is `all`. Without it they are a sample.
fn hold(in_machine: bool, go: &Path) {
    let only = std::env::var("CNIMBLE_TABLE").unwrap_or_default();
    let tables = rows::all();
    let work: Vec<(&Table, &Row)> = tables
        .iter()
        .filter(|table| ["", "all", table.plugin.as_str()].contains(&only.as_str()))
        .flat_map(|table| table.rows.iter().map(move |row| (table, row)))
        .filter(|(table, row)| row.in_machine(table) == in_machine)
        .step_by(if only.is_empty() { ONE_OF } else { 1 })
        .collect();
    let next = Mutex::new(work.iter());
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((table, row)) = { next.lock().unwrap().next() } {
                    found.lock().unwrap().extend(wrong(table, row, go));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} of {} rows:\n{}", found.len(), work.len(), found.join("\n"));
}

#[test]
fn every_row_is_what_both_sets_do() {
    need!("ip", "nft", "iptables", "ping");
    let go = match newest_go() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    hold(false, go);
}

mod machine {
    use cnimble_tests::{in_vm, need, skip};

    #[test]
    fn every_row_that_needs_another_kernel_is_what_both_sets_do() {
        in_vm!();
        need!("ip", "bridge");
        let go = match super::newest_go() {
            Ok(go) => go,
            Err(why) => skip!("{why}"),
        };
        super::hold(true, go);
    }
}

#[test]
fn a_row_differs_if_and_only_if_it_says_why() {
    for table in rows::all() {
        for row in &table.rows {
            let what = format!("{}: {}", table.plugin, row.case);
            let same = row.verdict == Verdict::Same;
            assert_eq!(same, row.differs.is_empty(), "{what}: verdict and differs");
            assert!(same || !row.note.is_empty(), "{what}: a note is missing");
        }
    }
}

#[test]
fn every_key_of_a_plugin_has_a_row() {
    let mut lacking = Vec::new();
    for table in rows::all() {
        let told: Vec<&String> = table.rows.iter().flat_map(|row| &row.keys).collect();
        let keys = page::keys(&table.plugin);
        lacking.extend(
            keys.iter().filter(|key| !told.contains(key)).map(|key| format!("{}: {key}", table.plugin)),
        );
        let strange = told.iter().filter(|key| !keys.contains(key) && !key.starts_with("CNI_"));
        lacking.extend(strange.map(|key| format!("{}: {key} is not on its page", table.plugin)));
    }
    assert!(lacking.is_empty(), "keys without a row in compat.json:\n{}", lacking.join("\n"));
}

#[test]
fn a_key_is_marked_if_and_only_if_the_go_plugin_has_no_field_of_that_name() {
    let go = match newest_go() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let mut wrong = Vec::new();
    for table in rows::all() {
        // A Go program has the tags of its types, such as `json:"ipMasq,omitempty"`.
        let program = std::fs::read(go.join(&table.plugin)).unwrap();
        let program = String::from_utf8_lossy(&program).to_ascii_lowercase();
        for (key, is_marked) in page::marked_keys(&table.plugin) {
            let name = key.rsplit('.').next().unwrap().trim_end_matches("[]").to_ascii_lowercase();
            let tags = [format!("json:\"{name}\""), format!("json:\"{name},")];
            let is_in_go = tags.iter().any(|tag| program.contains(tag));
            if is_in_go == is_marked {
                wrong.push(format!("{}: {key}: in Go: {is_in_go}, marked: {is_marked}", table.plugin));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_has_the_rows() {
    page::assert_current(&rows::all());
}
