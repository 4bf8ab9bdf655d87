//! Finds stale and broken entries of the result cache.

use std::path::PathBuf;

use cnimble_cni::Error;
use cnimble_liveness::cache_entries::{Known, failed};
use cnimble_liveness::node::Node;
use cnimble_liveness::{Verdict, young};
use cnimble_os::files::IfPresent;
use cnimble_runtime::{Cache, Entry, Invoker};

use super::{Doctor, Finding, Kind, Subject, orphaned};

#[derive(Debug, Clone)]
pub(super) enum Action {
    /// DEL gets no result if another pod may have the addresses now: it could remove that pod's rules.
    Del {
        entry: Box<Entry>,
        with_result: bool,
        cache: PathBuf,
    },
    SetAside(PathBuf),
    Remove(PathBuf),
}

impl Action {
    pub(super) async fn run(&self, invoker: &Invoker) -> Result<(), Error> {
        match self {
            Action::Del { entry, with_result, cache } => {
                let invoker = invoker.clone().with_cache_dir(cache);
                invoker.del_entry(entry, *with_result).await.map_err(|err| err.to_spec())
            }
            Action::SetAside(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let aside = path.with_file_name(format!(".corrupt-{name}"));
                let renamed = std::fs::rename(path, aside).if_present();
                renamed.map(drop).map_err(|err| Error::io("rename", path, &err))
            }
            Action::Remove(path) => {
                let removed = std::fs::remove_file(path).if_present();
                removed.map(drop).map_err(|err| Error::io("remove", path, &err))
            }
        }
    }
}

pub(super) fn findings(doctor: &Doctor<'_>, node: &Node) -> Result<Vec<Finding>, Error> {
    let mut findings: Vec<Finding> =
        node.entries.iter().filter(|known| known.own).filter_map(|known| finding(node, known)).collect();
    for cache in doctor.evidence.judged() {
        findings.extend(broken(doctor, cache)?);
    }
    Ok(findings)
}

fn broken(doctor: &Doctor<'_>, cache: &Cache) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for (path, why) in cache.broken().map_err(|err| failed(&err))? {
        findings.push(Finding {
            kind: Kind::BrokenCacheEntry,
            what: format!("file {}", path.display()),
            subject: Subject::default(),
            why: format!("it is no entry of the result cache: {why}"),
            doubt: young(&path, doctor.evidence.grace),
            passing: true,
            remedy: "rename it, so that it is not read any more",
            action: super::Action::Entry(Action::SetAside(path)),
        });
    }
    for path in cache.unfinished().map_err(|err| failed(&err))? {
        findings.push(Finding {
            kind: Kind::UnfinishedFile,
            what: format!("file {}", path.display()),
            subject: Subject::default(),
            why: "a process that wrote it was killed before it was done".to_owned(),
            doubt: young(&path, doctor.evidence.grace),
            passing: true,
            remedy: "remove it",
            action: super::Action::Entry(Action::Remove(path)),
        });
    }
    Ok(findings)
}

fn finding(node: &Node, known: &Known) -> Option<Finding> {
    let (why, doubt) = match &known.verdict {
        // A faulty sandbox that the runtime lists is a separate finding.
        Verdict::Doubt(_) if node.is_listed(&known.entry.container_id, true) => return None,
        verdict => orphaned(verdict)?,
    };
    let with_result = !node.is_anothers(&known.entry);
    Some(Finding {
        kind: Kind::CacheEntry,
        what: format!("cache entry {}", Cache::new(&known.cache).path(known.entry.key()).display()),
        subject: Subject::of(&known.entry.network, &known.attachment()),
        why,
        doubt,
        passing: false,
        remedy: "DEL with the recorded configuration",
        action: super::Action::Entry(Action::Del {
            entry: Box::new(known.entry.clone()),
            with_result,
            cache: known.cache.clone(),
        }),
    })
}
