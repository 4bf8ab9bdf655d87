//! The record of each sandbox on disk.
//!
//! It is written before anything else is made, so that whoever comes after a crash knows what
//! there may be to take down, and removed after everything is. A record appears whole or not
//! at all (written beside its place and renamed), and it is on the disk before networking
//! starts: namespaces and packet rules go with a power loss, but leases of addresses stay on
//! the disk, and only the record tells whose they are. A file that was renamed but not synced
//! may be empty then.
//!
//! What becomes of a sandbox after that is added behind, one JSON document a line, of which the
//! last whole one counts. That needs neither another file nor another sync: the first document
//! stays as it is on the disk, and after a power loss nothing else is asked for.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use cnimble_cni::hash::hex;
use cnimble_files::{self as files, Links};

use super::config::{Sandbox, SandboxConfig, State};
use super::error::Cause;
use crate::PodId;

const ENDING: &str = ".json";
/// How large a record may be, in bytes. Its largest part is the network's configuration, which
/// has a limit of 16 MiB.
const LIMIT: usize = 64 << 20;

/// The directory of the records.
#[derive(Debug, Clone)]
pub(super) struct Store {
    dir: PathBuf,
}

impl Store {
    pub(super) fn open(dir: PathBuf) -> Result<Self, Cause> {
        make_dir(&dir, 0o700)?;
        Ok(Store { dir })
    }

    /// Its name begins with the pod, so that a pod's records are found without reading all.
    fn path(&self, pod: &PodId, id: &str) -> PathBuf {
        self.dir.join(format!("{}-{id}{ENDING}", key(pod)))
    }

    /// Writes a record in place of the one before, onto the disk.
    pub(super) fn put(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        let failed = |source| Cause::File { doing: "writing", path: path.clone(), source };
        let text = serde_json::to_vec_pretty(sandbox).map_err(|err| failed(io::Error::other(err)))?;
        let temporary = self.dir.join(format!(".{}", sandbox.id));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, &path))
            .and_then(|()| self.sync());
        written.map_err(|err| {
            let _ = fs::remove_file(&temporary);
            failed(err)
        })
    }

    /// Adds to a record what has become of its sandbox. Whoever is killed in between leaves the
    /// old record or the new one.
    pub(super) fn amend(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        let failed = |source| Cause::File { doing: "adding to", path: path.clone(), source };
        let mut text = vec![b'\n'];
        serde_json::to_writer(&mut text, sandbox).map_err(|err| failed(io::Error::other(err)))?;
        let file = OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        file.and_then(|mut file| file.write_all(&text)).map_err(failed)
    }

    /// Forgets a sandbox; not to know it is success.
    pub(super) fn remove(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let path = self.path(&sandbox.config.pod, &sandbox.id);
        match fs::remove_file(&path) {
            // Not synced: a record that comes back after a power loss is one too many at worst.
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(Cause::file("removing", path)(err)),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// A pod's sandboxes, oldest first. One whose record can't be read is there all the same,
    /// with what its name tells: it has to be taken down.
    pub(super) fn of_pod(&self, pod: &PodId) -> Result<Vec<Sandbox>, Cause> {
        let prefix = format!("{}-", key(pod));
        let mut found = Vec::new();
        for (name, id) in self.names(|name| name.starts_with(&prefix))? {
            match read(&self.dir.join(name)) {
                Ok(sandbox) if sandbox.config.pod == *pod => found.push(sandbox),
                // The hash of another pod's name begins alike.
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

    /// The sandbox with this ID.
    pub(super) fn get(&self, id: &str) -> Result<Option<Sandbox>, Cause> {
        match self.names(|name| name.contains(id))?.into_iter().find(|(_, of)| of == id) {
            Some((name, _)) => read(&self.dir.join(name)).map(Some),
            None => Ok(None),
        }
    }

    /// All sandboxes, and the records that can't be read.
    pub(super) fn list(&self) -> Result<Listing, Cause> {
        let mut listing = Listing::default();
        for (name, id) in self.names(|_| true)? {
            match read(&self.dir.join(name)) {
                Ok(sandbox) => listing.sandboxes.push(sandbox),
                // Removed since.
                Err(Cause::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => listing.problems.push((id, cause)),
            }
        }
        let order = |of: &Sandbox| (of.config.pod.clone(), of.attempt, of.created);
        listing.sandboxes.sort_by_key(order);
        Ok(listing)
    }

    /// The file names that are wanted, and the IDs in them.
    fn names(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, Cause> {
        let failed = |source| Cause::File { doing: "listing", path: self.dir.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
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
}

/// What there is on disk.
#[derive(Debug, Default)]
pub struct Listing {
    /// All sandboxes, by pod, oldest first.
    pub sandboxes: Vec<Sandbox>,
    /// The IDs of those whose record can't be read, and why.
    pub problems: Vec<(String, Cause)>,
}

/// Sixteen hexadecimal digits for a pod: its names may be longer together than a file's.
pub(super) fn key(pod: &PodId) -> String {
    let digest = Sha256::digest(pod.to_string().as_bytes());
    hex(digest.into_iter().take(8))
}

/// Makes a directory and those above it, unless they are there.
pub(super) fn make_dir(dir: &Path, mode: u32) -> Result<(), Cause> {
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(Cause::file("making", dir))
}

fn read(path: &Path) -> Result<Sandbox, Cause> {
    let corrupt = |reason| Cause::Corrupt { path: path.to_owned(), reason };
    match files::read(path, LIMIT, Links::Refuse) {
        Ok(text) => decode(&text).map_err(corrupt),
        // Not ours, whoever put it there.
        Err(err) if files::is_foreign(&err) => Err(corrupt(err.to_string())),
        Err(err) => Err(Cause::file("reading", path)(err)),
    }
}

fn decode(text: &[u8]) -> Result<Sandbox, String> {
    let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Sandbox>();
    let first = documents.next().ok_or("it is empty")?.map_err(|err| err.to_string())?;
    // What was added may be cut short; then what is before it holds.
    Ok(documents.map_while(Result::ok).last().unwrap_or(first))
}

/// For fuzzers: takes any bytes for a record.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(bytes: &[u8]) {
    let Ok(sandbox) = decode(bytes) else { return };
    let text = serde_json::to_vec_pretty(&sandbox).map_err(|err| err.to_string());
    let again = text.and_then(|text| decode(&text));
    // Numbers in a configuration may lose their last digit.
    let rest = |sandbox: Sandbox| Sandbox { network: None, ..sandbox };
    assert_eq!(again.clone().map(rest), Ok(rest(sandbox.clone())));
    assert_eq!(again.as_ref().ok().and_then(Sandbox::network_name), sandbox.network_name());
    let network = sandbox.network();
    assert!(network.network.is_none_or(|list| cnimble_cni::names::is_identifier(&list.name)));
}

fn unreadable(pod: &PodId, id: &str) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        config: SandboxConfig::new(pod.clone(), ""),
        attempt: 0,
        created: 0,
        boot_id: String::new(),
        state: State::SettingUp,
        netns: None,
        process: None,
        resolv_conf: None,
        ips: Vec::new(),
        cgroup_path: None,
        network: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(pod: &PodId, id: &str, attempt: u32) -> Sandbox {
        Sandbox { attempt, boot_id: "b".into(), ..unreadable(pod, id) }
    }

    #[test]
    fn what_is_written_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("a/b")).unwrap();
        let (web, db) = (PodId::new("default", "web"), PodId::new("default", "db"));
        for (pod, id, attempt) in [(&web, "22", 1), (&web, "11", 0), (&db, "33", 0)] {
            store.put(&sandbox(pod, id, attempt)).unwrap();
        }
        let ids = |found: &[Sandbox]| found.iter().map(|of| of.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&store.of_pod(&web).unwrap()), ["11", "22"]);
        assert_eq!(ids(&store.list().unwrap().sandboxes), ["33", "11", "22"]);
        assert_eq!(store.get("22").unwrap().unwrap(), sandbox(&web, "22", 1));
        assert_eq!(store.get("2").unwrap(), None);
        store.remove(&sandbox(&web, "22", 1)).unwrap();
        store.remove(&sandbox(&web, "22", 1)).unwrap();
        assert_eq!(ids(&store.of_pod(&web).unwrap()), ["11"]);
    }

    #[test]
    fn the_last_whole_document_of_a_record_counts() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_owned()).unwrap();
        let web = PodId::new("default", "web");
        let begun = sandbox(&web, "11", 0);
        let ready = Sandbox { state: State::Ready, ips: vec!["10.0.0.2".parse().unwrap()], ..begun.clone() };
        store.amend(&ready).unwrap_err();
        store.put(&begun).unwrap();
        let before = fs::read(store.path(&web, "11")).unwrap();
        store.amend(&ready).unwrap();
        let after = fs::read(store.path(&web, "11")).unwrap();
        assert!(after.starts_with(&before), "what was synced stays as it is");
        assert_eq!(store.get("11").unwrap().unwrap(), ready);
        // The power goes at any byte of it.
        for length in before.len()..=after.len() {
            let mut text = after[..length].to_vec();
            for zeroes in [0, 20] {
                text.resize(length + zeroes, 0);
                fs::write(store.path(&web, "11"), &text).unwrap();
                let whole = length == after.len();
                assert_eq!(store.get("11").unwrap().unwrap(), if whole { &ready } else { &begun }.clone());
            }
        }
        store.put(&begun).unwrap();
        assert_eq!(store.of_pod(&web).unwrap(), [begun]);
    }

    #[test]
    fn a_bad_record_hides_no_other_and_is_to_be_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_owned()).unwrap();
        let (web, db) = (PodId::new("default", "web"), PodId::new("default", "db"));
        store.put(&sandbox(&web, "11", 0)).unwrap();
        store.put(&sandbox(&db, "22", 0)).unwrap();
        for garbage in ["", "{", "[]", r#"{"id":"11"}"#] {
            fs::write(store.path(&web, "11"), garbage).unwrap();
            let listing = store.list().unwrap();
            assert_eq!(listing.sandboxes.len(), 1, "{garbage}");
            assert_eq!(listing.problems[0].0, "11");
            assert!(listing.problems[0].1.to_string().contains("checkpoint /"), "{:?}", listing.problems);
            let found = store.of_pod(&web).unwrap();
            assert_eq!((found[0].id.as_str(), found[0].state), ("11", State::SettingUp));
            assert_eq!(store.of_pod(&db).unwrap().len(), 1);
        }
    }

    #[test]
    fn what_is_no_file_is_said_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_owned()).unwrap();
        let web = PodId::new("default", "web");
        let path = store.path(&web, "11");
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, serde_json::to_vec(&sandbox(&web, "11", 0)).unwrap()).unwrap();
        let plants: [(&str, &dyn Fn()); 4] = [
            ("is not a regular file", &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
            ("is a symbolic link", &|| std::os::unix::fs::symlink(&elsewhere, &path).unwrap()),
            ("is not a regular file", &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap())),
            ("is larger than 67108864 bytes", &|| File::create(&path).unwrap().set_len(1 << 40).unwrap()),
        ];
        for (why, plant) in plants {
            plant();
            let said = format!("checkpoint {}: {why}", path.display());
            assert_eq!(store.get("11").unwrap_err().to_string(), said);
            assert_eq!(store.list().unwrap().problems[0].1.to_string(), said);
            // It is taken down like any sandbox, and its record removed.
            let found = store.of_pod(&web).unwrap();
            assert_eq!(found[0].state, State::SettingUp);
            store.remove(&found[0]).unwrap();
            assert!(store.list().unwrap().problems.is_empty());
        }
        assert!(elsewhere.exists());
    }
}
