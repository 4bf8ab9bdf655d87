//! `podman network reload` calls `teardown` and then `setup` with the addresses and the MAC from before, as if the user
//! had asked for them. `teardown` leaves a note of these, by which `setup` knows a reload. A note counts for one
//! namespace, so one of a stopped container says nothing about its next start.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use cnimble_netlink::NetNs;
use cnimble_netlink::link::Mac;
use cnimble_runtime::Key;

/// The directory of the notes. It is gone after a reboot, as the namespaces are.
const DIR: &str = "/run/cnimble/netavark";

/// The addresses and the MAC of a container on a network before its `teardown`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) netns: String,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) mac: String,
}

impl Note {
    /// Returns whether the container had all of these.
    pub(crate) fn had(&self, ips: &[IpAddr], mac: Option<&str>) -> bool {
        let has_mac =
            mac.is_none_or(|mac| Mac::parse(mac).is_some_and(|mac| Mac::parse(&self.mac) == Some(mac)));
        has_mac && ips.iter().all(|ip| self.ips.contains(ip))
    }
}

/// Writes the note. A note that can't be written only makes a reload
/// stricter, so that is a warning.
pub(crate) fn leave_note(key: Key<'_>, note: &Note) {
    let path = path(key);
    let text = serde_json::to_vec(note).unwrap_or_default();
    let written = std::fs::create_dir_all(DIR).and_then(|()| std::fs::write(&path, text));
    if let Err(err) = written {
        log::warn!(
            "writing {}: {err}; a reload may ask for an address that the network can't give",
            path.display()
        );
    }
}

/// Returns the note of an attachment in this namespace, or `None` if there is none. It stays until the attachment
/// exists again: podman repeats a reload that has failed, with the same addresses.
pub(crate) fn find_note(key: Key<'_>, netns: &str) -> Option<Note> {
    read(&path(key)).filter(|note| note.netns == netns)
}

/// Removes the note of an attachment that exists again.
pub(crate) fn remove_note(key: Key<'_>) {
    let _ = std::fs::remove_file(path(key));
}

fn read(path: &Path) -> Option<Note> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn path(key: Key<'_>) -> PathBuf {
    Path::new(DIR).join(format!("{}-{}-{}", key.network, key.container_id, key.ifname))
}

/// Removes the notes of namespaces that are gone, and those that can't be read. podman tells a driver nothing of the
/// end of a container, so this is the only removal.
pub(crate) fn remove_stale() {
    for entry in std::fs::read_dir(DIR).into_iter().flatten().flatten() {
        let note = read(&entry.path());
        if note.is_none_or(|note| matches!(NetNs::find(Path::new(&note.netns)), Ok(None))) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_asks_for_what_there_was() {
        let ip: IpAddr = "10.1.2.3".parse().unwrap();
        let note = Note { netns: String::new(), ips: vec![ip], mac: "0a:58:0a:01:02:03".to_owned() };
        assert!(note.had(&[ip], Some("0A:58:0A:01:02:03")) && note.had(&[], None));
        assert!(!note.had(&["10.1.2.4".parse().unwrap()], None));
        assert!(!note.had(&[ip], Some("0a:58:0a:01:02:04")));
    }
}
