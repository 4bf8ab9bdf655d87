//! Which attachments live, for `gc --gone`, `doctor` and `run`.
//!
//! **An attachment that lives, or may live, is left alone.** Each of these is evidence that it lives:
//!
//! - an entry of a result cache with an existing namespace that has its interface;
//! - the host's end of a veth pair, with its alias, and the other end in a namespace;
//! - its address in any namespace;
//! - a lease that was made just now.
//!
//! Read `judge` first: it looks, and has the verdicts on entries and leases. [`traces`] has those on packet rules.
//! [`node`] and `namespaces` hold the evidence, and [`runtime`] is the container runtime's.
//!
//! **The order of looking matters.** A concurrent ADD may be of a runtime that takes no lock of ours. Objects are
//! listed first, and the evidence for their owners is read afterwards: packet rules, links, entries and leases, then
//! namespaces and links again. An ADD makes the link first, then the lease, the address and the rules. So every listed
//! object has its evidence, at any progress of its ADD.

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

use cache_entries::Known;
use node::Node;

pub use cnimble_leases::config::data_dirs;

/// Where `cnimble pod` and `cnimble run` keep results unless they are told otherwise.
pub const DEFAULT_PODS_CACHE_DIR: &str = "/var/lib/cnimble/cni";

/// Younger things may be of an ADD that isn't finished; a kubelet gives one two minutes.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(300);

/// The sources of evidence that attachments live.
#[derive(Debug, Clone)]
pub struct Evidence {
    pub cache: Cache,
    /// Their entries are evidence for attachments.
    pub others: Vec<Cache>,
    pub judge_others: bool,
    /// Directories of host-local (`dataDir`), besides those that entries name.
    pub data_dirs: Vec<PathBuf>,
    pub grace: Duration,
    pub runtime: Option<Arc<dyn runtime::Runtime>>,
}

impl Evidence {
    /// With libcni's cache, which containerd, CRI-O and podman use, and that of `cnimble pod` and `cnimble run`.
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

    pub fn judged(&self) -> Vec<&Cache> {
        let others = self.others.iter().filter(|other| self.judge_others && !self.is_own(other));
        std::iter::once(&self.cache).chain(others).collect()
    }

    fn is_own(&self, other: &Cache) -> bool {
        match (self.cache.dir().canonicalize(), other.dir().canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => self.cache.dir() == other.dir(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has a living owner, or is none of ours.
    Lives,
    /// It has no living owner, and why.
    Orphan(String),
    /// It seems to have none, and why it is left alone all the same.
    Doubt(String),
}

/// One look at the node.
#[derive(Debug)]
pub struct Sight {
    pub traces: Vec<Trace>,
    /// Looked at after the rules.
    pub node: Node,
}

impl Node {
    /// Looks at the network namespace of the calling thread, and at the files. The packet rules have no part in it.
    pub fn look(evidence: &Evidence) -> Result<Self, Error> {
        judge::look(evidence, &[])
    }
}

impl Known {
    /// Looks for the attachments that live in the namespaces that the judged caches name. Unlike [`Node::look`] it reads
    /// no other namespace, and no list in a pod.
    pub fn attached(evidence: &Evidence) -> Result<Vec<Self>, Error> {
        judge::attached(evidence)
    }
}

impl Sight {
    /// Looks at the network namespace of the calling thread, and at the files.
    pub fn look(evidence: &Evidence) -> Result<Self, Error> {
        let traces = survey::traces(&mut Nft::new())?;
        let node = judge::look(evidence, &traces)?;
        Ok(Sight { traces, node })
    }

    /// The valid attachments for the verb GC: all but dead ones. Fails if an attachment may live without a readable
    /// name.
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

/// Why a file is too young, also one from the future.
pub fn young(path: &std::path::Path, grace: Duration) -> Option<String> {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    let age = changed.map(|changed| SystemTime::now().duration_since(changed).unwrap_or_default());
    match age {
        Ok(age) if age >= grace => None,
        Ok(age) => {
            Some(format!("it is {} s old, and may be of an ADD that isn't finished (--grace)", age.as_secs()))
        }
        Err(err) => Some(err.to_string()),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
