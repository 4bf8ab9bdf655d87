//! `validate --strict`: reports all faults of a network's configuration with their places.

mod ask;
pub(super) mod files;
pub(super) mod host;
mod show;

use cnimble_lint::{self as lint, Document, File, Finding, Level, Rule};

use super::Session;
use super::args::config::Validate;
use super::report::{Exit, Report, fail_with};
use files::{Kind, Source, sources};

struct Checked {
    file: File,
    network: Option<String>,
    findings: Vec<Finding>,
}

pub(super) async fn strict(session: &Session, given: &Validate) -> Result<(), Report> {
    let sources = sources(session, given)?;
    if sources.wanted.is_empty() {
        log::warn!("no file of a network is in {}", session.conf.dir().display());
    }
    let host = if given.offline { None } else { Some(host::read()?) };
    let mut checked = Vec::new();
    for Source { file, kind } in sources.wanted {
        let document = match Document::parse(file) {
            Ok(document) => document,
            Err(failed) => {
                let (file, finding) = *failed;
                checked.push(Checked { file, network: None, findings: vec![finding] });
                continue;
            }
        };
        let mut findings = match kind {
            Kind::Entry => lint::lint_entry(&document),
            Kind::Network => lint::lint(&document),
        };
        if kind == Kind::Network {
            findings.extend(lint::together(&document, &sources.networks));
        }
        if let Some(host) = &host {
            findings.extend(lint::on_host(&document, host));
            findings.extend(ask::ask(session, &document, kind, &findings).await);
        }
        findings.sort_by_key(|finding| (finding.range.start, finding.rule));
        findings.dedup();
        let network = document.root.text_of("name").map(str::to_owned);
        checked.push(Checked { file: document.file, network, findings });
    }
    checked.sort_by(|one, other| one.file.path.cmp(&other.file.path));
    show::show(session, given, &checked)?;
    let wrong = || checked.iter().flat_map(|of| &of.findings).filter(|finding| finding.level > Level::Note);
    fail_with(match (wrong().count(), wrong().all(|finding| finding.rule == Rule::Plugin)) {
        (0, _) => None,
        (_, true) => Some(Exit::Execution),
        (_, false) => Some(Exit::Config),
    })
}
