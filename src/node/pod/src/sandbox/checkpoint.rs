//! The record of each sandbox is written first and removed last, so the next start after a crash knows what to take
//! down. It appears whole, by a rename, and is synced before networking starts. A power loss removes namespaces and
//! packet rules, but not leases, and only the record names their owner. Without a sync a renamed file may be empty.
//! The first two digits of the pod's key name a record's directory: a look-up takes the same time among thousands.
//! Later states are appended, one JSON document a line, and the last whole one counts. They need no sync, because after
//! a power loss the first document suffices.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use cnimble_cni::hash::hex;
use cnimble_os::files::{self as files, IfPresent, Links};

use super::config::{Sandbox, SandboxConfig, SandboxState};
use super::error::Cause;
use crate::PodId;

/// The end of a record's file name.
const ENDING: &str = ".json";
/// The length of the names of the directories.
const SHARD: usize = 2;
/// The largest size in bytes. The largest part is the network's configuration, which has a limit of 16 MiB.
const LIMIT: usize = 64 << 20;

/// The directory of the records.
#[derive(Debug, Clone)]
pub(super) struct RecordDirectory {
    dir: PathBuf,
    known: Arc<Mutex<Known>>,
}

/// The known facts about records by ID. They stay true, because a record never changes its name or its pod.
type Known = BTreeMap<String, CachedRecord>;

#[derive(Debug, Default)]
struct CachedRecord {
    /// The pod, once [`RecordDirectory::pods`] has read the record. The inner `None` stands for a record that it does
    /// not want.
    pod: Option<Option<PodId>>,
    shard: [u8; SHARD],
}

impl RecordDirectory {
    /// Opens the records in a directory, which it creates for root alone. Records of earlier versions are moved.
    pub(super) fn open(dir: PathBuf) -> Result<Self, Cause> {
        make_dir(&dir, 0o700)?;
        let store = RecordDirectory { dir, known: Arc::default() };
        store.migrate();
        Ok(store)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the directory of a record, so that [`RecordDirectory::get`] finds it at once.
    fn remember(&self, id: &str, path: &Path) {
        let shard =
            path.parent().and_then(Path::file_name).and_then(|name| name.as_encoded_bytes().try_into().ok());
        if let Some(shard) = shard {
            self.known().entry(id.to_owned()).or_default().shard = shard;
        }
    }

    /// Moves records of an older layout, with one directory. An unmovable record is found by its ID only.
    fn migrate(&self) {
        for (name, _) in names(&self.dir, |_| true).unwrap_or_default() {
            if let Some(shard) = name.get(..SHARD) {
                let shard = self.dir.join(shard);
                let moved = make_dir(&shard, 0o700).map_err(|err| err.to_string()).and_then(|()| {
                    fs::rename(self.dir.join(&name), shard.join(&name)).map_err(|err| err.to_string())
                });
                if let Err(err) = moved {
                    log::warn!("{}: it can't be moved: {err}", self.dir.join(&name).display());
                }
            }
        }
    }

    /// Returns the directory for a pod's key.
    fn shard(&self, key: &str) -> PathBuf {
        self.dir.join(key.get(..SHARD).unwrap_or(key))
    }

    /// Returns the path of a record. The name begins with the pod's key, so its records are found without reading all.
    fn path(&self, pod: &PodId, id: &str) -> PathBuf {
        let key = key(pod);
        self.shard(&key).join(format!("{key}-{id}{ENDING}"))
    }

    /// Writes a new record, and syncs it to the disk.
    pub(super) fn write_new(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        let text = serde_json::to_vec_pretty(sandbox)
            .map_err(|err| Cause::file("writing", &path)(io::Error::other(err)))?;
        let temporary = self.dir.join(format!(".{}", sandbox.id));
        let written =
            files::draft(&temporary, &text, 0o600, true).and_then(|()| self.place(&temporary, &path));
        written.map_err(|err| {
            let _ = fs::remove_file(&temporary);
            Cause::file("writing", &path)(err)
        })?;
        self.remember(&sandbox.id, &path);
        Ok(())
    }

    /// Moves a file into its directory, which is made if need be, and syncs the directory.
    fn place(&self, from: &Path, to: &Path) -> io::Result<()> {
        let shard = to.parent().unwrap_or(&self.dir);
        // Another process may remove the empty directory.
        for _ in 0..10 {
            match DirBuilder::new().mode(0o700).create(shard) {
                Ok(()) => File::open(&self.dir)?.sync_all()?,
                Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
                Err(err) => return Err(err),
            }
            match fs::rename(from, to) {
                Err(err) if err.kind() == io::ErrorKind::NotFound && from.exists() => {}
                other => return other.and_then(|()| File::open(shard)?.sync_all()),
            }
        }
        Err(io::Error::other("its directory is removed again and again"))
    }

    /// Appends a new state to the record, without a sync. A kill leaves the old state or the new one.
    pub(super) fn amend(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        let mut text = vec![b'\n'];
        serde_json::to_writer(&mut text, sandbox)
            .map_err(|err| Cause::file("adding to", &path)(io::Error::other(err)))?;
        let file = OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        file.and_then(|mut file| file.write_all(&text)).map_err(Cause::file("adding to", path))
    }

    /// Removes a record. A missing one is success.
    pub(super) fn remove(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        // There is no sync. At worst a record comes back after a power loss, and is taken down again.
        fs::remove_file(&path).if_present().map_err(Cause::file("removing", &path))?;
        self.known().remove(&sandbox.id);
        // This removes the directory only if it is empty.
        let _ = path.parent().map(fs::remove_dir);
        Ok(())
    }

    /// Returns a pod's records, the oldest first. An unreadable one counts as an unfinished sandbox, which must be
    /// taken down. Its name has the facts for that.
    pub(super) fn of_pod(&self, pod: &PodId) -> Result<Vec<Sandbox>, Cause> {
        let key = key(pod);
        let (prefix, shard) = (format!("{key}-"), self.shard(&key));
        let mut found = Vec::new();
        for (name, id) in names(&shard, |name| name.starts_with(&prefix))? {
            let path = shard.join(name);
            let sandbox = read(&path);
            self.remember(&id, &path);
            match sandbox {
                Ok(sandbox) if sandbox.config.pod == *pod => found.push(sandbox),
                // Another pod's hash can begin in the same way.
                Ok(_) => {}
                Err(cause) => {
                    log::warn!("{cause}; it will be taken down");
                    found.push(unreadable(pod, &id));
                }
            }
        }
        found.sort_by_key(|sandbox| (sandbox.attempt, sandbox.created));
        Ok(found)
    }

    /// Reads the record with this complete ID. It returns `None` if there is none.
    pub(super) fn get(&self, id: &str) -> Result<Option<Sandbox>, Cause> {
        let shard = self.known().get(id).map(|seen| String::from_utf8_lossy(&seen.shard).into_owned());
        let mut found = None;
        if let Some(shard) = shard.map(|shard| self.dir.join(shard)) {
            found = paths_in(&shard, |name| name.contains(id))?.into_iter().find(|(_, of)| of == id);
        }
        if found.is_none() {
            found = self.paths(|name| name.contains(id))?.into_iter().find(|(_, of)| of == id);
        }
        found.map(|(path, _)| read(&path)).transpose()
    }

    /// Returns the IDs that begin with `prefix`. It reads names only.
    pub(super) fn beginning(&self, prefix: &str) -> Result<Vec<String>, Cause> {
        let paths = self.paths(|name| name.contains(prefix))?;
        Ok(paths.into_iter().map(|(_, id)| id).filter(|id| id.starts_with(prefix)).collect())
    }

    /// Reads all records. The unreadable ones are in [`Listing::problems`].
    pub(super) fn list(&self) -> Result<Listing, Cause> {
        let mut listing = Listing::default();
        for (path, id) in self.paths(|_| true)? {
            match read(&path) {
                Ok(sandbox) => listing.sandboxes.push(sandbox),
                // Removed since.
                Err(Cause::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => listing.problems.push((id, cause)),
            }
        }
        listing.sandboxes.sort_by_key(|of| (of.config.pod.clone(), of.attempt, of.created));
        Ok(listing)
    }

    /// Returns the pods of all `wanted` records. Each record is read once and its answer is remembered, so `wanted`
    /// must be the same in every call.
    pub(super) fn pods(&self, wanted: impl Fn(&Sandbox) -> bool) -> Result<Pods, Cause> {
        let mut found = Pods::default();
        let mut before = std::mem::take(&mut *self.known());
        for (path, id) in self.paths(|_| true)? {
            let pod = match before.remove(&id).and_then(|seen| seen.pod) {
                Some(pod) => pod,
                None => match read(&path) {
                    Ok(sandbox) => wanted(&sandbox).then(|| sandbox.config.pod.clone()),
                    Err(Cause::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                    Err(cause) => {
                        found.problems.push((id, cause));
                        continue;
                    }
                },
            };
            found.pods.extend(pod.clone());
            self.remember(&id, &path);
            if let Some(seen) = self.known().get_mut(&id) {
                seen.pod = Some(pod);
            }
        }
        found.pods.sort();
        found.pods.dedup();
        Ok(found)
    }

    /// Returns the records with `wanted` file names, and their IDs.
    fn paths(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(PathBuf, String)>, Cause> {
        let mut paths = paths_in(&self.dir, &wanted)?;
        for entry in fs::read_dir(&self.dir).map_err(|err| list_error(&self.dir, err))? {
            let entry = entry.map_err(|err| list_error(&self.dir, err))?;
            if entry.file_name().len() == SHARD
                && entry.file_type().map_err(|err| list_error(&self.dir, err))?.is_dir()
            {
                paths.extend(paths_in(&entry.path(), &wanted)?);
            }
        }
        Ok(paths)
    }
}

/// Returns the paths of the records in a directory with `wanted` file names, and their IDs. A missing shard has none.
fn paths_in(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<(PathBuf, String)>, Cause> {
    let found = names(dir, wanted)?;
    Ok(found.into_iter().map(|(name, id)| (dir.join(name), id)).collect())
}

fn list_error(dir: &Path, source: io::Error) -> Cause {
    Cause::File { doing: "listing", path: dir.to_owned(), source }
}

/// Returns the names of the records in a directory, and their IDs. A missing shard has none.
fn names(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, Cause> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound && is_shard(dir) => return Ok(Vec::new()),
        entries => entries.map_err(|err| list_error(dir, err))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|err| list_error(dir, err))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') || !wanted(&name) {
            continue;
        }
        if let Some((_, id)) = name.strip_suffix(ENDING).and_then(|stem| stem.split_once('-')) {
            let id = id.to_owned();
            names.push((name, id));
        }
    }
    Ok(names)
}

fn is_shard(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name.len() == SHARD) && dir.parent().is_some_and(Path::exists)
}

/// The pods of records, and the unreadable records by ID.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    pub(crate) pods: Vec<PodId>,
    pub(crate) problems: Vec<(String, Cause)>,
}

/// The records of all sandboxes.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sandboxes by pod, the oldest first.
    pub sandboxes: Vec<Sandbox>,
    /// The IDs of unreadable records, with the reasons.
    pub problems: Vec<(String, Cause)>,
}

/// Returns sixteen hexadecimal digits that stand for a pod in file names. Its own names may be longer than a file's.
pub(super) fn key(pod: &PodId) -> String {
    let digest = Sha256::digest(pod.to_string().as_bytes());
    hex(digest.into_iter().take(8))
}

/// Makes a directory and its missing parents.
pub(super) fn make_dir(dir: &Path, mode: u32) -> Result<(), Cause> {
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(Cause::file("making", dir))
}

fn read(path: &Path) -> Result<Sandbox, Cause> {
    let decoded = match files::read(path, LIMIT, Links::Refuse) {
        Ok(text) => decode(&text),
        // The file is not regular or too large, so it is no record.
        Err(err) if files::is_foreign(&err) => Err(err.to_string()),
        Err(err) => return Err(Cause::file("reading", path)(err)),
    };
    decoded.map_err(|reason| Cause::Corrupt { path: path.to_owned(), reason })
}

/// Returns the last complete state in a record.
pub(super) fn decode(text: &[u8]) -> Result<Sandbox, String> {
    let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Sandbox>();
    let first = documents.next().ok_or("it is empty")?.map_err(|err| err.to_string())?;
    // The last addition may be incomplete after a crash.
    Ok(documents.map_while(Result::ok).last().unwrap_or(first))
}

/// Returns an unfinished sandbox in place of an unreadable record.
fn unreadable(pod: &PodId, id: &str) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        config: SandboxConfig::new(pod.clone(), ""),
        attempt: 0,
        created: 0,
        created_nanos: 0,
        boot_id: String::new(),
        state: SandboxState::SettingUp,
        netns: None,
        process: None,
        resolv_conf: None,
        ips: Vec::new(),
        cgroup_path: None,
        network: None,
    }
}

#[cfg(test)]
mod tests;
