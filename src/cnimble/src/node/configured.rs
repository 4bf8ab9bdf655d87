//! The networks of the configuration directory that use cluster-local. Unchanged files are not read again.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cnimble_cni::PluginConfig;
use cnimble_cni::list::{Injection, NetworkList};
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;
use cnimble_os::files::IfPresent;
use cnimble_runtime::ConfDir;

use super::super::etcd::plugin_of;

/// The time within which two changes of a file can have the same timestamp.
const TICK: Duration = Duration::from_secs(1);

/// A network that uses cluster-local.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) name: String,
    /// The configuration that the plugin and the program read.
    pub(super) config: String,
    /// The directory of the network's leases and of the node's record of its blocks.
    pub(super) store: PathBuf,
    /// The time for which a confirmation of the node's blocks by etcd is valid.
    pub(super) offline: Duration,
}

impl Network {
    /// Returns whether the node may give addresses without the store now. It returns false if that is unknown.
    pub(super) fn is_valid(&self) -> bool {
        let share = Share::read(&self.store).ok().flatten();
        share.is_some_and(|share| share.is_valid().unwrap_or(false))
    }
}

/// The networks at the last reading of their files.
pub(super) struct Configured {
    conf: ConfDir,
    networks: Vec<Network>,
    /// The files at that reading. `None` forces the next one.
    print: Option<Print>,
}

/// The path, device, inode, size and times of each file.
type Print = BTreeSet<(PathBuf, [u64; 3], [i64; 4])>;

impl Configured {
    /// Creates the list without reading the directory.
    pub(super) fn new(conf: ConfDir) -> Self {
        Configured { conf, networks: Vec::new(), print: None }
    }

    /// Returns the networks, and reads their files again if one has changed. If the directory can't be listed there are
    /// none.
    pub(super) fn networks(&mut self) -> &[Network] {
        self.look();
        &self.networks
    }

    /// Reads the files if one of them has changed, and returns whether they were read.
    fn look(&mut self) -> bool {
        let begun = SystemTime::now();
        let mut newest = SystemTime::UNIX_EPOCH;
        let print = print(self.conf.dir(), &mut newest);
        if print.is_some() && print == self.print {
            return false;
        }
        let lists = self.conf.list().map(|listing| listing.networks).unwrap_or_default();
        self.networks = lists.iter().filter_map(|network| read(&network.list)).collect();
        // The next change of a recently changed file may have the same timestamp.
        let is_settled = begun.duration_since(newest).is_ok_and(|age| age > TICK);
        self.print = print.filter(|_| is_settled);
        true
    }
}

/// Returns the network if it uses cluster-local with a usable configuration, otherwise `None`.
pub(super) fn read(list: &NetworkList) -> Option<Network> {
    let config = list.configuration(plugin_of(list)?, &Injection::default()).to_string();
    let parsed = PluginConfig::parse_for_del(config.as_bytes()).ok()?.0;
    let cluster = Cluster::read(&parsed, &Default::default()).ok()?;
    Some(Network { name: list.name.clone(), config, store: cluster.base.store, offline: cluster.offline })
}

/// Returns the files in a directory and in the networks' folders, or `None` if they can't be listed. It raises `newest`
/// to the time of the last change.
fn print(dir: &Path, newest: &mut SystemTime) -> Option<Print> {
    let mut print = Print::new();
    add(dir, 1, &mut print, newest).ok()?;
    Some(print)
}

/// Adds a file, or a directory with its files down to the depth 3. A missing one is skipped.
fn add(path: &Path, depth: u32, print: &mut Print, newest: &mut SystemTime) -> io::Result<()> {
    // A symbolic link counts as its target.
    let Some(meta) = std::fs::metadata(path).if_present()? else { return Ok(()) };
    let seconds = u64::try_from(meta.ctime()).unwrap_or_default();
    let nanoseconds = u32::try_from(meta.ctime_nsec()).unwrap_or_default();
    *newest = (*newest).max(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds));
    print.insert(entry(path, &meta));
    if meta.is_dir() && depth < 3 {
        for entry in std::fs::read_dir(path)? {
            add(&entry?.path(), depth + 1, print, newest)?;
        }
    }
    Ok(())
}

/// Returns what distinguishes a file from a changed one.
fn entry(path: &Path, meta: &Metadata) -> (PathBuf, [u64; 3], [i64; 4]) {
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    (path.to_owned(), [meta.dev(), meta.ino(), meta.len()], times)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    fn list(name: &str, plugins: bool) -> String {
        let ipam = json!({"type": "cluster-local", "subnet": "10.1.0.0/16", "etcd": {"endpoints": ["http://10.0.0.1:2379"]}});
        let main = json!({"type": "bridge", "ipam": ipam});
        let plugins = if plugins { json!([main]) } else { json!([{"type": "bridge"}]) };
        json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins}).to_string()
    }

    fn settle() {
        std::thread::sleep(TICK * 2);
    }

    fn names(configured: &mut Configured) -> Vec<String> {
        configured.networks().iter().map(|network| network.name.clone()).collect()
    }

    #[test]
    fn files_are_read_when_they_have_changed_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut configured = Configured::new(ConfDir::new(path("net.d")));
        assert_eq!(names(&mut configured), [""; 0]);
        fs::create_dir(path("net.d")).unwrap();
        fs::write(path("net.d/a.conflist"), list("a", true)).unwrap();
        fs::write(path("net.d/b.conflist"), list("b", false)).unwrap();
        assert_eq!(names(&mut configured), ["a"]);
        // On a busy machine more than a tick can pass between the two looks.
        let mut read_again = || {
            fs::write(path("net.d/b.conflist"), list("b", false)).unwrap();
            configured.look() && configured.look()
        };
        assert!((0..100).any(|_| read_again()), "another change may have the same time");
        settle();
        configured.look();
        assert!(!configured.look());
        // The file is changed in place, so the directory stays as it was.
        fs::write(path("net.d/b.conflist"), list("b", true)).unwrap();
        assert_eq!(names(&mut configured), ["a", "b"]);
        settle();
        configured.look();
        fs::remove_file(path("net.d/a.conflist")).unwrap();
        assert_eq!(names(&mut configured), ["b"]);
        // The target of a symbolic link is replaced, as in a Kubernetes volume.
        fs::write(path("one"), list("one", true)).unwrap();
        fs::write(path("two"), list("two", true)).unwrap();
        symlink(path("one"), path("data")).unwrap();
        symlink(path("data"), path("net.d/a.conflist")).unwrap();
        settle();
        assert_eq!(names(&mut configured), ["one", "b"]);
        assert!(!configured.look());
        symlink(path("two"), path("next")).unwrap();
        fs::rename(path("next"), path("data")).unwrap();
        assert_eq!(names(&mut configured), ["two", "b"]);
    }

    #[test]
    fn a_plugin_in_a_networks_folder_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a.conflist"), list("a", false)).unwrap();
        fs::create_dir(path("a")).unwrap();
        let mut configured = Configured::new(ConfDir::new(dir.path()));
        settle();
        assert_eq!(names(&mut configured), [""; 0]);
        let one: serde_json::Value = serde_json::from_str(&list("a", true)).unwrap();
        fs::write(path("a/1.conf"), one["plugins"][0].to_string()).unwrap();
        assert_eq!(names(&mut configured), ["a"]);
        settle();
        configured.look();
        assert!(!configured.look());
        fs::write(path("a/1.conf"), "{").unwrap();
        assert_eq!(names(&mut configured), [""; 0]);
    }
}
