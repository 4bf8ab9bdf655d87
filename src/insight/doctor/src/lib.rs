//! Finds and removes orphans of a node (`cnimble doctor`): leases, links, packet rules and cache entries of cnimble or
//! the Go plugins. A crash, a power cut or a ruleset flush leaves them. [`Doctor::examine_node`] finds them.
//! [`Doctor::repair`] removes them and restores lost parts of *living* pods. A finding in [doubt](Finding::doubt) is
//! not repaired. Each finding is judged again before its repair, under a lock of its network, because the node changes
//! in between.

mod attachments;
mod cache_entries;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod hand_over;
mod item_repair;
mod leases;
mod lifetimes;
mod links;
mod lost_interface;
mod nat;
mod outcome;
pub mod removal;
mod repair;
mod runtime;
mod stale_rules;
mod stations;
pub mod tree;
mod warnings;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use cnimble_cni::{Attachment, Error};
use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_liveness::{Evidence, Sight, Verdict};
use cnimble_netlink::nft::Nft;
use cnimble_plugin::{Item, Plugin};
use cnimble_rules::survey::unreadable_legacy_tables;
use cnimble_runtime::Invoker;

pub use attachments::Compared;
pub use outcome::{Reach, Repair};
pub use stations::Stopped;
pub use warnings::shadowed;

/// Examines and repairs a node. The node is the network namespace of the calling thread, and its files.
pub struct Doctor<'a> {
    pub invoker: &'a Invoker,
    pub evidence: Evidence,
    /// The linked plugins, which know what an attachment needs and can restore it.
    pub plugins: &'static [&'static dyn Plugin],
    /// The options that name other directories than the usual ones, each behind a space and quoted for a shell. The
    /// commands in texts end with them. The cache's option is not among them, because an entry knows its cache.
    pub options: &'a str,
}

/// The kind of a finding. The order is that of repairs. The kinds about sandboxes come last, because
/// [`is_of_sandbox`](Self::is_of_sandbox) goes by the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// An entry of the result cache whose attachment is dead, or may be.
    CacheEntry,
    /// A file in the cache that is no entry.
    BrokenCacheEntry,
    /// A lease whose holder is dead, or may be.
    Lease,
    /// A file among the leases that names no owner, or is no lease.
    BrokenLease,
    /// A file whose writer was killed.
    UnfinishedFile,
    /// The host end of a veth pair that leads to no pod.
    Veth,
    /// An ifb of bandwidth without its pod.
    Ifb,
    /// A link of `hostShim` that leads to no pod.
    Shim,
    /// A bridge whose ADD was killed before it was complete.
    UnfinishedBridge,
    /// Packet rules of a removed pod, or of one that may be.
    Rules,
    /// Sets and chains that no pod uses.
    EmptyRules,
    /// Packet rules that a living pod lacks.
    MissingRules,
    /// A part of a living pod on the host that differs from its state after ADD.
    HostState,
    /// A part inside a living pod that differs from its state after ADD.
    PodState,
    /// A living pod with an unfinished DEL.
    BegunDel,
    /// A Ready sandbox into which no look was possible, mostly because its namespace or its interface is missing.
    SandboxInterface,
    /// A sandbox with another address than its runtime reports.
    SandboxAddress,
    /// A sandbox with an address that has no lease.
    SandboxWithoutLease,
    /// A sandbox without an entry in any result cache.
    SandboxWithoutEntry,
    /// A lease of a sandbox that isn't Ready.
    SandboxLease,
    /// A namespace of a removed sandbox.
    SandboxGone,
}

impl FindingKind {
    /// Returns whether the finding is about a container runtime's sandbox.
    pub fn is_of_sandbox(self) -> bool {
        self >= FindingKind::SandboxInterface
    }
}

/// Writes the word in JSON, `cache-entry` for example.
impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A fault of the node.
#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: FindingKind,
    /// The faulty object, such as `lease 10.1.0.2 in /var/lib/cni/networks/net`.
    pub what: String,
    pub subject: Subject,
    /// What is wrong with it.
    pub why: String,
    /// Why it is not repaired: some evidence shows an owner, or evidence is missing. It is `None` if it can be
    /// repaired.
    pub doubt: Option<String>,
    /// Whether time alone ends the doubt, or it is no fault of this node: an object is young, a DEL runs, or another
    /// machine may own the object.
    pub passing: bool,
    /// What to do about it.
    pub remedy: Cow<'static, str>,
    action: FindingRepair,
}

/// The program or person that can repair a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// [`Doctor::repair`] with any reach.
    Host,
    /// [`Doctor::repair`] with [`Reach::Pods`].
    Pod,
    /// No repair: the runtime, the creator of the pod or the administrator has to.
    Runtime,
}

/// An attachment, as far as its names are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    pub network: Option<String>,
    pub container_id: Option<String>,
    pub ifname: Option<String>,
}

impl Subject {
    fn from_attachment(network: &str, attachment: &Attachment) -> Self {
        Subject {
            network: Some(network.to_owned()),
            container_id: Some(attachment.container_id.clone()),
            ifname: Some(attachment.ifname.clone()),
        }
    }
}

/// Returns why an object has no owner, and the doubt about that. It returns `None` if its owner lives.
fn orphaned(verdict: &Verdict) -> Option<(String, Option<String>)> {
    match verdict {
        Verdict::Lives => None,
        Verdict::Orphan(why) => Some((why.clone(), None)),
        Verdict::Doubt(doubt) => {
            Some(("it is not known whether its pod lives".to_owned(), Some(doubt.clone())))
        }
    }
}

/// The repair of a finding.
#[derive(Debug, Clone)]
enum FindingRepair {
    Entry(cache_entries::CacheRepair),
    Lease(leases::LeaseRemoval),
    Link(links::LinkRemoval),
    Rules(Box<cnimble_rules::survey::Trace>),
    EmptyRules,
    Attachment(Box<item_repair::ItemRepair>),
    /// Only the runtime, or the creator of the pod, can repair it.
    Runtime,
}

/// What a look at the node has found.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// The faults, in the order of their repair.
    pub findings: Vec<Finding>,
    /// The number of attachments that live or may live.
    pub living: usize,
    /// Why some namespaces or cache entries could not be read. Then most orphans are in doubt.
    pub blind: Vec<String>,
    /// Parts of the node that were not looked at, and parts of living attachments that were not compared.
    pub unchecked: Vec<String>,
    /// Conditions of the host that stop pods, or will.
    pub warnings: Vec<String>,
    /// Rules of other programs that decide about pods' packets. They are no fault.
    pub notes: Vec<String>,
    /// Pods whose packets are stopped on the node, one of each network.
    pub stopped: Vec<Stopped>,
    /// `NAMESPACE/NAME` by container ID, from the runtime or from the arguments in the cache.
    pub pods: BTreeMap<String, String>,
}

impl Doctor<'_> {
    /// Looks for orphans and for faults of sandboxes, and compares living pods with what their plugins want. It runs
    /// CHECK, and changes nothing.
    ///
    /// # Errors
    /// Fails if evidence can't be read, because a living attachment would look dead.
    pub async fn examine_node(&self) -> Result<Diagnosis, Error> {
        let sight = Sight::look(&self.evidence)?;
        let mut findings = self.orphans(&sight)?;
        let Compared { findings: differences, mut unchecked } =
            attachments::compare(self, &sight.node.entries, Reach::Pods).await;
        findings.extend(differences);
        let mut cut_off = lost_interface::without_interface(self, &sight.node).await;
        findings.retain(|of| {
            of.kind != FindingKind::CacheEntry || !cut_off.iter().any(|lost| lost.subject == of.subject)
        });
        // A lost interface is one finding. That about the sandbox says more than the one about the record.
        let Compared { findings: sandboxes, unchecked: unread } = runtime::compare(self, &sight.node).await?;
        unchecked.extend(unread);
        cut_off.retain(|lost| {
            let mut of_sandboxes = sandboxes.iter().filter(|of| of.kind == FindingKind::SandboxInterface);
            !of_sandboxes.any(|of| of.subject == lost.subject)
        });
        findings.extend(cut_off);
        findings.extend(sandboxes);
        unchecked.extend(attachments::not_compared(&sight.node, &findings));
        unchecked.extend(cache_entries::bare_results(self)?.iter().map(|path| {
            format!(
                "file {}: a bare result of libcni before 0.8, which doesn't name its attachment",
                path.display()
            )
        }));
        if findings.iter().any(|finding| finding.kind == FindingKind::MissingRules) {
            unchecked
                .push("unused sets and chains: the repair of missing rules may use them again".to_owned());
        } else {
            findings.extend(stale_rules::idle(&mut Nft::new())?);
        }
        findings.sort_by_key(|finding| finding.kind);
        let (living, blind) = (sight.node.attachments(), sight.node.blind.clone());
        unchecked.extend(sight.node.leases.stores().flat_map(|network| network.unread.clone()));
        unchecked.extend(unreadable_legacy_tables());
        let warnings = warnings::warnings(&sight.node, &mut unchecked);
        let stopped = stations::follow_packets(&sight.node, &findings, &mut unchecked);
        let notes = nat::notes(&sight.node, &mut unchecked);
        let pods = runtime::pods(&sight.node);
        Ok(Diagnosis { findings, living, blind, unchecked, warnings, notes, stopped, pods })
    }

    /// Looks for orphans of one network. Unlike [`Doctor::examine_node`] it runs no plugin.
    pub fn look_at(&self, network: &str) -> Result<Diagnosis, Error> {
        let sight = Sight::look(&self.evidence)?;
        let mut findings = self.orphans(&sight)?;
        findings.retain(|finding| finding.network() == Some(network));
        findings.sort_by_key(|finding| finding.kind);
        let living = sight.node.attachments_in(network);
        let of_network = sight.node.leases.stores().filter(|store| store.name == network);
        let mut unchecked: Vec<String> = of_network.flat_map(|store| store.unread.clone()).collect();
        unchecked.extend(unreadable_legacy_tables());
        let (blind, pods) = (sight.node.blind.clone(), runtime::pods(&sight.node));
        Ok(Diagnosis { findings, living, blind, unchecked, pods, ..Diagnosis::default() })
    }

    /// Compares the living attachments of one container with what their plugins want.
    pub async fn compare_container(&self, sight: &Sight, container_id: &str) -> Compared {
        let of_container = sight.node.entries.iter().filter(|of| of.entry.container_id == container_id);
        attachments::compare(self, of_container, Reach::Pods).await
    }

    /// Returns what living pods lack on the host: what [`Doctor::repair`] can restore, and what it leaves alone (in
    /// doubt) because nothing proves which object is the pod's. It reads no complete list in a pod, whose length is the
    /// pod's choice.
    ///
    /// With a container's ID it looks at that container only.
    pub async fn lost(&self, container_id: Option<&str>) -> Result<Vec<Finding>, Error> {
        let attached = JudgedEntry::attached(&self.evidence, container_id)?;
        let mut findings = attachments::compare(self, &attached, Reach::Host).await.findings;
        findings.retain(|of| matches!(of.action, FindingRepair::Attachment(_)));
        Ok(findings)
    }

    /// Returns the objects without a living owner.
    fn orphans(&self, sight: &Sight) -> Result<Vec<Finding>, Error> {
        let mut findings = cache_entries::findings(self, &sight.node)?;
        findings.extend(leases::findings(&sight.node.leases, self.evidence.grace));
        findings.extend(links::findings(&sight.node)?);
        findings.extend(links::unfinished_bridges(&sight.node)?);
        findings.extend(stale_rules::findings(sight));
        Ok(findings)
    }
}

impl Finding {
    /// Returns the network if its complete name is known. Aliases and comments may be cut.
    fn network(&self) -> Option<&str> {
        let subject = &self.subject;
        let by_place =
            matches!(self.kind, FindingKind::Lease | FindingKind::BrokenLease | FindingKind::UnfinishedFile);
        // In a comment the container follows the network. So if the container is there, the network's name is complete.
        subject.network.as_deref().filter(|_| by_place || subject.container_id.is_some())
    }

    /// Returns the plugin and the item of the wanted state that the finding is about, if a plugin of a living pod names
    /// it. Unlike the finding's texts, it contains nothing that the pod chooses.
    pub fn item(&self) -> Option<(&str, Item)> {
        match &self.action {
            FindingRepair::Attachment(action) => Some(action.item()),
            _ => None,
        }
    }

    /// Returns whether the finding is about a lease, a link or packet rules. A look for orphans has it as long as the
    /// object exists without an owner that is known to live.
    fn is_of_object(&self) -> bool {
        matches!(self.action, FindingRepair::Lease(_) | FindingRepair::Link(_) | FindingRepair::Rules(_))
    }

    /// Returns who can repair the finding.
    pub fn cure(&self) -> Cure {
        match &self.action {
            FindingRepair::Runtime => Cure::Runtime,
            FindingRepair::Attachment(action) if !action.is_mendable() => Cure::Runtime,
            FindingRepair::Attachment(action) if action.is_in_pod() => Cure::Pod,
            _ => Cure::Host,
        }
    }

    /// Returns why, without the part after a colon, which is only for the output of the doctor. The error of a plugin
    /// stays whole.
    pub fn brief(&self) -> &str {
        match self.kind {
            FindingKind::HostState | FindingKind::PodState => &self.why,
            _ => self.why.split_once(": ").map_or(&self.why, |(brief, _)| brief),
        }
    }

    /// Returns whether both findings are about the same object, perhaps for different reasons.
    pub fn is_again(&self, other: &Finding) -> bool {
        (self.kind, &self.what, &self.subject) == (other.kind, &other.what, &other.subject)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
