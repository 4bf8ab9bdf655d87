//! What nobody owns any more on a node, and how to be rid of it (`cnimble doctor`).
//!
//! A runtime that dies, a power cut or a ruleset flush leaves things behind that no DEL will
//! come for: leases, links, packet rules, entries of the result cache, made by us or by the Go
//! plugins. [`Doctor::look`] finds them and says of each why it is nobody's;
//! [`Doctor::repair`] removes one. Rules of a pod that *lives* and has lost them are put back.
//!
//! **What lives is left alone, and so is what may live.** Something is taken for living
//! if anything speaks for it (`world`): a namespace where the cache says, the host's end
//! of a veth pair whose other end is in a namespace, an address in any namespace that can be
//! found, a lease that was made just now. Where that can't be told, the finding isn't
//! [sure](Finding::doubt) and [`Doctor::repair`] refuses it.

mod entries;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod leases;
mod links;
mod missing;
mod namespaces;
mod rules;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use crate::net::nft::Nft;
use crate::runtime::Invoker;
use crate::spec::{Attachment, Error};

pub use entries::data_dirs;

/// Where host-local keeps its leases unless it is told otherwise.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// Younger things may be of an ADD that isn't finished; a kubelet gives one two minutes.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(300);

/// Looks at a node: at the network namespace of the calling thread, and at the files.
#[derive(Debug)]
pub struct Doctor<'a> {
    /// Runs plugins, and knows the cache.
    pub invoker: &'a Invoker,
    /// Directories of host-local (`dataDir`), besides those that the cache names.
    pub data_dirs: Vec<PathBuf>,
    /// What is younger is left alone.
    pub grace: Duration,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An entry of the result cache whose namespace is gone.
    CacheEntry,
    /// A file in the cache that is no entry.
    BrokenCacheEntry,
    /// A lease whose pod is gone.
    Lease,
    /// A lease file that names nobody.
    BrokenLease,
    /// A file that a killed process didn't finish.
    UnfinishedFile,
    /// The host's end of a pair that leads to no pod.
    Veth,
    /// A device of the plugin bandwidth whose pod is gone.
    Ifb,
    /// Packet rules whose pod is gone.
    Rules,
    /// Chains and sets that nobody uses.
    EmptyRules,
    /// A pod that has lost its packet rules.
    MissingRules,
}

impl Kind {
    /// The kind in JSON, `cache-entry` for example.
    pub fn name(self) -> &'static str {
        match self {
            Kind::CacheEntry => "cache-entry",
            Kind::BrokenCacheEntry => "broken-cache-entry",
            Kind::Lease => "lease",
            Kind::BrokenLease => "broken-lease",
            Kind::UnfinishedFile => "unfinished-file",
            Kind::Veth => "veth",
            Kind::Ifb => "ifb",
            Kind::Rules => "rules",
            Kind::EmptyRules => "empty-rules",
            Kind::MissingRules => "missing-rules",
        }
    }
}

/// Something that isn't as it should be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// What it is: `lease 10.1.0.2 in /var/lib/cni/networks/net`.
    pub what: String,
    /// Whose it was, if that is written there.
    pub whose: Whose,
    /// Why it is nobody's, in a sentence.
    pub why: String,
    /// Why it is left alone, if it is: something speaks for it, or can't be told.
    pub doubt: Option<String>,
    /// What [`Doctor::repair`] does, in a sentence.
    pub remedy: &'static str,
    action: Action,
}

/// An attachment, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whose {
    /// The network's name.
    pub network: Option<String>,
    /// The container's ID.
    pub container_id: Option<String>,
    /// The interface.
    pub ifname: Option<String>,
}

impl Whose {
    fn of(network: &str, attachment: &Attachment) -> Self {
        Whose {
            network: Some(network.to_owned()),
            container_id: Some(attachment.container_id.clone()),
            ifname: Some(attachment.ifname.clone()),
        }
    }
}

#[derive(Debug, Clone)]
enum Action {
    Entry(entries::Action),
    Lease(leases::Action),
    Link(links::Action),
    Rules(Box<crate::rules::survey::Trace>),
    EmptyRules,
    Missing(Box<missing::Action>),
}

/// What [`Doctor::look`] saw.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// What isn't as it should be, in the order in which it is to be repaired.
    pub findings: Vec<Finding>,
    /// How many attachments live.
    pub living: usize,
    /// What couldn't be looked at, in words.
    pub blind: Vec<String>,
}

impl Doctor<'_> {
    /// Looks, and changes nothing. Plugins of pods that live are asked by CHECK.
    ///
    /// # Errors
    /// What is needed for judging can't be read.
    pub async fn look(&self) -> Result<Diagnosis, Error> {
        let mut nft = Nft::new();
        let world = world::World::look(self)?;
        let mut findings = Vec::new();
        findings.extend(entries::findings(self, &world)?);
        findings.extend(world.leases.findings.iter().cloned());
        findings.extend(links::findings(&world)?);
        findings.extend(rules::findings(&world, &mut nft)?);
        findings.extend(missing::findings(self, &world).await);
        if !findings.iter().any(|finding| finding.kind == Kind::MissingRules) {
            findings.extend(rules::idle(&mut nft)?);
        }
        findings.sort_by_key(|finding| finding.kind);
        Ok(Diagnosis { findings, living: world.attachments(), blind: world.blind.clone() })
    }

    /// Repairs one thing, if it is still as it was found.
    ///
    /// # Errors
    /// It couldn't be done; it is in [doubt](Finding::doubt).
    pub async fn repair(&self, finding: &Finding) -> Result<(), Error> {
        if let Some(doubt) = &finding.doubt {
            return Err(Error::new(crate::spec::Code::CONFLICT, doubt.clone()));
        }
        match &finding.action {
            Action::Entry(action) => action.run(self).await,
            Action::Lease(action) => action.run(),
            Action::Link(action) => action.run(),
            Action::Rules(trace) => trace.remove(&mut Nft::new()),
            Action::EmptyRules => crate::rules::survey::remove_idle(&mut Nft::new()),
            Action::Missing(action) => action.run(self).await,
        }
    }
}
