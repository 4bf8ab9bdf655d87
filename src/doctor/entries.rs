//! Entries of the result cache.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::world::{self, Verdict, World};
use super::{Doctor, Finding, Kind, Whose};
use crate::net::Netlink;
use crate::rules::Owner;
use crate::runtime::{Cache, CacheError, Entry};
use crate::spec::{Attachment, CniResult, Code, Error, json};

/// An entry, judged.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) entry: Entry,
    pub(super) verdict: Verdict,
}

impl Known {
    pub(super) fn owner(&self) -> Owner {
        Owner { network: self.entry.network.clone(), attachment: self.attachment() }
    }

    pub(super) fn attachment(&self) -> Attachment {
        Attachment { container_id: self.entry.container_id.clone(), ifname: self.entry.ifname.clone() }
    }

    /// The result of ADD, if it makes sense.
    pub(super) fn result(&self) -> Option<CniResult> {
        let version = self.entry.network_list().ok()?.version;
        CniResult::from_value(self.entry.result.as_ref()?, version, "").ok()
    }

    /// The addresses in the result.
    pub(super) fn addrs(&self) -> Vec<IpAddr> {
        self.result().map(|result| result.ips.iter().map(|ip| ip.address.ip()).collect()).unwrap_or_default()
    }

    /// Directories of host-local that the recorded configuration names.
    pub(super) fn data_dirs(&self) -> Vec<PathBuf> {
        self.entry.network_list().map(|list| data_dirs(&list)).unwrap_or_default()
    }
}

/// Directories of host-local that a network's configuration names.
pub fn data_dirs(list: &crate::spec::NetworkList) -> Vec<PathBuf> {
    let of = |document| json::get(json::get(document, "ipam")?, "dataDir")?.as_str();
    let dirs = list.plugins.iter().filter_map(|plugin| of(&plugin.document));
    dirs.filter(|dir| !dir.is_empty()).map(PathBuf::from).collect()
}

pub(super) fn read(cache: &Cache) -> Result<Vec<Known>, Error> {
    let entries = cache.list().map_err(|err| files(&err))?;
    Ok(entries.into_iter().map(|entry| Known { entry, verdict: Verdict::Lives }).collect())
}

fn files(err: &CacheError) -> Error {
    Error::new(Code::IO, err.to_string())
}

/// Whether its namespace is there.
pub(super) fn is_there(known: &Known) -> bool {
    known.entry.namespace().is_some_and(|path| world::namespace(path).is_some())
}

/// See the module above. Entries whose namespaces are there come first.
pub(super) fn judge(known: &Known, world: &World) -> Verdict {
    let path = known.entry.namespace();
    if let Some(ns) = path.and_then(world::namespace) {
        let inside = Netlink::open_in(&ns).and_then(|mut inside| inside.find_link(&known.entry.ifname));
        return match inside {
            Ok(Some(_)) => Verdict::Lives,
            Ok(None) => Verdict::Doubt(format!("its namespace is there, but has no {}", known.entry.ifname)),
            Err(err) => Verdict::Doubt(err.to_string()),
        };
    }
    if world.has_tag(&known.owner().tag()) {
        return Verdict::Lives;
    }
    match path {
        Some(path) => {
            world.by_addresses(&known.addrs(), format!("there is no network namespace {path} any more"))
        }
        None => Verdict::Doubt("it doesn't tell its namespace".to_owned()),
    }
}

/// What is done about an entry.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// DEL with what is recorded. The addresses may be another's by now, and rules that go by
    /// addresses with them: then without the result.
    Del {
        entry: Box<Entry>,
        with_result: bool,
    },
    SetAside(PathBuf),
    Remove(PathBuf),
}

impl Action {
    pub(super) async fn run(&self, doctor: &Doctor<'_>) -> Result<(), Error> {
        match self {
            Action::Del { entry, with_result } => {
                doctor.invoker.del_entry(entry, *with_result).await.map_err(|err| err.to_spec())
            }
            Action::SetAside(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let aside = path.with_file_name(format!(".corrupt-{name}"));
                ignore_missing(std::fs::rename(path, aside)).map_err(|err| Error::io("rename", path, &err))
            }
            Action::Remove(path) => {
                ignore_missing(std::fs::remove_file(path)).map_err(|err| Error::io("remove", path, &err))
            }
        }
    }
}

fn ignore_missing(outcome: std::io::Result<()>) -> std::io::Result<()> {
    match outcome {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

pub(super) fn findings(doctor: &Doctor<'_>, world: &World) -> Result<Vec<Finding>, Error> {
    let cache = doctor.invoker.cache();
    let mut findings: Vec<Finding> =
        world.entries.iter().filter_map(|known| finding(cache, world, known)).collect();
    for (path, why) in cache.broken().map_err(|err| files(&err))? {
        findings.push(Finding {
            kind: Kind::BrokenCacheEntry,
            what: format!("file {}", path.display()),
            whose: Whose::default(),
            why: format!("it is no entry of the result cache: {why}"),
            doubt: young(&path, doctor.grace),
            remedy: "rename it, so that nobody reads it",
            action: super::Action::Entry(Action::SetAside(path)),
        });
    }
    for path in cache.unfinished().map_err(|err| files(&err))? {
        findings.push(Finding {
            kind: Kind::UnfinishedFile,
            what: format!("file {}", path.display()),
            whose: Whose::default(),
            why: "a process that wrote it was killed before it was done".to_owned(),
            doubt: young(&path, doctor.grace),
            remedy: "remove it",
            action: super::Action::Entry(Action::Remove(path)),
        });
    }
    Ok(findings)
}

fn finding(cache: &Cache, world: &World, known: &Known) -> Option<Finding> {
    let (why, doubt) = match &known.verdict {
        Verdict::Lives => return None,
        Verdict::Orphan(why) => (why.clone(), None),
        Verdict::Doubt(doubt) => ("nothing shows that its pod lives".to_owned(), Some(doubt.clone())),
    };
    let with_result = !known.addrs().into_iter().any(|ip| world.is_held(ip) || world.place_of(ip).is_some());
    Some(Finding {
        kind: Kind::CacheEntry,
        what: format!("cache entry {}", cache.path(known.entry.key()).display()),
        whose: Whose::of(&known.entry.network, &known.attachment()),
        why,
        doubt,
        remedy: "DEL with the recorded configuration",
        action: super::Action::Entry(Action::Del { entry: Box::new(known.entry.clone()), with_result }),
    })
}

/// Why a file is left alone, if it is too young. One from the future is young, too.
pub(super) fn young(path: &Path, grace: Duration) -> Option<String> {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    let age = changed.map(|changed| SystemTime::now().duration_since(changed).unwrap_or_default());
    match age {
        Ok(age) if age >= grace => None,
        Ok(age) => {
            Some(format!("it is {} s old, and may be of an ADD that isn't finished (--grace)", age.as_secs()))
        }
        Err(err) => Some(err.to_string()),
    }
}
