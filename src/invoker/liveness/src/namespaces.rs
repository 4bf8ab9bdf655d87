//! Searches all network namespaces for addresses, and for links that name an owner. A namespace lives while a process
//! or a thread is in it, or a mount or a file descriptor holds it. /proc shows all of these. An address in any
//! namespace is evidence for its lease.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use cnimble_netlink::link::Link;
use cnimble_netlink::{Error, NetNs, Netlink, netns};
use cnimble_rules::survey;

/// The evidence in the namespaces.
#[derive(Debug, Default)]
pub(super) struct NamespaceEvidence {
    /// The addresses that were searched for and found, each with the path of one namespace that has it.
    pub(super) addrs: BTreeMap<IpAddr, Arc<str>>,
    /// Interfaces in namespaces whose alias names an owner, and that have no end on the host.
    pub(super) owned: Vec<Link>,
    /// The reasons why existing namespaces could not be read. While there is one, a missing address proves nothing.
    pub(super) blind: Vec<String>,
}

/// How often the mounts of a process are read at most, while they change.
const LOOKS: usize = 8;

/// A search in progress.
#[derive(Default)]
struct NamespaceSearch {
    /// The addresses to search for. A pod can give itself millions of others, which are not kept.
    wanted: HashSet<IpAddr>,
    seen: NamespaceEvidence,
    /// The namespaces that were read, as `net:[INODE]`, the text of their links in /proc.
    done: BTreeSet<PathBuf>,
    /// The namespaces that could not be read, with the reasons.
    failed: BTreeMap<PathBuf, String>,
}

/// Reads all namespaces but the calling thread's: those at `paths`, and all that /proc shows. Returns the `wanted`
/// addresses, the links with owners, and what could not be read.
pub(super) fn search(paths: impl IntoIterator<Item = PathBuf>, wanted: HashSet<IpAddr>) -> NamespaceEvidence {
    let mut walk = NamespaceSearch { wanted, ..NamespaceSearch::default() };
    if let Ok(own) = fs::read_link("/proc/thread-self/ns/net") {
        walk.done.insert(own);
    }
    for path in paths {
        // The path is a mount, whose target readlink(2) can't return. So the path itself is the key.
        walk.visit(path.clone(), &path, || !matches!(NetNs::find(&path), Ok(None)));
    }
    let mut mounts: BTreeSet<PathBuf> = BTreeSet::new();
    for process in walk.numbered(Path::new("/proc")) {
        for thread in walk.numbered(&process.join("task")) {
            walk.link(&thread.join("ns/net"));
        }
        for descriptor in walk.entries(&process.join("fd")) {
            walk.link(&descriptor);
        }
        // Processes in one mount namespace have the same mounts, so one of them is read.
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|id| mounts.insert(id)) {
            walk.mounts(&process);
        }
    }
    walk.seen.blind = walk.failed.into_values().collect();
    walk.seen
}

impl NamespaceSearch {
    /// Reads the namespace at `path`, whose key is `id`, once. A failure counts only if `is_there` says afterwards that
    /// the path still leads to it.
    fn visit(&mut self, id: PathBuf, path: &Path, is_there: impl FnOnce() -> bool) {
        if self.done.contains(&id) {
            return;
        }
        match self.enter(path) {
            Ok(opened) => {
                // A key of this form is that of a namespace. The path may lead to another one by now: a thread has
                // changed its namespace, or a mount its place. Then the one of the key was not read.
                let is_moved = id.to_string_lossy().starts_with("net:[") && id != opened;
                if !is_moved {
                    self.failed.remove(&id);
                    self.done.insert(id);
                }
                self.done.insert(opened);
            }
            // The process or the mount has just gone. The namespace may have another path, which is visited, too.
            Err(err) if matches!(err.errno, Errno::ENOENT | Errno::ESRCH) => {}
            Err(_) if !is_there() => {}
            Err(err) => {
                self.failed.insert(id, err.to_string());
            }
        }
    }

    /// Reads the namespace at `path`, unless it has been read. Returns its key, `net:[INODE]`.
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

    /// Returns the paths in a directory whose names are numbers: processes and threads in /proc.
    fn numbered(&mut self, dir: &Path) -> Vec<PathBuf> {
        let mut found = self.entries(dir);
        found.retain(|path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
        });
        found
    }

    /// Returns the paths in a directory. That of a process that has ended is empty.
    fn entries(&mut self, dir: &Path) -> Vec<PathBuf> {
        let listed = fs::read_dir(dir)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
        listed.unwrap_or_else(|err| self.without(dir, &err))
    }

    /// Returns the keys and paths of the network namespaces that are mounted for a process.
    fn mounted(&mut self, process: &Path) -> Vec<(PathBuf, PathBuf)> {
        mounted(process).unwrap_or_else(|err| self.without(&process.join("mountinfo"), &err))
    }

    /// Returns an empty list in place of what could not be read. Remembers a failure that says nothing of the process:
    /// a namespace that only this file shows would be taken for gone.
    fn without<T>(&mut self, path: &Path, err: &io::Error) -> Vec<T> {
        if is_blinding(err) {
            self.failed.insert(path.to_owned(), format!("{}: {err}", path.display()));
        }
        Vec::new()
    }

    /// Visits what a link of /proc leads to, if that is a network namespace.
    fn link(&mut self, path: &Path) {
        match fs::read_link(path) {
            Ok(id) if id.to_string_lossy().starts_with("net:[") => {
                self.visit(id.clone(), path, || fs::read_link(path).is_ok_and(|now| now == id));
            }
            Ok(_) => {}
            Err(err) => drop(self.without::<PathBuf>(path, &err)),
        }
    }

    /// Visits the namespaces that are mounted for a process. One that is gone from its path may have moved to another,
    /// so the list is read again.
    fn mounts(&mut self, process: &Path) {
        for look in 1..=LOOKS {
            let mut todo = self.mounted(process);
            for (id, path) in &todo {
                // A mount may move while it is visited. A failure counts only after the last look, if the mount exists
                // anywhere.
                self.visit(id.clone(), path, || {
                    look == LOOKS && mounted(process).unwrap_or_default().iter().any(|(there, _)| there == id)
                });
            }
            todo.retain(|(id, _)| !self.done.contains(id));
            if todo.is_empty() {
                break;
            }
        }
    }
}

/// Returns the keys and paths of the network namespaces in a process's mountinfo (proc(5)). The paths lead through the
/// process's root.
fn mounted(process: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let text = fs::read(process.join("mountinfo"))?;
    Ok(netns::mounts(&String::from_utf8_lossy(&text), &process.join("root")))
}

/// Returns whether an error is one of this process or of the machine, and not of a process that has ended. What could
/// not be read for such a reason may well exist: the machine lacks descriptors or memory, or this process may not look
/// at others (CAP_SYS_PTRACE, ptrace(2)).
fn is_blinding(err: &io::Error) -> bool {
    matches!(
        err.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO | libc::EACCES | libc::EPERM)
    )
}

/// Returns the `wanted` addresses that may be a pod's, and the links whose alias names an owner. It reads the lists to
/// their ends: a long list must not hide an address that is in use.
fn inside(ns: &NetNs, wanted: &HashSet<IpAddr>) -> Result<(Vec<IpAddr>, Vec<Link>), Error> {
    let mut inside = Netlink::open_in(ns)?;
    let addrs = inside.addrs_where(|ip| can_identify_a_pod(ip) && wanted.contains(&ip))?;
    // The host's end of a pair, the ifb of bandwidth and similar devices of a host belong to a node that runs in a
    // container here. Its networks may have the same names as those here.
    let owned = inside
        .find_links(|link| !cnimble_rules::objects::is_on_host(link) && survey::tag(&link.alias).is_some())?;
    Ok((addrs.into_iter().map(|addr| addr.net.ip()).collect(), owned))
}

/// Returns whether an address can be evidence for a pod. Loopback, unspecified and IPv6 link-local addresses are in
/// every namespace.
pub(super) fn can_identify_a_pod(ip: IpAddr) -> bool {
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !(ip.is_loopback() || ip.is_unspecified() || link_local)
}

/// Opens the namespace at `path`. Returns `None` if it does not exist, or is the calling thread's own.
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
            let mut walk = NamespaceSearch::default();
            walk.visit("net:[1]".into(), file.path(), || is_there);
            assert_eq!(walk.failed.len(), blind, "{:?}", walk.failed);
            assert!(walk.done.is_empty());
        }
    }

    /// A thread of a runtime is in a pod's namespace for a moment. Its link can lead elsewhere when it is opened.
    #[test]
    fn a_namespace_that_a_path_has_left_is_not_taken_for_read() {
        let mut walk = NamespaceSearch::default();
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        walk.visit("net:[1]".into(), Path::new("/proc/thread-self/ns/net"), || true);
        assert_eq!(walk.done, BTreeSet::from([own]));
    }

    /// Without descriptors or memory for a look, nothing of a process is known.
    #[test]
    fn a_look_without_descriptors_or_the_right_to_look_is_blind() {
        let dir = Path::new("/proc/1/fd");
        for (errno, blind) in [
            (libc::EMFILE, 1),
            (libc::ENFILE, 1),
            (libc::ENOMEM, 1),
            (libc::EACCES, 1),
            (libc::EPERM, 1),
            (libc::ENOENT, 0),
            (libc::ESRCH, 0),
        ] {
            let mut walk = NamespaceSearch::default();
            let found: Vec<PathBuf> = walk.without(dir, &io::Error::from_raw_os_error(errno));
            assert_eq!((found.len(), walk.failed.len()), (0, blind), "{errno}");
        }
    }
}
