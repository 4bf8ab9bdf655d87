//! The linter, with any file of an administrator.

use cnimble_lint::{Data, Document, File, Finding, Host, Route};

/// Lints a network's file, and a single plugin's configuration.
pub fn lint(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = File { path: "net.conflist".to_owned(), text: text.to_owned() };
    let document = match Document::parse(file) {
        Ok(document) => document,
        Err(failed) => return holds_together(&failed.0, &[failed.1]),
    };
    let route = |to: &str, link: &str| Route {
        to: to.parse().unwrap(),
        link: link.to_owned(),
        via: false,
        pods: false,
    };
    let host = Host {
        routes: vec![route("10.88.0.0/16", "docker0"), route("fd00::/8", "eth0")],
        bridges: vec![("cni0".to_owned(), vec!["10.1.2.1/24".parse().unwrap()])],
    };
    let other = Document {
        file: File { path: "other.conflist".to_owned(), ..document.file.clone() },
        root: document.root.clone(),
    };
    let mut found = cnimble_lint::lint(&document);
    found.extend(cnimble_lint::lint_entry(&document));
    found.extend(cnimble_lint::on_host(&document, &host));
    found.extend(cnimble_lint::together(&document, &[other]));
    for named in cnimble_lint::named(&document) {
        let meant = cnimble_lint::meant(&document, named.entry.0, "ipam.ranges[0][0].subnet: no");
        assert!(meant.is_none_or(|range| text.get(range).is_some()));
    }
    holds_together(&document.file, &found);
    // A document that isn't an object has exactly one finding.
    if !matches!(document.root.data, Data::Object(_)) {
        assert_eq!(cnimble_lint::lint(&document).len(), 1);
    }
}

/// Checks that each finding has a range in the text, a position and a message.
fn holds_together(file: &File, found: &[Finding]) {
    let lines = file.text.matches('\n').count() + 1;
    for finding in found {
        assert!(file.text.get(finding.range.clone()).is_some(), "{finding:?}");
        let (line, column) = file.position(finding.range.start);
        assert!((1..=lines).contains(&line) && column >= 1, "{finding:?}");
        assert!(!finding.message.is_empty(), "{finding:?}");
    }
    let report = cnimble_lint::sarif::report("0", [(file, found)]);
    assert_eq!(report["runs"][0]["results"].as_array().map(Vec::len), Some(found.len()));
}
