//! Finds and removes orphans of a node (`cnimble doctor`).
//!
//! A runtime that dies, a power cut or a ruleset flush leaves things behind that no DEL will
//! come for: leases, links, packet rules, entries of the result cache, made by us or by the Go
//! plugins. [`Doctor::look`] finds them and says of each why it has no owner;
//! [`Doctor::repair`] removes them. What a pod that *lives* has lost is put back.
//!
//! What lives is [judged](cnimble_life) as everywhere. A finding may be in [doubt](Finding::doubt); then
//! it is left alone. Between a look and a repair the node goes on: so each finding is judged again
//! before it is repaired, with its network locked against other work of cnimble.

mod attachments;
mod cache_entries;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod hand_over;
mod leases;
mod lifetimes;
mod links;
mod repair;
mod rules;
mod runtime;
mod warnings;

use std::collections::BTreeMap;

use cnimble_cni::{Attachment, Error};
use cnimble_life::{Sight, Witnesses};
use cnimble_netlink::nft::Nft;
use cnimble_plugin::Plugin;
use cnimble_runtime::Invoker;

pub use attachments::Compared;
pub use repair::{Reach, Repair};

/// Looks at a node: at the network namespace of the calling thread, and at the files.
pub struct Doctor<'a> {
    /// Runs plugins, and has the locks.
    pub invoker: &'a Invoker,
    /// Where to look.
    pub witnesses: Witnesses,
    /// The plugins that are linked: they tell what an attachment needs, and put it back.
    pub plugins: &'static [&'static dyn Plugin],
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
    /// A lease without an owner.
    BrokenLease,
    /// A file that a killed process didn't finish.
    UnfinishedFile,
    /// The host's end of a pair that leads to no pod.
    Veth,
    /// A device of the plugin bandwidth whose pod is gone.
    Ifb,
    /// Packet rules whose pod is gone.
    Rules,
    /// Unused chains and sets.
    EmptyRules,
    /// A pod that has lost its packet rules.
    MissingRules,
    /// Something of a living pod on the host that isn't as ADD left it.
    HostState,
    /// The same in the pod.
    PodState,
    /// A living pod whose DEL has begun.
    BegunDel,
    /// A sandbox that is Ready and has lost its namespace, or its interface.
    SandboxInterface,
    /// A sandbox that has another address than its runtime says.
    SandboxAddress,
    /// A sandbox whose address has no lease.
    SandboxWithoutLease,
    /// A sandbox that no result cache knows.
    SandboxWithoutEntry,
    /// A sandbox that isn't Ready and holds a lease.
    SandboxLease,
    /// A namespace whose sandbox is gone.
    SandboxGone,
}

impl Kind {
    /// Whether it is about a container runtime's sandbox.
    pub fn is_of_sandbox(self) -> bool {
        self >= Kind::SandboxInterface
    }

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
            Kind::HostState => "host-state",
            Kind::PodState => "pod-state",
            Kind::BegunDel => "begun-del",
            Kind::SandboxInterface => "sandbox-interface",
            Kind::SandboxAddress => "sandbox-address",
            Kind::SandboxWithoutLease => "sandbox-without-lease",
            Kind::SandboxWithoutEntry => "sandbox-without-entry",
            Kind::SandboxLease => "sandbox-lease",
            Kind::SandboxGone => "sandbox-gone",
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
    /// Why it has no owner, in a sentence.
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
    Entry(cache_entries::Action),
    Lease(leases::Action),
    Link(links::Action),
    Rules(Box<cnimble_rules::survey::Trace>),
    EmptyRules,
    Attachment(Box<attachments::Action>),
    /// Only the runtime, or who made the pod, can.
    Runtime,
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
    /// What of living attachments was not compared with their wanted state, in words.
    pub unchecked: Vec<String>,
    /// Conditions of the host that stop pods, in words.
    pub warnings: Vec<String>,
    /// Pods, `NAMESPACE/NAME`, by the IDs of their containers: what the runtime tells, if it was asked,
    /// and the arguments in the cache.
    pub pods: BTreeMap<String, String>,
}

impl Doctor<'_> {
    /// Looks, and changes nothing. Living pods are compared with what their plugins want.
    ///
    /// # Errors
    /// What is needed for judging can't be read.
    pub async fn look(&self) -> Result<Diagnosis, Error> {
        let sight = Sight::look(&self.witnesses)?;
        let mut findings = self.orphans(&sight)?;
        let Compared { findings: differences, unchecked } =
            attachments::compare(self, &sight.node, |_| true).await;
        findings.extend(differences);
        findings.extend(runtime::findings(self, &sight.node).await?);
        if !findings.iter().any(|finding| finding.kind == Kind::MissingRules) {
            findings.extend(rules::idle(&mut Nft::new())?);
        }
        findings.sort_by_key(|finding| finding.kind);
        let (living, blind) = (sight.node.attachments(), sight.node.blind.clone());
        let (warnings, pods) = (warnings::warnings(&sight.node), runtime::pods(&sight.node));
        Ok(Diagnosis { findings, living, blind, unchecked, warnings, pods })
    }

    /// As [`Doctor::look`], for what is left of attachments of one network. Asks no plugins.
    ///
    /// # Errors
    /// Fails as [`Doctor::look`] does.
    pub fn look_at(&self, network: &str) -> Result<Diagnosis, Error> {
        let sight = Sight::look(&self.witnesses)?;
        let mut findings = self.orphans(&sight)?;
        findings.retain(|finding| finding.network() == Some(network));
        findings.sort_by_key(|finding| finding.kind);
        let living = sight.node.attachments_in(network);
        let (blind, pods) = (sight.node.blind.clone(), runtime::pods(&sight.node));
        Ok(Diagnosis { findings, living, blind, pods, ..Diagnosis::default() })
    }

    /// Compares the living attachments of one container with what their plugins want.
    pub async fn compare_container(&self, sight: &Sight, container_id: &str) -> Compared {
        attachments::compare(self, &sight.node, |known| known.entry.container_id == container_id).await
    }

    /// What has no living owner.
    fn orphans(&self, sight: &Sight) -> Result<Vec<Finding>, Error> {
        let mut findings = cache_entries::findings(self, &sight.node)?;
        findings.extend(leases::findings(&sight.node.leases));
        findings.extend(links::findings(&sight.node)?);
        findings.extend(rules::findings(sight));
        Ok(findings)
    }
}

impl Finding {
    /// The network, if the whole of its name is known.
    fn network(&self) -> Option<&str> {
        let whose = &self.whose;
        let by_place = matches!(self.kind, Kind::Lease | Kind::BrokenLease | Kind::UnfinishedFile);
        // A comment tells the container behind the network: so that is whole, if there is one.
        whose.network.as_deref().filter(|_| by_place || whose.container_id.is_some())
    }

    /// Whether both are about the same thing.
    pub fn is_again(&self, other: &Finding) -> bool {
        (self.kind, &self.what, &self.whose) == (other.kind, &other.what, &other.whose)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
