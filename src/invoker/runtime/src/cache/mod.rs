//! Results of ADD, kept for CHECK, DEL and GC.
//!
//! The files are `<dir>/results/<network>-<container ID>-<interface>`, JSON of kind `cniCacheV1`. Directory (0700),
//! file (0600) and keys are those of libcni, so CRI-O, podman or cnitool can delete the attachments of this library,
//! and it theirs. libcni before 0.8 kept the bare result, which is read as well.
//!
//! A file is written outside the directory, because libcni reads every file *in* it, and renamed. A damaged entry
//! (empty after a power loss, cut short) is renamed to `.corrupt-<name>`. libcni never reads that name, so DEL is not
//! blocked. Nothing is synced to the disk, which would take most of an ADD's time. After a power loss the namespaces
//! are gone, and DEL and GC find the leases without the entry.

mod entry;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cnimble_os::files::{self as files, IfPresent, Links};

use super::error::CacheError;

pub use entry::Entry;

/// The default directory of libcni.
pub const DEFAULT_DIR: &str = "/var/lib/cni";

/// The largest file that is read. It has room for the longest result and the longest configuration.
const LIMIT: usize = 64 << 20;

/// The beginning of the names of files that are being written.
const TEMPORARY: &str = ".cnimble-";

/// The cache in one directory.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// The attachment of an entry. The file's name has these three parts, so the key can't get another field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// The name of the network.
    pub network: &'a str,
    /// The value of CNI_CONTAINERID.
    pub container_id: &'a str,
    /// The interface inside the container.
    pub ifname: &'a str,
}

/// The state of an entry.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Lookup {
    /// There is no file.
    Nothing,
    /// The file holds an entry.
    Entry(Box<Entry>),
    /// The file is damaged, for the given reason.
    Corrupt(String),
}

impl Lookup {
    /// Returns the entry. It returns `None` if there is no file, or a damaged one.
    pub fn entry(self) -> Option<Entry> {
        match self {
            Lookup::Entry(entry) => Some(*entry),
            Lookup::Nothing | Lookup::Corrupt(_) => None,
        }
    }
}

impl Cache {
    /// Uses the cache under `dir`. The directory is made when the first entry is written.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Cache { dir: dir.into() }
    }

    /// Returns the directory that was given to [`Cache::new`].
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the file that `key` has. The file may not exist, or be another attachment's.
    pub fn path(&self, key: Key<'_>) -> PathBuf {
        self.results().join(format!("{}-{}-{}", key.network, key.container_id, key.ifname))
    }

    /// Returns the directory that holds nothing but entries.
    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    /// Reads the entry of `key`. An entry of another attachment under the same file name counts as [`Lookup::Nothing`],
    /// with a warning. A file that is not regular, or too large, is [`Lookup::Corrupt`].
    ///
    /// # Errors
    /// Fails if the file exists and can't be read.
    pub fn get(&self, key: Key<'_>) -> Result<Lookup, CacheError> {
        let path = self.path(key);
        match files::read(&path, LIMIT, Links::Refuse) {
            Ok(bytes) => Ok(match entry::decode(&bytes, key) {
                Ok(entry) if entry.is_of(key) => Lookup::Entry(Box::new(entry)),
                Ok(other) => {
                    log::warn!(
                        "result cache: {} is {}'s in network {}",
                        path.display(),
                        other.container_id,
                        other.network
                    );
                    Lookup::Nothing
                }
                Err(why) => Lookup::Corrupt(why),
            }),
            Err(err) if files::is_absent(&err) => Ok(Lookup::Nothing),
            Err(err) if files::is_foreign(&err) => Ok(Lookup::Corrupt(err.to_string())),
            Err(source) => Err(CacheError { doing: "reading", path, source }),
        }
    }

    /// Reads all entries, sorted by file name. A file that can't be read, or is no entry of kind `cniCacheV1`, is left
    /// alone with a warning. So are the bare results of libcni before 0.8. A missing directory has no entries.
    ///
    /// # Errors
    /// Fails if the directory exists and can't be listed.
    pub fn list(&self) -> Result<Vec<Entry>, CacheError> {
        Ok(self.list_where(|_| true)?.warn_of_unread())
    }

    /// Does the same as [`Cache::list`], and returns the errors about files that the file system could not read. What
    /// they hold is not known, so their attachments may live.
    ///
    /// # Errors
    /// Fails as [`Cache::list`] does.
    #[doc(hidden)]
    pub fn list_with_unread(&self) -> Result<(Vec<Entry>, Vec<CacheError>), CacheError> {
        let Listed { entries, unread } = self.list_where(|_| true)?;
        Ok((entries, unread))
    }

    /// Reads the entries of one container in all networks. It opens only files whose names contain the ID.
    ///
    /// # Errors
    /// Fails as [`Cache::list`] does.
    pub fn list_of(&self, container_id: &str) -> Result<Vec<Entry>, CacheError> {
        let part = format!("-{container_id}-");
        // The hyphens make the text longer, so that fewer other names contain it.
        let listed = self.list_where(|name| name.windows(part.len()).any(|of| of == part.as_bytes()))?;
        let mut entries = listed.warn_of_unread();
        entries.retain(|entry| entry.container_id == container_id);
        Ok(entries)
    }

    /// Reads the entries in the files whose names are `wanted`. Names with a leading dot are never read. A file that is
    /// no entry is left out, with a warning.
    fn list_where(&self, wanted: impl Fn(&[u8]) -> bool) -> Result<Listed, CacheError> {
        let mut listed = Listed::default();
        for path in self.paths(&self.results(), |name| !name.starts_with(b".") && wanted(name))? {
            let decoded = match files::read(&path, LIMIT, Links::Refuse) {
                Ok(bytes) => entry::decode_v1(&bytes),
                // A concurrent DEL has removed it.
                Err(err) if files::is_absent(&err) => continue,
                Err(err) if files::is_foreign(&err) => Err(err.to_string()),
                Err(source) => {
                    listed.unread.push(CacheError { doing: "reading", path, source });
                    continue;
                }
            };
            match decoded {
                Ok(entry) => listed.entries.push(entry),
                Err(why) => log::warn!("result cache: skipped {}: {why}", path.display()),
            }
        }
        Ok(listed)
    }

    /// Reads the entry in one file of the directory `results`. Returns `None` if there is no file, or one that is no
    /// entry of kind `cniCacheV1`.
    ///
    /// # Errors
    /// Fails if the file exists and can't be read.
    #[doc(hidden)]
    pub fn entry_at(&self, path: &Path) -> Result<Option<Entry>, CacheError> {
        match files::read(path, LIMIT, Links::Refuse) {
            Ok(bytes) => Ok(entry::decode_v1(&bytes).ok()),
            Err(err) if files::is_absent(&err) || files::is_foreign(&err) => Ok(None),
            Err(source) => Err(CacheError { doing: "reading", path: path.to_owned(), source }),
        }
    }

    /// Returns whether the file of `key` holds another attachment's entry. libcni's names collide: network `a-b` with
    /// container `c` shares one with network `a` and container `b-c`.
    fn is_anothers(&self, key: Key<'_>) -> bool {
        let bytes = files::read(&self.path(key), LIMIT, Links::Refuse);
        bytes.is_ok_and(|bytes| entry::decode_v1(&bytes).is_ok_and(|entry| !entry.is_of(key)))
    }

    /// Returns the files in `results` that are no entries, with the reasons. A bare result of libcni before 0.8 is an
    /// entry.
    ///
    /// # Errors
    /// Fails if the directory exists and can't be listed.
    #[doc(hidden)]
    pub fn broken(&self) -> Result<Vec<(PathBuf, String)>, CacheError> {
        let mut broken = Vec::new();
        for path in self.paths(&self.results(), |name| !name.starts_with(b"."))? {
            let why = match files::read(&path, LIMIT, Links::Refuse) {
                Ok(bytes) => entry::decode(&bytes, Key { network: "", container_id: "", ifname: "" }).err(),
                Err(err) => files::is_foreign(&err).then(|| format!("it {err}")),
            };
            broken.extend(why.map(|why| (path, why)));
        }
        Ok(broken)
    }

    /// Returns the bare results of a libcni before 0.8. Such a file doesn't name its attachment, so [`Cache::list`] leaves
    /// it out.
    ///
    /// # Errors
    /// Fails if the directory exists and can't be listed.
    #[doc(hidden)]
    pub fn bare_results(&self) -> Result<Vec<PathBuf>, CacheError> {
        let mut paths = self.paths(&self.results(), |name| !name.starts_with(b"."))?;
        paths.retain(|path| {
            files::read(path, LIMIT, Links::Refuse).is_ok_and(|bytes| entry::is_bare_result(&bytes))
        });
        Ok(paths)
    }

    /// Returns the files that are being written. Those of a killed process stay until they are removed.
    ///
    /// # Errors
    /// Fails if the directory exists and can't be listed.
    #[doc(hidden)]
    pub fn unfinished(&self) -> Result<Vec<PathBuf>, CacheError> {
        let mut paths = self.paths(&self.dir, |name| name.starts_with(TEMPORARY.as_bytes()))?;
        paths.retain(|path| path.is_file());
        Ok(paths)
    }

    /// Returns the paths in `dir` whose names are `wanted`, sorted. A missing directory has none.
    fn paths(&self, dir: &Path, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<PathBuf>, CacheError> {
        let mut names = list_names(dir, wanted).map_err(|source| CacheError {
            doing: "listing",
            path: dir.to_owned(),
            source,
        })?;
        names.sort();
        Ok(names.into_iter().map(|name| dir.join(name)).collect())
    }

    /// Writes an entry, and replaces an older one of the same attachment. The new one appears at once, by rename(2).
    ///
    /// # Errors
    /// Fails if the file system refuses it, and with EEXIST if the file is an entry of another attachment.
    pub fn put(&self, entry: &Entry) -> Result<(), CacheError> {
        let path = self.path(entry.key());
        if self.is_anothers(entry.key()) {
            let source = io::Error::from_raw_os_error(libc::EEXIST);
            return Err(CacheError { doing: "writing over another attachment's entry", path, source });
        }
        let text = entry.encode().map_err(CacheError::at("encoding", &path))?;
        match self.write(&path, &text) {
            // The directories are made only when they are missing, which is once.
            Err(err) if err.source.kind() == io::ErrorKind::NotFound => {
                let results = self.results();
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&results);
                made.map_err(CacheError::at("making", &results))?;
                self.write(&path, &text)
            }
            outcome => outcome,
        }
    }

    /// Writes the file beside the directory of entries, and renames it to `path`.
    fn write(&self, path: &Path, text: &[u8]) -> Result<(), CacheError> {
        let temporary = Temporary::write(&self.dir, text);
        let temporary = temporary.map_err(CacheError::at("writing a file in", &self.dir))?;
        temporary.persist(path).map_err(CacheError::at("writing", path))
    }

    /// Removes an entry. A missing entry is success. An entry of another attachment under the same file name stays.
    ///
    /// # Errors
    /// Fails if the file system refuses it.
    pub fn remove(&self, key: Key<'_>) -> Result<(), CacheError> {
        let path = self.path(key);
        if self.is_anothers(key) {
            return Ok(());
        }
        match fs::remove_file(&path) {
            Err(err) if !files::is_absent(&err) => Err(CacheError { doing: "removing", path, source: err }),
            _ => Ok(()),
        }
    }

    /// Renames an entry to `.corrupt-NAME`, so that neither libcni nor cnimble reads it. Returns the new path.
    ///
    /// # Errors
    /// Fails if the file system refuses it.
    pub fn rename_corrupt(&self, key: Key<'_>) -> Result<PathBuf, CacheError> {
        let path = self.path(key);
        let mut name = std::ffi::OsString::from(".corrupt-");
        name.push(path.file_name().unwrap_or_default());
        let aside = path.with_file_name(name);
        fs::rename(&path, &aside).map_err(CacheError::at("setting aside", path))?;
        Ok(aside)
    }
}

/// The entries in a directory, and the errors about files that could not be read.
#[derive(Debug, Default)]
struct Listed {
    entries: Vec<Entry>,
    unread: Vec<CacheError>,
}

impl Listed {
    /// Logs the errors, and returns the entries.
    fn warn_of_unread(self) -> Vec<Entry> {
        self.unread.iter().for_each(|err| log::warn!("{err}"));
        self.entries
    }
}

/// Returns the `wanted` names in `dir`, in the order of the directory. A missing directory has none.
fn list_names(dir: &Path, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<OsString>> {
    let Some(entries) = fs::read_dir(dir).if_present()? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if wanted(name.as_encoded_bytes()) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(bytes: &[u8]) {
    let Some(entry) = entry_of(bytes) else { return };
    let _ = (entry.network_list(), entry.namespace());
    let again = entry.encode().map_err(|err| err.to_string()).and_then(|text| entry::decode_v1(&text));
    assert_eq!(again.as_ref(), Ok(&entry));
}

#[cfg(feature = "fuzzing")]
pub(super) fn entry_of(bytes: &[u8]) -> Option<Entry> {
    entry::decode(bytes, Key { network: "net", container_id: "c0ffee", ifname: "eth0" }).ok()
}

/// A file that is removed on drop, unless it was renamed. [`files::replace`] removes a draft that has its name already.
/// Here such a draft may belong to a living process that has our process ID in another PID namespace.
struct Temporary(PathBuf);

impl Temporary {
    /// Makes a new file in `dir`, readable by its owner only, and writes `text`.
    fn write(dir: &Path, text: &[u8]) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
            let mut options = fs::OpenOptions::new();
            let mut file = match options.write(true).create_new(true).mode(0o600).open(&path) {
                // A process with our ID has made it, in another PID namespace or before a crash.
                Err(err) if err.kind() == io::ErrorKind::AlreadyExists => continue,
                outcome => outcome?,
            };
            let temporary = Temporary(path);
            file.write_all(text)?;
            return Ok(temporary);
        }
    }

    /// Renames the file to `path`, in place of an older one.
    fn persist(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.0, path)?;
        // The temporary name is free now. Another process may already use it, so `drop` must not remove it.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(err) = fs::remove_file(&self.0) {
            log::warn!("can't remove {}: {err}", self.0.display());
        }
    }
}
