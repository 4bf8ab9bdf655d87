//! Shows findings as text, as JSON, or as annotations for code hosts.

use serde::Serialize;

use cnimble_lint::{File, Finding, Level, sarif};

use crate::args::config::Validate;
use crate::output::View;
use crate::report::Report;
use crate::style::{Paint, count};
use crate::{Session, plain, print_json};

/// Prints the findings in the requested form.
pub(super) fn show(session: &Session, given: &Validate, checked: &[super::Checked]) -> Result<(), Report> {
    if given.sarif {
        let files = checked.iter().map(|of| (&of.file, of.findings.as_slice()));
        return print_json(&sarif::report(env!("CARGO_PKG_VERSION"), files));
    }
    let files = checked.iter().map(|of| Checked {
        file: &of.file.path,
        network: of.network.as_deref(),
        findings: of.findings.iter().map(|finding| LocatedFinding::new(&of.file, finding)).collect(),
    });
    session.show(&Findings {
        files: files.collect(),
        errors: count_of(checked, Level::Error),
        warnings: count_of(checked, Level::Warning),
        summary: session.terminal,
    })
}

/// Counts the findings of this level.
fn count_of(checked: &[super::Checked], level: Level) -> usize {
    checked.iter().flat_map(|of| &of.findings).filter(|finding| finding.level == level).count()
}

/// The findings, as text and as JSON.
#[derive(Serialize)]
struct Findings<'c> {
    files: Vec<Checked<'c>>,
    errors: usize,
    warnings: usize,
    /// Whether the text ends with the counts, as on a terminal.
    #[serde(skip)]
    summary: bool,
}

#[derive(Serialize)]
struct Checked<'c> {
    file: &'c str,
    network: Option<&'c str>,
    findings: Vec<LocatedFinding<'c>>,
}

/// A finding with its place. Lines and columns begin at 1.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LocatedFinding<'c> {
    rule: &'static str,
    level: &'static str,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    message: &'c str,
}

impl<'c> LocatedFinding<'c> {
    fn new(file: &File, finding: &'c Finding) -> Self {
        let (line, column) = file.position(finding.range.start);
        let (end_line, end_column) = file.position(finding.range.end);
        let (rule, level) = (finding.rule.name(), finding.level.name());
        LocatedFinding { rule, level, line, column, end_line, end_column, message: &finding.message }
    }
}

impl View for Findings<'_> {
    fn text(&self, paint: Paint) -> String {
        let mut out = String::new();
        for Checked { file, findings, .. } in &self.files {
            for LocatedFinding { rule, level, line, column, message, .. } in findings {
                let level = match *level {
                    "error" => paint.bad(level),
                    "warning" => paint.bold(level),
                    _ => paint.dim(level),
                };
                // A key may contain any character, even a line break.
                let (path, message) = (plain::line(file), plain::line(message));
                let rule = paint.dim(&format!("[{rule}]"));
                out.push_str(&format!("{path}:{line}:{column}: {level}: {message} {rule}\n"));
            }
        }
        if self.summary {
            let (files, errors, warnings) = (count(self.files.len(), "file"), self.errors, self.warnings);
            let mark = if errors + warnings == 0 { paint.good("ok ") } else { String::new() };
            out.push_str(&format!("{mark}{files}, errors: {errors}, warnings: {warnings}\n"));
        }
        out
    }
}
