//! `tree`: draws the networks of the node.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cnimble_doctor::tree::{self as tree, Sources, TextStyle};
use cnimble_liveness::named::{Records, Unnamed};

pub(super) use cnimble_doctor::tree::Notes;

use super::args::look::Tree;
use super::cri::evidence;
use super::interrupt;
use super::output::print_note;
use super::report::{Exit, Report, fail_with};
use super::{Session, doctor, plain, print, print_json, target};

const WHAT: &str = "can't draw the networks";

/// Draws the networks as text, as SVG or as JSON. It fails with [`Exit::Found`] if a check was requested and has found
/// a fault.
pub(super) async fn tree(session: &Session, given: &Tree) -> Result<(), Report> {
    let is_checked = given.check || given.cri.is_some();
    let notes = if is_checked { notes(session, given.cri.as_deref()).await? } else { Notes::default() };
    let mut tree = read(session, &notes, WHAT)?;
    if let Some(what) = &given.what {
        remove_others(&mut tree, what, session, given.cri.as_deref())?;
    }
    if let Some(path) = &given.svg {
        write(path, &tree::svg(&tree))?;
    }
    if session.json {
        print_json(&tree)?;
    } else if given.svg.is_none() {
        let ascii = given.ascii || !speaks_unicode();
        let escape = if session.paint.is_on() { plain::key() } else { "" };
        print(&tree::text(&tree, TextStyle { ascii, escape }))?;
        if tree.networks.is_empty() {
            print_note(&format!("`cnimble networks{}` lists the faults of files", session.directories));
        }
    }
    fail_with((is_checked && tree.shows_faults()).then_some(Exit::Found))
}

/// Removes everything but the network of this name, or else the pod. It fails if neither is in the tree.
fn remove_others(
    tree: &mut tree::Tree,
    what: &str,
    session: &Session,
    cri: Option<&OsStr>,
) -> Result<(), Report> {
    if tree.keep_network(what) {
        return Ok(());
    }
    let runtime = cri.map(|socket| evidence::runtime(socket, WHAT)).transpose()?;
    let records = Records::read(&session.caches(), runtime.as_deref())
        .map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    match records.container(what).map_err(|unnamed| unknown(session, what, unnamed))? {
        Some(id) => tree.keep_pods(|pod| pod.container_id == id),
        None => {
            let found = records.find(what).map_err(|unnamed| unknown(session, what, unnamed))?;
            tree.keep_pods(|pod| {
                pod.netns.as_deref().is_some_and(|path| is_same(path.as_ref(), &found.netns))
            });
        }
    }
    if !tree.networks.is_empty() {
        return Ok(());
    }
    // A record names it now, and none did when the picture was read, or the other way round.
    Err(unknown(session, what, Unnamed::Gone(format!("{what} came or went while the networks were read"))))
}

fn unknown(session: &Session, what: &str, unnamed: Unnamed) -> Report {
    let dirs = &session.directories;
    let nothing = format!(
        "no usable file has a network {what}, and no record that was read is of a pod, container or namespace {what}"
    );
    target::unnamed(WHAT, what, unnamed, &nothing)
        .hint(format!("`cnimble network ls{dirs}` lists the networks, `cnimble ls{dirs}` the attachments"))
}

/// Returns whether two paths lead to one namespace. A missing one is the same as none.
fn is_same(one: &Path, other: &Path) -> bool {
    identity(one).is_some_and(|found| identity(other) == Some(found))
}

/// Returns the device and the number of a file, or `None` if it is not found.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Examines the node, and returns the problems of pods. With a socket the runtime supplies the pods' names. A doubt that
/// time alone ends is no problem, as for `doctor`.
async fn notes(session: &Session, socket: Option<&OsStr>) -> Result<Notes, Report> {
    let what = "can't examine the pods of the networks";
    let mut doctor = doctor::new(session, &[], cnimble_liveness::DEFAULT_GRACE.as_secs());
    doctor.evidence.runtime = socket.map(|socket| evidence::runtime(socket, what)).transpose()?;
    let diagnosis = interrupt::await_reading(what, doctor.examine_node()).await?;
    let mut problems: Vec<(String, String)> = Vec::new();
    let lasting = diagnosis.findings.into_iter().filter(|of| of.doubt.is_none() || !of.passing);
    for finding in lasting {
        let Some(id) = finding.subject.container_id.clone() else { continue };
        let why = finding.brief();
        let problem = if finding.kind.is_of_sandbox() {
            why.to_owned()
        } else {
            format!("{}: {}", finding.what, finding.doubt.as_deref().unwrap_or(why))
        };
        problems.push((id, problem));
    }
    problems.extend(diagnosis.stopped.into_iter().map(|of| (of.container_id, of.text)));
    let not_checked = diagnosis.blind.into_iter().chain(diagnosis.unchecked).collect();
    Ok(Notes { names: diagnosis.pods, problems, not_checked })
}

/// Returns the node's networks, with these notes about their pods. `what` is the sentence that an error begins with.
pub(super) fn read(session: &Session, notes: &Notes, what: &str) -> Result<tree::Tree, Report> {
    let configured = configured(session, what)?;
    let sources = Sources { caches: &session.caches(), configured: &configured, notes };
    tree::read(&sources).map_err(|err| Report::because(Exit::Files, what, err))
}

/// Returns the usable networks in the order of their files, of which the first of each name counts. `cnimble networks`
/// reports the others. It fails if a directory that the user names can't be read.
fn configured(session: &Session, what: &str) -> Result<Vec<cnimble_cni::NetworkList>, Report> {
    let dir = session.conf.dir();
    if session.own_conf
        && let Err(err) = std::fs::read_dir(dir)
    {
        return Err(Report::new(Exit::Config, what)
            .row("directory", dir.display().to_string())
            .row("why", err.to_string())
            .hint("--conf-dir or NETCONFPATH names the directory of configurations"));
    }
    let listing = session.conf.list().map_err(|err| Report::conf(what, &err))?;
    Ok(listing.networks.into_iter().map(|network| network.list).collect())
}

/// Returns whether the locale is of UTF-8. The first variable that is set counts (locale(7)). Without a locale it
/// returns true, because most terminals support Unicode.
fn speaks_unicode() -> bool {
    let mut values = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    match values.find(|value| !value.is_empty()) {
        Some(locale) => locale.to_ascii_lowercase().replace('-', "").contains("utf8"),
        None => true,
    }
}

/// Writes the picture to a file, or to stdout for `-`.
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
