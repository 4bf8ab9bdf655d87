//! Values as they were before ADD changed them, on disk, so that DEL can restore them.
//!
//! The undo of ADD restores a value when ADD fails. DEL is another process, perhaps after a crash, and knows only what is
//! on disk. So a plugin saves a value before it changes it, and DEL writes back what it finds:
//!
//! ```no_run
//! # use cnimble_plugin::{Call, cni::Error, netlink::sysctl, saved::Saved};
//! # const KEY: &str = "net/ipv4/conf/all/arp_ignore";
//! fn add(call: &Call) -> Result<(), Error> {
//!     let netns = call.open_netns()?;
//!     let saved = Saved::of_call(call, "anycast");
//!     saved.save(call, KEY, &netns.enter(|| sysctl::read(KEY))??)?;
//!     Ok(netns.enter(|| sysctl::write(KEY, "1"))??)
//! }
//!
//! fn del(call: &Call) -> Result<(), Error> {
//!     let saved = Saved::of_call(call, "anycast");
//!     if let Some(netns) = call.find_netns()? {
//!         for (key, value) in saved.read()? {
//!             netns.enter(|| sysctl::write(&key, &value))??;
//!         }
//!     }
//!     saved.remove()
//! }
//! ```

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_os::files::{self, IfPresent as _, Links};

use crate::Call;

/// The directory of all plugins' files. A reboot empties it, and no network namespace outlives a reboot.
const DIR: &str = "/run/cni";

/// The maximum size of a file in bytes.
const LIMIT: usize = 64 << 10;

/// The saved values of one attachment, in the file `/run/cni/PLUGIN/TAG.json`. The tag is [`Owner::tag`].
#[derive(Debug)]
pub struct Saved {
    file: PathBuf,
}

impl Saved {
    /// Returns the values of the attachment of `call`. `plugin` is the name of the plugin, which is its directory.
    pub fn of_call(call: &Call, plugin: &str) -> Self {
        Saved { file: directory(plugin).join(file_name(&call.owner())) }
    }

    /// Saves a value before it is changed. A value that is saved already is older, so it stays. The undo of `call`
    /// restores the file.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be read or written, or has other content.
    pub fn save(&self, call: &Call, key: &str, value: &str) -> Result<(), Error> {
        let before = self.read()?;
        if before.contains_key(key) {
            return Ok(());
        }
        let mut values = before.clone();
        values.insert(key.to_owned(), value.to_owned());
        self.write(&values)?;
        let saved = Saved { file: self.file.clone() };
        call.undo.push(format!("restore {}", self.file.display()), move || {
            if before.is_empty() { saved.remove() } else { saved.write(&before) }
        });
        Ok(())
    }

    /// Returns the saved values by their keys. There are none without a file.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be read, or has other content.
    pub fn read(&self) -> Result<BTreeMap<String, String>, Error> {
        let bytes = files::read(&self.file, LIMIT, Links::Refuse)
            .unless_absent()
            .map_err(|err| Error::io("read", &self.file, &err))?;
        let Some(bytes) = bytes else { return Ok(BTreeMap::new()) };
        serde_json::from_slice(&bytes).map_err(|err| {
            let what = format!("{}: not the values that ADD has saved: {err}", self.file.display());
            Error::new(Code::IO, what)
        })
    }

    /// Removes the values, after DEL has restored them. A missing file is no error.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be removed.
    pub fn remove(&self) -> Result<(), Error> {
        remove_file(&fresh(&self.file))?;
        remove_file(&self.file)
    }

    fn write(&self, values: &BTreeMap<String, String>) -> Result<(), Error> {
        if let Some(dir) = self.file.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.map_err(|err| Error::io("make directory", dir, &err))?;
        }
        let text = serde_json::to_vec(values).map_err(|err| Error::new(Code::INTERNAL, err.to_string()))?;
        files::replace(&self.file, &fresh(&self.file), &text)
            .map_err(|err| Error::io("write", &self.file, &err))
    }
}

/// Removes the values of all attachments of the network `network` that are not in `valid`, for GC. Their namespaces are
/// gone, so nothing is restored.
///
/// # Errors
/// Fails with code 5 if the directory can't be read or a file can't be removed.
pub fn remove_others(plugin: &str, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let dir = directory(plugin);
    let kept: Vec<String> = valid
        .iter()
        .map(|attachment| file_name(&Owner { network: network.to_owned(), attachment: attachment.clone() }))
        .collect();
    let network = format!("{}-", cnimble_cni::hash16(network));
    for name in files::names(&dir).map_err(|err| Error::io("list", &dir, &err))? {
        let name = name.to_string_lossy();
        // A killed ADD leaves a file that begins with a dot.
        let own = name.strip_prefix('.').unwrap_or(&name);
        if own.starts_with(&network) && !kept.iter().any(|kept| kept == own) {
            remove_file(&dir.join(name.as_ref()))?;
        }
    }
    Ok(())
}

/// Returns the directory of a plugin's files.
fn directory(plugin: &str) -> PathBuf {
    Path::new(DIR).join(plugin)
}

fn file_name(owner: &Owner) -> String {
    format!("{}.json", owner.tag())
}

/// Returns the name that the file has until it is complete.
fn fresh(file: &Path) -> PathBuf {
    file.with_file_name(format!(".{}", file.file_name().unwrap_or_default().to_string_lossy()))
}

fn remove_file(file: &Path) -> Result<(), Error> {
    fs::remove_file(file).unless_absent().map(drop).map_err(|err| Error::io("remove", file, &err))
}
