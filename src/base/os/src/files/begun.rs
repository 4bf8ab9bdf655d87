//! Notes of DELs that have begun: one empty file for each attachment, by the tag of its owner.
//!
//! A runtime deletes a pod plugin by plugin and removes its own record last. Between two plugins the pod looks like one
//! that has lost something, and a repair would leave rules behind. A plugin notes the DEL before it removes anything.
//! The plugin that made the interface removes the note when the interface is gone; so do a new ADD, and GC for
//! attachments that aren't valid.
//!
//! Notes stay behind if the first plugin of the chain is none of ours. So a large directory is renamed. Once its
//! successor is large, too, each DEL removes a few notes of the former directory. When that is empty, the next rename
//! replaces it. No DEL lists all notes: behind such a plugin there may be twenty thousand.
//!
//! A note counts for 24 hours. In the former directory it counts for one hour, because a new ADD does not remove it
//! there.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::IfPresent as _;

/// The directory of the notes. A reboot empties it, and no namespace outlives a reboot.
pub const DIR: &str = "/run/cnimble/begun-dels";

/// The former directory, once it was large.
const OLD_DIR: &str = "/run/cnimble/begun-dels.old";

/// The size of a large directory, in bytes. It has a thousand notes, as tmpfs counts 20 bytes for each.
const LARGE: u64 = 20_000;

/// The number of former notes that each DEL removes, but only while the new directory is larger than [`LARGE`]. So the
/// former directory is empty, and the next rename possible, after some hundred such DELs at most.
const SHARE: usize = 16;

/// The time for which a note counts, unless its directory is renamed before ([`MAX_OLD_AGE`], one hour). No runtime
/// waits longer before it repeats a DEL.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// The time for which a note of the former directory counts. A new ADD doesn't remove it.
const MAX_OLD_AGE: Duration = Duration::from_secs(3600);

/// Attempts to write a note. Each time, the end of another DEL may remove the directory.
const ATTEMPTS: usize = 100;

/// Notes that the DEL of the owner with this tag begins. A repeated DEL gets a new time.
///
/// # Errors
/// Fails if the file system refuses a request, and for a text that is no tag.
pub fn note_begin(tag: &str) -> io::Result<()> {
    let path = path(tag)?;
    // An earlier DEL's note gets the time of this DEL, because it is truncated.
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    // The end of another DEL removes an empty directory.
    for _ in 0..ATTEMPTS {
        match options.open(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => make_directory()?,
            created => {
                created?;
                return bound();
            }
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

/// Keeps the number of notes bounded, with a few system calls for any number.
fn bound() -> io::Result<()> {
    if !fs::metadata(DIR).is_ok_and(|dir| dir.len() > LARGE) {
        return Ok(());
    }
    if let Some(old) = fs::read_dir(OLD_DIR).unless_absent()? {
        old.take(SHARE).flatten().for_each(|note| drop(fs::remove_file(note.path())));
    }
    match fs::rename(DIR, OLD_DIR) {
        // The former directory still has notes, or a concurrent DEL was faster.
        Err(err) if err.kind() == io::ErrorKind::DirectoryNotEmpty || super::is_absent(&err) => Ok(()),
        renamed => renamed,
    }
}

/// Makes the directory. Others may pass through the directory above it, which is shared.
fn make_directory() -> io::Result<()> {
    let mut made = DirBuilder::new().mode(0o700).create(DIR);
    if let Err(err) = &made
        && err.kind() == io::ErrorKind::NotFound
    {
        if let Some(above) = Path::new(DIR).parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(above)?;
        }
        made = DirBuilder::new().mode(0o700).create(DIR);
    }
    match made {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Removes the note of this owner, if there is one.
///
/// # Errors
/// Fails if the file system refuses a request, and for a text that is no tag.
pub fn clear(tag: &str) -> io::Result<()> {
    remove(&path(tag)?)
}

/// Removes the notes of the owners that are `gone`, by their tags.
///
/// # Errors
/// Fails if the file system refuses a request.
pub fn clear_those(gone: impl Fn(&str) -> bool) -> io::Result<()> {
    for path in all()? {
        if path.file_name().and_then(|name| name.to_str()).is_some_and(&gone) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Returns whether the DEL of this owner has begun and has not ended. True if that is unknown. A note of more than 24
/// hours does not count, and in the former directory none of more than one hour.
pub fn is_noted(tag: &str) -> bool {
    let Ok(path) = path(tag) else { return true };
    counts(&path, MAX_AGE) || counts(&Path::new(OLD_DIR).join(tag), MAX_OLD_AGE)
}

/// Returns whether there is a note that is younger than `max_age`. True if it can't be read.
fn counts(path: &Path, max_age: Duration) -> bool {
    match fs::symlink_metadata(path) {
        // A time in the future has no age.
        Ok(note) => note.modified().ok().and_then(|time| time.elapsed().ok()).is_none_or(|age| age < max_age),
        Err(err) => !super::is_absent(&err),
    }
}

/// Returns how long ago the last DEL of this owner began. `None` without a note; one in the former directory does not
/// count.
pub fn age(tag: &str) -> Option<Duration> {
    let changed = path(tag).and_then(fs::symlink_metadata).and_then(|meta| meta.modified());
    changed.ok().map(|changed| changed.elapsed().unwrap_or_default())
}

/// Returns the paths of all notes.
fn all() -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for dir in [DIR, OLD_DIR].map(Path::new) {
        all.extend(super::names(dir)?.into_iter().map(|name| dir.join(name)));
    }
    Ok(all)
}

/// Returns the path of a note. A tag is hexadecimal digits and a hyphen; any other text is an error and becomes no
/// path.
fn path(tag: &str) -> io::Result<PathBuf> {
    if tag.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') && !tag.is_empty() {
        Ok(PathBuf::from(DIR).join(tag))
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidInput))
    }
}

/// Removes a note, and the directory with its last one. A missing note is no error.
fn remove(path: &Path) -> io::Result<()> {
    if fs::remove_file(path).unless_absent()?.is_some() {
        // Other notes keep the directory.
        let _ = path.parent().map(fs::remove_dir);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(path: &Path, by: Duration) {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() - by).unwrap();
    }

    #[test]
    fn a_note_counts_for_a_day_and_again_from_the_next_del_on() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("1-2");
        assert!(!counts(&note, MAX_AGE));
        File::create(&note).unwrap();
        assert!(counts(&note, MAX_AGE));
        age(&note, MAX_AGE + Duration::from_secs(1));
        assert!(!counts(&note, MAX_AGE));
        File::options().write(true).create(true).truncate(true).open(&note).unwrap();
        assert!(counts(&note, MAX_AGE));
    }
}
