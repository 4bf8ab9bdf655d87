//! Finds stale and broken entries of the result cache.

use std::path::PathBuf;

use cnimble_cni::Error;
use cnimble_liveness::cache_entries::{JudgedEntry, failed};
use cnimble_liveness::node::Node;
use cnimble_liveness::{Verdict, is_in_future, young};
use cnimble_os::files::IfPresent;
use cnimble_runtime::{Cache, Entry, Invoker};

use super::runtime::del_command;
use super::{Doctor, Finding, FindingKind, Repair, Subject, orphaned};

/// The repair of a cache entry or file.
#[derive(Debug, Clone)]
pub(super) enum CacheRepair {
    /// Runs DEL of the entry. It gets no result if another pod may have the addresses now, because it could remove that
    /// pod's rules.
    Del {
        entry: Box<Entry>,
        with_result: bool,
        cache: PathBuf,
    },
    /// Renames the file to `.corrupt-NAME`, so that nobody reads it.
    SetAside(PathBuf),
    Remove(PathBuf),
}

impl CacheRepair {
    /// Performs the repair.
    pub(super) async fn run(&self, invoker: &Invoker) -> Result<Repair, Error> {
        match self {
            CacheRepair::Del { entry, with_result, cache } => {
                let invoker = invoker.clone().with_cache_dir(cache);
                let deleted = invoker.del_entry(entry, *with_result).await;
                let was_there = deleted.map_err(|err| err.to_spec())?;
                Ok(if was_there { Repair::Done } else { Repair::Gone })
            }
            CacheRepair::SetAside(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let aside = path.with_file_name(format!(".corrupt-{name}"));
                let renamed = std::fs::rename(path, aside).if_present();
                renamed.map(outcome).map_err(|err| Error::io("rename", path, &err))
            }
            CacheRepair::Remove(path) => {
                let removed = std::fs::remove_file(path).if_present();
                removed.map(outcome).map_err(|err| Error::io("remove", path, &err))
            }
        }
    }
}

/// Returns the outcome of a repair of a file. It is [`Repair::Gone`] if `repaired` is `None`, because the file was
/// gone.
fn outcome(repaired: Option<()>) -> Repair {
    repaired.map_or(Repair::Gone, |()| Repair::Done)
}

/// Returns the findings about entries and files of the judged caches.
pub(super) fn findings(doctor: &Doctor<'_>, node: &Node) -> Result<Vec<Finding>, Error> {
    let mut findings: Vec<Finding> = node
        .entries
        .iter()
        .filter(|known| known.own)
        .filter_map(|known| finding(doctor, node, known))
        .collect();
    for cache in doctor.evidence.judged() {
        findings.extend(broken(doctor, cache)?);
    }
    Ok(findings)
}

/// Returns the findings about files that are no entries, and about unfinished ones.
fn broken(doctor: &Doctor<'_>, cache: &Cache) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for (path, why) in cache.broken().map_err(|err| failed(&err))? {
        findings.push(Finding {
            kind: FindingKind::BrokenCacheEntry,
            what: format!("file {}", path.display()),
            subject: Subject::default(),
            why: format!("it is no entry of the result cache: {why}"),
            doubt: young(&path, doctor.evidence.grace),
            passing: !is_in_future(&path),
            remedy: "rename it, so that it is not read any more".into(),
            action: super::FindingRepair::Entry(CacheRepair::SetAside(path)),
        });
    }
    for path in cache.unfinished().map_err(|err| failed(&err))? {
        findings.push(Finding {
            kind: FindingKind::UnfinishedFile,
            what: format!("file {}", path.display()),
            subject: Subject::default(),
            why: "it is a file of an unfinished write".to_owned(),
            doubt: young(&path, doctor.evidence.grace),
            passing: !is_in_future(&path),
            remedy: "remove it".into(),
            action: super::FindingRepair::Entry(CacheRepair::Remove(path)),
        });
    }
    Ok(findings)
}

/// Returns the bare results in the judged caches. Nothing but DEL, which knows the attachment, reads them.
pub(super) fn bare_results(doctor: &Doctor<'_>) -> Result<Vec<PathBuf>, Error> {
    let mut paths = Vec::new();
    for cache in doctor.evidence.judged() {
        paths.extend(cache.bare_results().map_err(|err| failed(&err))?);
    }
    Ok(paths)
}

/// Returns the finding about an entry whose attachment is dead or in doubt.
fn finding(doctor: &Doctor<'_>, node: &Node, known: &JudgedEntry) -> Option<Finding> {
    let (why, doubt) = match &known.verdict {
        // The runtime lists the sandbox, so its fault is another finding.
        Verdict::Doubt(_) if node.is_listed(&known.entry.container_id, true) => return None,
        verdict => orphaned(verdict)?,
    };
    let with_result = !node.is_anothers(&known.entry);
    let del =
        CacheRepair::Del { entry: Box::new(known.entry.clone()), with_result, cache: known.cache.clone() };
    let (remedy, action) = match known.entry.network_list() {
        Ok(_) => ("DEL with the recorded configuration".into(), super::FindingRepair::Entry(del)),
        Err(_) => (unusable(doctor, known).into(), super::FindingRepair::Runtime),
    };
    Some(Finding {
        kind: FindingKind::CacheEntry,
        what: format!("cache entry {}", Cache::new(&known.cache).path(known.entry.key()).display()),
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why,
        doubt,
        passing: false,
        remedy,
        action,
    })
}

/// Returns the remedy for an entry whose configuration is missing or can't be used.
fn unusable(doctor: &Doctor<'_>, known: &JudgedEntry) -> String {
    format!(
        "its configuration can't be used: remove it by `{} --from-file`, or rename the file if no file has the network",
        del_command(doctor, known)
    )
}
