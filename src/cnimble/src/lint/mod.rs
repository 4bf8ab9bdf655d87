//! `validate --strict`: reports all faults of a network's configuration with their places.

mod ask;
pub(super) mod files;
pub(super) mod host;
mod manifest;
mod refused;
mod show;

use cnimble_lint::{self as lint, Document, File, Finding, Level, Rule};

use super::Session;
use super::args::config::Validate;
use super::report::{Exit, Report, fail_with};
use files::{Source, TextKind, sources};

/// A checked file.
struct Checked {
    file: File,
    network: Option<String>,
    findings: Vec<Finding>,
}

/// Checks networks and prints the findings. Notes are no fault.
///
/// It fails with [`Exit::Execution`] if all faults are of installed plugins, and with [`Exit::Config`] otherwise.
pub(super) async fn strict(session: &Session, given: &Validate) -> Result<(), Report> {
    let sources = sources(session, given)?;
    if sources.wanted.is_empty() && sources.manifest.is_none() {
        log::warn!("no file of a network is in {}", session.conf.dir().display());
    }
    let host = if given.offline { None } else { Some(host::read()?) };
    let mut checked: Vec<Checked> = sources
        .manifest
        .map(|(file, findings)| Checked { file, network: None, findings })
        .into_iter()
        .collect();
    for Source { file, kind, within } in sources.wanted {
        let mut one = match Document::parse(file) {
            Ok(document) => {
                let findings = check(session, &document, kind, host.as_ref(), &sources.networks).await?;
                let network = document.root.text_of("name").map(str::to_owned);
                Checked { file: document.file, network, findings }
            }
            Err(failed) => {
                let (file, finding) = *failed;
                Checked { file, network: None, findings: vec![finding] }
            }
        };
        if let Some(within) = within {
            one.findings.iter_mut().for_each(|finding| finding.range = within.range(&finding.range));
            one.file = within.whole;
        }
        checked.push(one);
    }
    checked.sort_by(|one, other| one.file.path.cmp(&other.file.path));
    show::show(session, given, &checked)?;
    let findings = checked.iter().flat_map(|of| &of.findings);
    let wrong: Vec<&Finding> = findings.filter(|finding| finding.level > Level::Note).collect();
    fail_with(match (wrong.len(), wrong.iter().all(|finding| finding.rule == Rule::Plugin)) {
        (0, _) => None,
        (_, true) => Some(Exit::Execution),
        (_, false) => Some(Exit::Config),
    })
}

/// Returns the findings about a network by itself, without other networks, the host and the plugins' files.
pub(super) fn by_itself(document: &Document) -> Vec<Finding> {
    let mut found = lint::lint(document);
    found.extend(refused::find_refusals(document, TextKind::Network, &found, false));
    found.extend(refused::files(document, TextKind::Network, false));
    found
}

/// Returns all findings about a network or an entry, sorted by place. Without a `host` neither the host nor the
/// plugins' files are looked at.
async fn check(
    session: &Session,
    document: &Document,
    kind: TextKind,
    host: Option<&lint::Host>,
    networks: &[Document],
) -> Result<Vec<Finding>, Report> {
    let mut findings = match kind {
        TextKind::Entry => lint::lint_entry(document),
        TextKind::Network | TextKind::Manifest => lint::lint(document),
    };
    let has_folder = kind == TextKind::Network && !files::folder(&document.file)?.is_empty();
    if kind != TextKind::Entry && !has_folder {
        findings.extend(lint::lint_plugins(document));
    }
    if kind == TextKind::Network {
        findings.extend(lint::together(document, networks));
    }
    findings.extend(refused::find_refusals(document, kind, &findings, host.is_none()));
    findings.extend(refused::files(document, kind, host.is_none()));
    if let Some(host) = host {
        if kind != TextKind::Manifest {
            findings.extend(lint::on_host(document, host));
        }
        findings.extend(ask::ask_plugins(session, document, kind, &findings).await);
    }
    findings.sort_by_key(|finding| (finding.range.start, finding.rule));
    findings.dedup();
    Ok(findings)
}
