//! `tree`: draws the networks of the node.

use std::ffi::OsStr;
use std::path::Path;

use cnimble_doctor::tree::{self as tree, Look, Sources};
use cnimble_runtime::ConfDir;

pub(super) use cnimble_doctor::tree::Notes;

use super::args::Tree;
use super::cri::evidence;
use super::interrupt;
use super::report::{Exit, Report};
use super::{Session, doctor, plain, print, print_json};

pub(super) async fn tree(session: &Session, given: &Tree) -> Result<(), Report> {
    let notes = match (&given.cri, given.check) {
        (None, false) => Notes::default(),
        (socket, _) => notes(session, socket.as_deref()).await?,
    };
    let tree = read(session, &notes)?;
    if let Some(path) = &given.svg {
        write(path, &tree::svg(&tree))?;
    }
    if session.json {
        print_json(&tree)?;
    } else if given.svg.is_none() {
        let ascii = given.ascii || !speaks_unicode();
        let escape = if session.paint.is_on() { plain::key() } else { "" };
        print(&tree::text(&tree, Look { ascii, escape }))?;
    }
    Ok(())
}

/// With a socket the runtime supplies the names.
async fn notes(session: &Session, socket: Option<&OsStr>) -> Result<Notes, Report> {
    let what = "can't examine the pods of the networks";
    let mut doctor = doctor::new(session, &[], cnimble_liveness::DEFAULT_GRACE.as_secs());
    doctor.evidence.runtime = socket.map(|socket| evidence::runtime(socket, what)).transpose()?;
    let diagnosis = interrupt::look(what, doctor.look()).await?;
    let mut problems: Vec<(String, String)> = Vec::new();
    for finding in diagnosis.findings {
        let Some(id) = finding.subject.container_id else { continue };
        // The part after a colon is only for the output of the doctor.
        let why = finding.why.split(": ").next().unwrap_or_default();
        let problem = if finding.kind.is_of_sandbox() {
            why.to_owned()
        } else {
            format!("{}: {}", finding.what, finding.doubt.as_deref().unwrap_or(why))
        };
        problems.push((id, problem));
    }
    problems.extend(diagnosis.stopped.into_iter().map(|of| (of.container_id, of.text)));
    Ok(Notes { names: diagnosis.pods, problems })
}

/// Returns the node's networks, with these notes on their pods.
pub(super) fn read(session: &Session, notes: &Notes) -> Result<tree::Tree, Report> {
    let configured = configured(&session.conf);
    let sources = Sources { caches: &session.caches(), configured: &configured, notes };
    tree::read(&sources).map_err(|err| Report::because(Exit::Files, "can't draw the networks", err))
}

/// The first of each name counts. `cnimble networks` reports unusable networks.
fn configured(conf: &ConfDir) -> Vec<cnimble_cni::NetworkList> {
    let Ok(listing) = conf.list() else { return Vec::new() };
    listing.networks.into_iter().map(|network| network.list).collect()
}

/// The first variable that is set counts (locale(7)). Without a locale most terminals support Unicode.
fn speaks_unicode() -> bool {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set) {
        Some(locale) => locale.to_ascii_lowercase().replace('-', "").contains("utf8"),
        None => true,
    }
}

fn write(path: &Path, svg: &str) -> Result<(), Report> {
    if path == Path::new("-") {
        return print(svg);
    }
    std::fs::write(path, plain::text(svg)).map_err(|err| {
        Report::new(Exit::Files, "can't write the picture")
            .row("file", path.display().to_string())
            .row("why", err.to_string())
    })
}
