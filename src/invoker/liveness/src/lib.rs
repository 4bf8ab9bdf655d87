//! Decides which attachments live, for `gc --gone`, `doctor` and `run`. It changes nothing.
//!
//! **An attachment that lives, or may live, is left alone.** Each of these is evidence that it lives:
//!
//! - an entry of a result cache with an existing namespace that has its interface;
//! - the host's end of a veth pair, with its alias, and the other end in a namespace;
//! - an interface in a namespace with such an alias, and no end on the host;
//! - a sandbox of its container in the runtime's list, if a runtime is asked;
//! - its address in any namespace;
//! - a lease that was made just now.
//!
//! Read `judge` first: it reads the node, and has the verdicts on entries and leases. [`traces`] has those on packet
//! rules. [`node`] and `namespaces` hold the evidence, and [`runtime`] is the container runtime's.
//!
//! **The order of reading matters.** A concurrent ADD may be of a runtime that does not take cnimble's lock. Objects
//! are listed first, and the evidence for their owners is read afterwards: packet rules, links, entries and leases,
//! then the runtime's sandboxes, namespaces and links again. An ADD makes the link first, then the lease, the address
//! and the rules. So every listed object has its evidence, at any progress of its ADD.

pub mod cache_entries;
pub mod inside;
mod judge;
pub mod leases;
#[cfg(test)]
mod model;
pub mod named;
mod namespaces;
pub mod node;
pub mod runtime;
pub mod traces;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cnimble_cni::{Attachment, Error};
use cnimble_leases::config::DATA_DIR;
use cnimble_netlink::nft::Nft;
use cnimble_rules::survey::{self, Trace};
use cnimble_runtime::{Cache, DEFAULT_CACHE_DIR};

use cache_entries::JudgedEntry;
use node::Node;

pub use cnimble_leases::config::data_dirs;

/// The result cache of `cnimble pod` and `cnimble run`, unless the user names another.
pub const DEFAULT_PODS_CACHE_DIR: &str = "/var/lib/cnimble/cni";

/// The age below which an object may belong to an ADD that is still running. A kubelet gives an ADD two minutes.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(300);

/// The sources of evidence that attachments live.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The cache whose entries are judged.
    pub cache: Cache,
    /// Other caches. Their entries are evidence, and are judged only with `judge_others`. The same directory as `cache`
    /// is read once.
    pub others: Vec<Cache>,
    /// Whether the entries of `others` are judged, too.
    pub judge_others: bool,
    /// Lease directories of host-local (`dataDir`), besides those that the entries' configurations name.
    pub data_dirs: Vec<PathBuf>,
    /// A younger object is never called an orphan: see [`DEFAULT_GRACE`].
    pub grace: Duration,
    /// The container runtime, whose sandboxes are evidence. `None` asks no runtime.
    pub runtime: Option<Arc<dyn runtime::Runtime>>,
}

impl Evidence {
    /// Judges `cache`, with the usual caches as evidence: libcni's, which containerd, CRI-O and podman use, and that of
    /// `cnimble pod` and `cnimble run`. No runtime is asked.
    pub fn new(cache: Cache) -> Self {
        let usual = [DEFAULT_CACHE_DIR, DEFAULT_PODS_CACHE_DIR].map(Cache::new);
        Evidence {
            cache,
            others: usual.into(),
            judge_others: false,
            data_dirs: vec![PathBuf::from(DATA_DIR)],
            grace: DEFAULT_GRACE,
            runtime: None,
        }
    }

    /// Returns the caches whose entries are judged.
    pub fn judged(&self) -> Vec<&Cache> {
        let others = self.others.iter().filter(|other| self.judge_others && !self.is_own(other));
        std::iter::once(&self.cache).chain(others).collect()
    }

    /// Returns whether `other` is the directory of [`Evidence::cache`], perhaps by another path.
    fn is_own(&self, other: &Cache) -> bool {
        match (self.cache.dir().canonicalize(), other.dir().canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => self.cache.dir() == other.dir(),
        }
    }
}

/// Whether an object may be removed. The texts are for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its owner lives, or it is not cnimble's. It stays.
    Lives,
    /// Its owner is dead, for this reason. It may be removed.
    Orphan(String),
    /// Its owner may live, for this reason. It stays.
    Doubt(String),
}

/// One reading of the node, with its packet rules.
#[derive(Debug)]
pub struct Sight {
    /// The packet rules with an owner.
    pub traces: Vec<Trace>,
    /// The evidence, which was read after the rules.
    pub node: Node,
}

impl Node {
    /// Reads the network namespace of the calling thread, the caches and the leases, without packet rules. They are
    /// then no evidence, and can't be judged by this node.
    ///
    /// # Errors
    /// Fails if evidence can't be read, because an attachment without it would look dead.
    pub fn look(evidence: &Evidence) -> Result<Self, Error> {
        judge::read_node(evidence, &[])
    }
}

impl JudgedEntry {
    /// Returns the entries of the judged caches whose namespace exists and has their interface. Unlike [`Node::look`]
    /// it reads no other namespace. An entry that can't be checked is left out. With a container's ID it returns only
    /// entries of that container.
    ///
    /// # Errors
    /// Fails if a judged cache can't be read.
    pub fn attached(evidence: &Evidence, container_id: Option<&str>) -> Result<Vec<Self>, Error> {
        judge::attached(evidence, container_id)
    }
}

impl Sight {
    /// Reads the packet rules, and then what [`Node::look`] reads, with the addresses of the rules.
    ///
    /// # Errors
    /// Fails if the rules or the evidence can't be read.
    pub fn look(evidence: &Evidence) -> Result<Self, Error> {
        let traces = survey::traces(&mut Nft::new())?;
        let node = judge::read_node(evidence, &traces)?;
        Ok(Sight { traces, node })
    }

    /// Returns the attachments of a network that live or may live: the list of valid attachments for GC.
    ///
    /// # Errors
    /// Fails if an attachment may live whose name can't be read, because GC would remove it. The caller must then not
    /// run GC.
    pub fn valid(&self, network: &str) -> Result<Vec<Attachment>, String> {
        let mut valid = self.node.valid(network)?;
        for trace in &self.traces {
            if let (Verdict::Doubt(why), Some(comment)) = (traces::judge(&self.node, trace), trace.comment())
                && let Some(tag) = survey::tag(comment)
            {
                valid.extend(node::named(comment, tag, network).map_err(|what| format!("{what}: {why}"))?);
            }
        }
        Ok(valid)
    }
}

/// Returns why a file may belong to a running ADD, or `None` if its last modification is older than `grace`. A time in
/// the future counts as young. So does a file that can't be examined.
pub fn young(path: &std::path::Path, grace: Duration) -> Option<String> {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    let age = changed.map(|changed| SystemTime::now().duration_since(changed).unwrap_or_default());
    match age {
        Ok(age) if age >= grace => None,
        Ok(_) if is_in_future(path) => {
            Some("its time is in the future, so nothing tells whether its ADD is finished".to_owned())
        }
        Ok(age) => {
            Some(format!("it is {} s old, and may be of an ADD that isn't finished (--grace)", age.as_secs()))
        }
        Err(err) => Some(err.to_string()),
    }
}

/// Returns whether a file was changed in the future, by the clock of this host. Then its age is not known, perhaps for
/// years.
pub fn is_in_future(path: &std::path::Path) -> bool {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    changed.is_ok_and(|changed| changed > SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_future_has_no_age() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let told = || young(file.path(), DEFAULT_GRACE).unwrap();
        assert!(told().starts_with("it is 0 s old") && !is_in_future(file.path()), "{}", told());
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        file.as_file().set_modified(tomorrow).unwrap();
        assert!(told().starts_with("its time is in the future") && is_in_future(file.path()), "{}", told());
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
