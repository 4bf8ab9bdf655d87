//! Writes findings in SARIF 2.1.0, which code hosts and editors show next to the lines.

use serde_json::{Value, json};

use super::{File, Finding, Rule};

/// Returns the report. `version` is that of the command.
pub fn report<'a>(version: &str, files: impl IntoIterator<Item = (&'a File, &'a [Finding])>) -> Value {
    let rules: Vec<Value> = Rule::ALL
        .iter()
        .map(|rule| json!({"id": rule.name(), "shortDescription": {"text": rule.about()}}))
        .collect();
    let results: Vec<Value> = files
        .into_iter()
        .flat_map(|(file, findings)| findings.iter().map(move |finding| result(file, finding)))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "cnimble",
                "version": version,
                "informationUri": "https://github.com/cnimble/cnimble",
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn result(file: &File, finding: &Finding) -> Value {
    let (line, column) = file.position(finding.range.start);
    let (end_line, end_column) = file.position(finding.range.end);
    json!({
        "ruleId": finding.rule.name(),
        "level": finding.level.name(),
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(&file.path)},
            "region": {
                "startLine": line,
                "startColumn": column,
                "endLine": end_line,
                "endColumn": end_column,
            },
        }}],
    })
}

/// Returns whether a URI has the byte as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte)
}

/// Returns a path as a URI. Relative paths stay relative.
fn uri(path: &str) -> String {
    let escaped: String = path
        .bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    if path.starts_with('/') { format!("file://{escaped}") } else { escaped }
}
