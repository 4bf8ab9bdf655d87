//! Configurations from the documentation of upstream, podman, nerdctl, k3s, containerd, CRI-O and Multus. Valid files
//! (`corpus/good`) have no findings except notes. Broken files (`corpus/broken`) have exactly the findings in
//! `corpus/broken.txt`. `CNIMBLE_WRITE_PAGE=1` writes that file, so that its changes can be reviewed.
#![cfg(test)]

use std::path::{Path, PathBuf};

use cnimble_lint::{Document, File, Level, lint};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(corpus().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Returns the findings in a file with their levels, one line each.
fn findings(path: &Path) -> Vec<(Level, String)> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let file = File { path: name.to_owned(), text: std::fs::read_to_string(path).unwrap() };
    let (document, findings) = match Document::parse(file) {
        Ok(document) => {
            let findings = lint(&document);
            (document, findings)
        }
        Err(failed) => {
            let (file, finding) = *failed;
            let null = cnimble_lint::Node { range: 0..0, data: cnimble_lint::Data::Null };
            (Document { file, root: null }, vec![finding])
        }
    };
    let line = |finding: &cnimble_lint::Finding| {
        let (line, column) = document.file.position(finding.range.start);
        let (level, rule) = (finding.level.name(), finding.rule.name());
        (finding.level, format!("{name}:{line}:{column}: {level}: {} [{rule}]", finding.message))
    };
    findings.iter().map(line).collect()
}

#[test]
fn sound_configurations_have_no_findings() {
    let files = files("good");
    assert!(files.len() >= 40, "{}", files.len());
    let found: Vec<String> = files
        .iter()
        .flat_map(|path| findings(path))
        .filter(|(level, _)| *level > Level::Note)
        .map(|(_, line)| line)
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_fault_is_found_at_its_place() {
    let files = files("broken");
    assert!(files.len() >= 60, "{}", files.len());
    let mut all = String::new();
    for path in &files {
        let found = findings(path);
        let bad = found.iter().filter(|(level, _)| *level > Level::Note).count();
        assert!(bad > 0, "nothing is found in {}", path.display());
        all.extend(found.into_iter().map(|(_, line)| line + "\n"));
    }
    let expected = corpus().join("broken.txt");
    if std::env::var_os("CNIMBLE_WRITE_PAGE").is_some() {
        std::fs::write(&expected, &all).unwrap();
    }
    let expected = std::fs::read_to_string(expected).unwrap();
    assert!(all == expected, "corpus/broken.txt says otherwise:\n{all}");
}
