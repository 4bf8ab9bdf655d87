//! The file `CONTAINER_INTERFACE.json` in `dataDir`: the settings that ADD changes, as they were before. It has the Go
//! plugin's format, so that the DEL of either plugin restores the other's changes.
//!
//! Only the key `network` is ours, and the Go plugin ignores it. GC needs it, because all networks share the directory.
//! It keeps files without the key.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, hash16};
use cnimble_netlink::link::{Link, Mac};
use cnimble_os::files::{self as files, IfPresent as _, Links, is_absent};
use cnimble_plugin::Undo;

use crate::settings::Settings;

/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 10;

/// The content of the file. A setting that is not configured is missing.
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
    /// Returns the present values of those settings that are `wanted`.
    pub(crate) fn from_link(now: &Link, wanted: &Settings, network: &str) -> Self {
        Backup {
            mac: wanted.mac.and(now.mac).map(|mac| mac.to_string()),
            promisc: wanted.promisc.map(|_| now.promisc),
            mtu: wanted.mtu.map(|_| now.mtu),
            allmulti: wanted.allmulti.map(|_| now.allmulti),
            txqlen: wanted.txqlen.map(|_| now.txqlen),
            network: Some(network.to_owned()),
        }
    }

    /// Parses the content of a file, also of the Go plugin. Fails with code 6.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|err| {
            Error::new(Code::DECODE, format!("the file with the settings before ADD can't be read: {err}"))
        })
    }

    /// Returns the settings that DEL restores. An invalid MAC and an MTU of 0 are left out.
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

/// Returns the name of the file of an attachment.
fn name(attachment: &Attachment) -> String {
    format!("{}_{}.json", attachment.container_id, attachment.ifname)
}

/// Returns the path of the file of an attachment in `dir`.
pub(crate) fn file(dir: &Path, attachment: &Attachment) -> PathBuf {
    dir.join(name(attachment))
}

/// Reads the file. `None` if there is none. Fails with code 5 if it cannot be read, is no regular file or is too large.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    files::read(file, LIMIT, Links::Refuse).unless_absent().map_err(|err| Error::io("read", file, &err))
}

/// Reads the file for DEL. `None` if there is none. A path that cannot be a file of ours, such as a link, gives no
/// bytes, which [`Backup::parse`] refuses. So DEL restores nothing and goes on to remove the path.
pub(crate) fn read_what_is_left(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    match files::read(file, LIMIT, Links::Refuse) {
        Err(err) if files::is_foreign(&err) => Ok(Some(Vec::new())),
        _ => read(file),
    }
}

/// Writes the file atomically, with its undo, and makes missing directories. An existing file is from an ADD without a
/// DEL, for a former interface. It is replaced, and the undo restores it. Fails with code 5.
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

/// Returns the beginning of the names of a network's temporary files. They have a fixed length, because the file's own
/// name may be as long as possible.
fn fresh_prefix(network: &str) -> String {
    format!(".{}-", hash16(network))
}

/// Returns the name of a file until it is complete. A killed process leaves such a file, which DEL or GC removes.
fn fresh_name(file_name: &str, network: &str) -> String {
    fresh_prefix(network) + &hash16(file_name)
}

/// Returns the path of [`fresh_name`] beside the file.
fn fresh(file: &Path, network: &str) -> PathBuf {
    file.with_file_name(fresh_name(&file.file_name().unwrap_or_default().to_string_lossy(), network))
}

/// Writes the file atomically. Fails with code 5.
fn replace(file: &Path, network: &str, text: &[u8]) -> Result<(), Error> {
    files::replace(file, &fresh(file, network), text).map_err(|err| Error::io("write", file, &err))
}

/// Removes the file, and the temporary file that a killed ADD has left. Missing files are no error. Fails with code 5.
pub(crate) fn remove(file: &Path, network: &str) -> Result<(), Error> {
    remove_one(&fresh(file, network)).and(remove_one(file))
}

/// Removes a file if it exists. Fails with code 5, also for a directory.
fn remove_one(file: &Path) -> Result<(), Error> {
    fs::remove_file(file).unless_absent().map(drop).map_err(|err| Error::io("remove", file, &err))
}

/// Removes the files of the network's attachments that are not `valid`, also the temporary ones. Files of other
/// networks and files without a network stay. Fails with code 5 after all were tried.
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
        match files::read(&path, LIMIT, Links::Refuse) {
            Ok(bytes) => {
                if Backup::parse(&bytes).is_ok_and(|saved| saved.network.as_deref() == Some(network)) {
                    outcome = outcome.and(remove_one(&path));
                }
            }
            // The file was removed concurrently, or is no file of ours.
            Err(err) if is_absent(&err) || files::is_foreign(&err) => {}
            Err(err) => outcome = outcome.and(Err(Error::io("read", &path, &err))),
        }
    }
    outcome
}

/// Fails with code 5 if this process may not write to the directory, or to the nearest existing one above it.
pub(crate) fn usable(dir: &Path) -> Result<(), Error> {
    // The first ADD makes missing directories, so the nearest existing one counts.
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
