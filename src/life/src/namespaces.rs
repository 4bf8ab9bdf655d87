//! All network namespaces that can be found, the addresses in them, and the links that name an owner.
//!
//! A namespace lives as long as something holds it: a process or a thread in it, a mount of it
//! (in any mount namespace), a file descriptor. /proc shows them all. The owner of a namespace
//! doesn't matter: an address in any of them speaks for its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{Error, NetNs, Netlink, netns};
use cnimble_rules::survey;

/// The outcome of a look.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Addresses, each with the path of a namespace that has it.
    pub(super) addrs: BTreeMap<IpAddr, String>,
    /// Links that name an owner in their alias: interfaces of pods that have no end on the host.
    pub(super) owned: Vec<Link>,
    /// Namespaces that could not be looked into, with the reason.
    pub(super) blind: Vec<String>,
}

/// Looks into all namespaces but this one.
pub(super) fn look(paths: impl IntoIterator<Item = PathBuf>) -> Seen {
    let mut seen = Seen::default();
    let mut done: BTreeSet<PathBuf> = BTreeSet::new();
    let mut failed: BTreeMap<PathBuf, String> = BTreeMap::new();
    if let Ok(own) = fs::read_link("/proc/thread-self/ns/net") {
        done.insert(own);
    }
    let mut visit = |id: PathBuf, path: &Path| {
        if done.contains(&id) {
            return;
        }
        match inside(path) {
            Ok((addrs, owned)) => {
                seen.owned.extend(owned);
                for addr in addrs {
                    seen.addrs.entry(addr).or_insert_with(|| path.display().to_string());
                }
                failed.remove(&id);
                done.insert(id);
            }
            // Its process has just gone; another one may lead there.
            Err(err) if matches!(err.errno, Errno::ENOENT | Errno::ESRCH) => {}
            Err(err) => {
                failed.insert(id, err.to_string());
            }
        }
    };
    for path in paths {
        // A mount's target can't be read like a link; each is its own.
        visit(path.clone(), &path);
    }
    let mut mounts: BTreeSet<PathBuf> = BTreeSet::new();
    for process in numbered(Path::new("/proc")) {
        for thread in numbered(&process.join("task")) {
            link(&thread.join("ns/net"), &mut visit);
        }
        for descriptor in entries(&process.join("fd")) {
            link(&descriptor, &mut visit);
        }
        // One look at each mount namespace.
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|id| mounts.insert(id)) {
            for (id, path) in mounted(&process) {
                visit(id, &path);
            }
        }
    }
    seen.blind = failed.into_values().collect();
    seen
}

/// Visits what a link of /proc leads to, if that is a network namespace.
fn link(path: &Path, visit: &mut impl FnMut(PathBuf, &Path)) {
    if let Ok(id) = fs::read_link(path)
        && id.to_string_lossy().starts_with("net:[")
    {
        visit(id, path);
    }
}

/// Subdirectories with a number for a name.
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

/// Network namespaces that are mounted where the process sees them (proc(5), mountinfo).
fn mounted(process: &Path) -> Vec<(PathBuf, PathBuf)> {
    let text = fs::read(process.join("mountinfo")).unwrap_or_default();
    netns::mounts(&String::from_utf8_lossy(&text), &process.join("root"))
}

/// The addresses in a namespace that may be a pod's, and the links with an alias that names an owner.
fn inside(path: &Path) -> Result<(Vec<IpAddr>, Vec<Link>), Error> {
    let ns = NetNs::open(path)?;
    let mut inside = Netlink::open_in(&ns)?;
    let addrs = inside.all_addrs()?.into_iter().map(|addr| addr.net.ip()).filter(|ip| is_somebodys(*ip));
    let addrs = addrs.collect();
    let mut owned = inside.links(&Filter::default())?;
    // A pair's end and bandwidth's device name their owner where they are on a host: elsewhere they are
    // another node's, and its networks may have the names of ours.
    owned.retain(|link| {
        !cnimble_made::ON_HOST.contains(&link.kind.as_str()) && survey::tag(&link.alias).is_some()
    });
    Ok((addrs, owned))
}

/// Loopback and link-local addresses are everybody's.
pub(super) fn is_somebodys(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80),
    };
    !(ip.is_loopback() || ip.is_unspecified() || link_local)
}

/// The namespace at this path, if there is one that isn't our own.
///
/// # Errors
/// It can't be told.
pub(super) fn namespace(path: &str) -> Result<Option<NetNs>, Error> {
    NetNs::current()?.find_another(Path::new(path))
}
