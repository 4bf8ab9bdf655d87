//! The file `CONTAINER_INTERFACE.json` in `dataDir`: the settings that ADD changes, as they were before. It has the Go
//! plugin's format: DEL of either set restores the other's changes. The Go plugin ignores our key for the network. GC
//! needs it: all networks share the directory. Files without it are kept.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, hash16};
use cnimble_netlink::link::{Link, Mac};
use cnimble_os::files::{self as files, IfPresent as _, Links, is_absent};
use cnimble_plugin::Undo;

use crate::settings::Settings;

/// The maximum size in bytes.
const LIMIT: usize = 64 << 10;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Backup {
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    txqlen: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
}

impl Backup {
    pub(crate) fn of(now: &Link, wanted: &Settings, network: &str) -> Self {
        Backup {
            mac: wanted.mac.and(now.mac).map(|mac| mac.to_string()),
            promisc: wanted.promisc.map(|_| now.promisc),
            mtu: wanted.mtu.map(|_| now.mtu),
            allmulti: wanted.allmulti.map(|_| now.allmulti),
            txqlen: wanted.txqlen.map(|_| now.txqlen),
            network: Some(network.to_owned()),
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|err| {
            Error::new(Code::DECODE, format!("the file with the settings before ADD can't be read: {err}"))
        })
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            mac: self.mac.as_deref().and_then(Mac::parse),
            promisc: self.promisc,
            mtu: self.mtu.filter(|mtu| *mtu != 0),
            allmulti: self.allmulti,
            txqlen: self.txqlen,
        }
    }

    /// Returns the content of the file as the Go plugin writes it: one space of indent, no newline at the end.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
        Ok(text)
    }
}

fn name(attachment: &Attachment) -> String {
    format!("{}_{}.json", attachment.container_id, attachment.ifname)
}

pub(crate) fn file(dir: &Path, attachment: &Attachment) -> PathBuf {
    dir.join(name(attachment))
}

/// `None` if there is no file. Fails with code 5 if it can't be read or isn't a regular file.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    files::read(file, LIMIT, Links::Refuse).unless_absent().map_err(|err| Error::io("read", file, &err))
}

/// Reads a backup for DEL. A path that can't be a file of ours (a link, a directory) counts as an empty backup, and is
/// removed afterwards.
pub(crate) fn read_what_is_left(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    match files::read(file, LIMIT, Links::Refuse) {
        Err(err) if files::is_foreign(&err) => Ok(Some(Vec::new())),
        _ => read(file),
    }
}

/// Atomic. An existing file is from an ADD without a DEL, for a former interface. The undo restores it nevertheless.
/// Fails with code 5.
pub(crate) fn write(file: &Path, backup: &Backup, undo: &Undo) -> Result<(), Error> {
    if let Some(dir) = file.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|err| Error::io("make directory", dir, &err))?;
    }
    let old = read(file)?;
    let text = backup.to_json().map_err(|err| Error::new(Code::INTERNAL, err.to_string()))?;
    let network = backup.network.as_deref().unwrap_or_default().to_owned();
    replace(file, &network, &text)?;
    let file = file.to_owned();
    undo.push(format!("remove {}", file.display()), move || match old {
        None => remove(&file, &network),
        Some(old) => replace(&file, &network, &old),
    });
    Ok(())
}

/// The prefix of temporary files. It has a fixed length, because the file's own name may have the maximum.
fn fresh_prefix(network: &str) -> String {
    format!(".{}-", hash16(network))
}

/// Until the file is complete. A killed process leaves it for DEL or GC.
fn fresh_name(file_name: &str, network: &str) -> String {
    fresh_prefix(network) + &hash16(file_name)
}

fn fresh(file: &Path, network: &str) -> PathBuf {
    file.with_file_name(fresh_name(&file.file_name().unwrap_or_default().to_string_lossy(), network))
}

fn replace(file: &Path, network: &str, text: &[u8]) -> Result<(), Error> {
    files::replace(file, &fresh(file, network), text).map_err(|err| Error::io("write", file, &err))
}

/// Also the temporary file of a killed ADD. Fails with code 5.
pub(crate) fn remove(file: &Path, network: &str) -> Result<(), Error> {
    remove_one(&fresh(file, network)).and(remove_one(file))
}

fn remove_one(file: &Path) -> Result<(), Error> {
    fs::remove_file(file).unless_absent().map(drop).map_err(|err| Error::io("remove", file, &err))
}

/// Attachments that aren't in `valid`. Fails with code 5 after all were tried.
pub(crate) fn gc(dir: &Path, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let mut keep: Vec<String> = valid.iter().map(name).collect();
    keep.extend(valid.iter().map(|valid| fresh_name(&name(valid), network)));
    let mut outcome = Ok(());
    for name in files::names(dir).map_err(|err| Error::io("list", dir, &err))? {
        let (path, name) = (dir.join(&name), name.to_string_lossy());
        if keep.iter().any(|kept| *kept == name) {
            continue;
        }
        if name.starts_with(&fresh_prefix(network)) {
            outcome = outcome.and(remove_one(&path));
        }
        if name.starts_with('.') || !name.ends_with(".json") {
            continue;
        }
        let network_of = |bytes: &[u8]| Backup::parse(bytes).ok()?.network;
        match files::read(&path, LIMIT, Links::Refuse) {
            Ok(bytes) if network_of(&bytes).as_deref() == Some(network) => {
                outcome = outcome.and(remove_one(&path));
            }
            Ok(_) => {}
            // Removed concurrently, or not ours.
            Err(err) if is_absent(&err) || files::is_foreign(&err) => {}
            Err(err) => outcome = outcome.and(Err(Error::io("read", &path, &err))),
        }
    }
    outcome
}

/// Fails with code 5 if the directory isn't writable.
pub(crate) fn usable(dir: &Path) -> Result<(), Error> {
    // The first ADD makes missing directories.
    let existing = dir.ancestors().find(|dir| dir.as_os_str().is_empty() || dir.exists()).unwrap_or(dir);
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    if !existing.is_dir() {
        return Err(Error::new(Code::IO, format!("{} is not a directory", existing.display())));
    }
    nix::unistd::access(existing, nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK)
        .map_err(|errno| Error::io("write to", existing, &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_references() {
        let backup = Backup {
            mac: Some("02:00:00:00:00:01".into()),
            promisc: Some(false),
            mtu: Some(1500),
            allmulti: Some(true),
            txqlen: Some(0),
            network: None,
        };
        let text = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": true,\n \"txQLen\": 0\n}";
        assert_eq!(String::from_utf8(backup.to_json().unwrap()).unwrap(), text);
        assert_eq!(Backup::parse(text.as_bytes()).unwrap(), backup);
        let network = Backup { network: Some("n".into()), ..Backup::default() };
        assert_eq!(network.to_json().unwrap(), b"{\n \"network\": \"n\"\n}");
    }

    #[test]
    fn a_file_is_replaced_and_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            file(&dir.path().join("a/b"), &Attachment { container_id: "c".into(), ifname: "eth0".into() });
        assert!(file.ends_with("a/b/c_eth0.json"));
        let (first, second) = (Undo::new(), Undo::new());
        write(&file, &Backup { mtu: Some(1), ..Backup::default() }, &first).unwrap();
        let old = read(&file).unwrap();
        write(&file, &Backup { mtu: Some(2), ..Backup::default() }, &second).unwrap();
        assert_ne!(read(&file).unwrap(), old);
        assert!(second.rollback().is_empty());
        assert_eq!(read(&file).unwrap(), old);
        assert!(first.rollback().is_empty());
        assert_eq!(read(&file).unwrap(), None);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 0);
    }

    #[test]
    fn del_and_gc_remove_all_after_a_killed_add() {
        let dir = tempfile::tempdir().unwrap();
        let owner = |id: &str| Attachment { container_id: id.into(), ifname: "eth0".into() };
        let leave = |id: &str| {
            let fresh = fresh(&file(dir.path(), &owner(id)), "net");
            fs::write(&fresh, "").unwrap();
            fresh
        };
        let (one, two, three) = (leave("one"), leave("two"), leave("three"));
        remove(&file(dir.path(), &owner("one")), "another").unwrap();
        assert!(one.exists());
        remove(&file(dir.path(), &owner("one")), "net").unwrap();
        assert!(!one.exists());
        gc(dir.path(), "another", &[]).unwrap();
        assert!(two.exists() && three.exists());
        gc(dir.path(), "net", &[owner("two")]).unwrap();
        assert!(two.exists() && !three.exists());
    }
}
