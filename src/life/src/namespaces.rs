//! All network namespaces that can be found, and the addresses in them.
//!
//! A namespace lives as long as something holds it: a process or a thread in it, a mount of it
//! (in any mount namespace), a file descriptor. /proc shows them all. Nobody asks whose
//! namespace it is: an address in any of them speaks for its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use cnimble_netlink::{Error, NetNs, Netlink};

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Addresses, each with the path of a namespace that has it.
    pub(super) addrs: BTreeMap<IpAddr, String>,
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
        match addresses(path) {
            Ok(addrs) => {
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

/// Subdirectories whose names are numbers.
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
    mounts(&String::from_utf8_lossy(&text), &process.join("root"))
}

/// Those that a mountinfo tells of, below this root.
pub fn mounts(text: &str, below: &Path) -> Vec<(PathBuf, PathBuf)> {
    let of = |line: &str| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let is_one = back.starts_with("nsfs ") && root.starts_with("net:[");
        let point = unescaped(point);
        is_one.then(|| (PathBuf::from(root), below.join(point.trim_start_matches('/'))))
    };
    text.lines().filter_map(of).collect()
}

/// Spaces and the like are `\040` in mountinfo.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if *byte == b'\\' => {
                out.push(value);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The addresses in a namespace that may be a pod's.
fn addresses(path: &Path) -> Result<Vec<IpAddr>, Error> {
    let ns = NetNs::open(path)?;
    let addrs = Netlink::open_in(&ns)?.all_addrs()?;
    Ok(addrs.into_iter().map(|addr| addr.net.ip()).filter(|ip| is_somebodys(*ip)).collect())
}

/// Loopback and link-local addresses are everybody's.
pub(super) fn is_somebodys(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80),
    };
    !(ip.is_loopback() || ip.is_unspecified() || link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_mountinfo() {
        assert_eq!(unescaped(r"/run/netns/a\040b\134c"), r"/run/netns/a b\c");
        assert_eq!(unescaped(r"/run/\04"), r"/run/\04");
    }
}
