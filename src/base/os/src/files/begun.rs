//! Notes of DELs that have begun: one empty file for each attachment, by the tag of its owner.
//!
//! A runtime deletes a pod plugin by plugin and removes its own record last. Between two plugins the pod looks like one
//! that has lost something, and a repair would leave rules behind. A plugin notes the DEL before it removes anything.
//! The plugin that made the interface removes the note when the interface is gone; so do a new ADD, and GC for
//! attachments that aren't valid. Notes stay behind if the first plugin of the chain is none of ours, so old notes go
//! when there are many.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::IfPresent as _;

/// The directory. It is empty after a reboot, which no namespace outlives.
pub const DIR: &str = "/run/cnimble/begun-dels";

/// tmpfs counts 20 for each note, so such a directory has hundreds.
const LARGE: u64 = 20_000;

/// Such notes go when there are many.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// A note is written beside ends of other DELs, which remove the directory.
const ATTEMPTS: usize = 100;

/// Notes that the DEL of the owner with this tag begins.
///
/// # Errors
/// Fails if the file system refuses a request.
pub fn note(tag: &str) -> io::Result<()> {
    let path = path(tag)?;
    // The end of another DEL removes an empty directory.
    for _ in 0..ATTEMPTS {
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => make_directory()?,
            created => {
                created?;
                return remove_old();
            }
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

/// Removes old notes if there are many.
fn remove_old() -> io::Result<()> {
    if fs::metadata(DIR).is_ok_and(|dir| dir.len() > LARGE) {
        let is_old = |path: &PathBuf| {
            let changed = fs::metadata(path).and_then(|meta| meta.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > OLD))
        };
        all()?.into_iter().filter(is_old).for_each(|path| drop(fs::remove_file(path)));
    }
    Ok(())
}

/// The directory above is shared, and others have to get through.
fn make_directory() -> io::Result<()> {
    let create = || match DirBuilder::new().mode(0o700).create(DIR) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    };
    match create() {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            if let Some(above) = Path::new(DIR).parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(above)?;
            }
            create()
        }
        outcome => outcome,
    }
}

/// Removes the note of this owner, if there is one.
///
/// # Errors
/// Fails if the file system refuses a request.
pub fn clear(tag: &str) -> io::Result<()> {
    remove(&path(tag)?)
}

/// Removes the notes of the owners that are `gone`, by their tags.
///
/// # Errors
/// Fails if the file system refuses a request.
pub fn clear_those(gone: impl Fn(&str) -> bool) -> io::Result<()> {
    let is_gone = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&gone);
    all()?.into_iter().filter(is_gone).try_for_each(|path| remove(&path))
}

/// Returns true if the DEL of this owner has begun and isn't done, or if that can't be told.
pub fn is_noted(tag: &str) -> bool {
    let looked = path(tag).and_then(fs::symlink_metadata);
    !matches!(looked, Err(err) if super::is_absent(&err))
}

/// How long ago the DEL of this owner began, if it is noted. A DEL that was noted a second time keeps its time.
pub fn age(tag: &str) -> Option<Duration> {
    let changed = path(tag).and_then(fs::symlink_metadata).and_then(|meta| meta.modified());
    changed.ok().map(|changed| changed.elapsed().unwrap_or_default())
}

fn all() -> io::Result<Vec<PathBuf>> {
    Ok(super::names(Path::new(DIR))?.into_iter().map(|name| Path::new(DIR).join(name)).collect())
}

/// A tag is hexadecimal digits and a hyphen; no other text becomes a path.
fn path(tag: &str) -> io::Result<PathBuf> {
    match tag.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') && !tag.is_empty() {
        true => Ok(PathBuf::from(DIR).join(tag)),
        false => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

/// The directory goes with the last note. A missing note is no error.
fn remove(path: &Path) -> io::Result<()> {
    if fs::remove_file(path).unless_absent()?.is_some() {
        // Other notes keep the directory.
        let _ = fs::remove_dir(DIR);
    }
    Ok(())
}
