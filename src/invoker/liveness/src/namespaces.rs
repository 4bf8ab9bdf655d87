//! All network namespaces that can be found, the addresses in them, and the links that name an owner. A namespace lives
//! while a process or a thread is in it, or a mount or a file descriptor holds it. /proc shows them all. An address in
//! any namespace is evidence for its lease.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use cnimble_netlink::link::Link;
use cnimble_netlink::{Error, NetNs, Netlink, netns};
use cnimble_rules::survey;

#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Each with the path of a namespace that has it.
    pub(super) addrs: BTreeMap<IpAddr, Arc<str>>,
    /// Interfaces of pods that have no end on the host.
    pub(super) owned: Vec<Link>,
    /// Namespaces that could not be looked into, with the reason.
    pub(super) blind: Vec<String>,
}

/// How often changing mounts of a process are read.
const LOOKS: usize = 8;

#[derive(Default)]
struct Walk {
    /// The addresses that matter. A pod can give itself millions of others.
    wanted: HashSet<IpAddr>,
    seen: Seen,
    done: BTreeSet<PathBuf>,
    failed: BTreeMap<PathBuf, String>,
}

/// Looks into all namespaces but this one for the addresses `wanted`.
pub(super) fn look(paths: impl IntoIterator<Item = PathBuf>, wanted: HashSet<IpAddr>) -> Seen {
    let mut walk = Walk { wanted, ..Walk::default() };
    if let Ok(own) = fs::read_link("/proc/thread-self/ns/net") {
        walk.done.insert(own);
    }
    for path in paths {
        // A mount's target can't be read like a link.
        walk.visit(path.clone(), &path, || !matches!(NetNs::find(&path), Ok(None)));
    }
    let mut mounts: BTreeSet<PathBuf> = BTreeSet::new();
    for process in numbered(Path::new("/proc")) {
        for thread in numbered(&process.join("task")) {
            walk.link(&thread.join("ns/net"));
        }
        for descriptor in entries(&process.join("fd")) {
            walk.link(&descriptor);
        }
        // One look at each mount namespace.
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|id| mounts.insert(id)) {
            walk.mounts(&process);
        }
    }
    walk.seen.blind = walk.failed.into_values().collect();
    walk.seen
}

impl Walk {
    /// An unreadable namespace counts only if the path still leads there afterwards (`is_there`).
    fn visit(&mut self, id: PathBuf, path: &Path, is_there: impl FnOnce() -> bool) {
        if self.done.contains(&id) {
            return;
        }
        match self.enter(path) {
            Ok(opened) => {
                self.failed.remove(&id);
                self.done.extend([id, opened]);
            }
            // Its process or its mount has just gone; another one may lead there.
            Err(err) if matches!(err.errno, Errno::ENOENT | Errno::ESRCH) => {}
            Err(_) if !is_there() => {}
            Err(err) => {
                self.failed.insert(id, err.to_string());
            }
        }
    }

    /// Looks into the namespace at `path`, unless it is done. Returns the text of its links in /proc.
    fn enter(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let ns = NetNs::open(path)?;
        let (_, inode) = ns.identity()?;
        let id = PathBuf::from(format!("net:[{inode}]"));
        if self.done.contains(&id) {
            return Ok(id);
        }
        let (addrs, owned) = inside(&ns, &self.wanted)?;
        self.seen.owned.extend(owned);
        let path: Arc<str> = path.display().to_string().into();
        for addr in addrs {
            self.seen.addrs.entry(addr).or_insert_with(|| Arc::clone(&path));
        }
        Ok(id)
    }

    /// Visits what a link of /proc leads to, if that is a network namespace.
    fn link(&mut self, path: &Path) {
        if let Ok(id) = fs::read_link(path)
            && id.to_string_lossy().starts_with("net:[")
        {
            self.visit(id.clone(), path, || fs::read_link(path).is_ok_and(|now| now == id));
        }
    }

    /// A namespace that is gone from its path may be at another: then the list is read again.
    fn mounts(&mut self, process: &Path) {
        for look in 1..=LOOKS {
            let mut todo = mounted(process);
            for (id, path) in &todo {
                // It may move on and back meanwhile: only what was missed in every look counts, wherever it is.
                let is_it = |(there, _): &(PathBuf, PathBuf)| there == id;
                self.visit(id.clone(), path, || look == LOOKS && mounted(process).iter().any(is_it));
            }
            todo.retain(|(id, _)| !self.done.contains(id));
            if todo.is_empty() {
                break;
            }
        }
    }
}

fn numbered(dir: &Path) -> Vec<PathBuf> {
    let mut found = entries(dir);
    found.retain(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    });
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The mounts in mountinfo (proc(5)).
fn mounted(process: &Path) -> Vec<(PathBuf, PathBuf)> {
    let text = fs::read(process.join("mountinfo")).unwrap_or_default();
    netns::mounts(&String::from_utf8_lossy(&text), &process.join("root"))
}

/// Returns the addresses that are wanted and may be a pod's, and links with an alias that names an owner. It reads the
/// lists to their ends: a long list must not hide an address that is in use.
fn inside(ns: &NetNs, wanted: &HashSet<IpAddr>) -> Result<(Vec<IpAddr>, Vec<Link>), Error> {
    let mut inside = Netlink::open_in(ns)?;
    let addrs = inside.addrs_where(|ip| is_somebodys(ip) && wanted.contains(&ip))?;
    // A pair's end, bandwidth's device and a shim belong to another node here, and its networks may have the names of
    // ours.
    let owned = inside
        .find_links(|link| !cnimble_rules::objects::is_on_host(link) && survey::tag(&link.alias).is_some())?;
    Ok((addrs.into_iter().map(|addr| addr.net.ip()).collect(), owned))
}

/// False for loopback and link-local addresses.
pub(super) fn is_somebodys(ip: IpAddr) -> bool {
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !(ip.is_loopback() || ip.is_unspecified() || link_local)
}

/// `None` for our own.
pub(super) fn namespace(path: &str) -> Result<Option<NetNs>, Error> {
    NetNs::current()?.find_another(Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below a mount that has just gone there is a file, which is no namespace.
    #[test]
    fn a_namespace_that_goes_during_the_look_does_not_blind_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (is_there, blind) in [(false, 0), (true, 1)] {
            let mut walk = Walk::default();
            walk.visit("net:[1]".into(), file.path(), || is_there);
            assert_eq!(walk.failed.len(), blind, "{:?}", walk.failed);
            assert!(walk.done.is_empty());
        }
    }
}
