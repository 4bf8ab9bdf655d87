//! Shows findings as text, as JSON, or as annotations for code hosts.

use serde_json::{Value, json};

use cnimble_lint::{Level, sarif};

use super::Checked;
use crate::args::config::Validate;
use crate::plain;
use crate::report::Report;
use crate::style::count as count_of;
use crate::{Session, print, print_json};

pub(super) fn show(session: &Session, given: &Validate, checked: &[Checked]) -> Result<(), Report> {
    if given.sarif {
        let files = checked.iter().map(|of| (&of.file, of.findings.as_slice()));
        return print_json(&sarif::report(env!("CARGO_PKG_VERSION"), files));
    }
    let count =
        |level| checked.iter().flat_map(|of| &of.findings).filter(|finding| finding.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    if session.json {
        return print_json(&json!({
            "files": checked.iter().map(file).collect::<Value>(),
            "errors": errors,
            "warnings": warnings,
        }));
    }
    let mut out = String::new();
    for of in checked {
        for finding in &of.findings {
            let (line, column) = of.file.position(finding.range.start);
            let level = match finding.level {
                Level::Error => session.paint.bad("error"),
                Level::Warning => session.paint.bold("warning"),
                Level::Note => session.paint.dim("note"),
            };
            // A key may contain any character, even a line break.
            let (path, message) = (plain::line(&of.file.path), plain::line(&finding.message));
            let rule = session.paint.dim(&format!("[{}]", finding.rule.name()));
            out.push_str(&format!("{path}:{line}:{column}: {level}: {message} {rule}\n"));
        }
    }
    if session.terminal {
        let files = count_of(checked.len(), "file");
        let summary = format!("{files}, errors: {errors}, warnings: {warnings}\n");
        let mark = if errors + warnings == 0 { session.paint.good("ok ") } else { String::new() };
        out.push_str(&format!("{mark}{summary}"));
    }
    print(&out)
}

fn file(of: &Checked) -> Value {
    let findings = of.findings.iter().map(|finding| {
        let (line, column) = of.file.position(finding.range.start);
        let (end_line, end_column) = of.file.position(finding.range.end);
        json!({
            "rule": finding.rule.name(),
            "level": finding.level.name(),
            "line": line,
            "column": column,
            "endLine": end_line,
            "endColumn": end_column,
            "message": finding.message,
        })
    });
    json!({"file": of.file.path, "network": of.network, "findings": findings.collect::<Value>()})
}
