//! Compares living attachments with the wanted state that their plugins name. A linked plugin runs its CHECK in this
//! process ([`cnimble_plugin::Examination`]). It can repair the items that it names by `Call::wants`, and only notes
//! those that it names by `Call::expects`. Any other plugin is run with the verb, which reports only the first
//! difference. The cache must know the pod's configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{Error, NetworkList, Verb, Version};
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_liveness::node::Node;
use cnimble_os::files::begun;
use cnimble_plugin::{Aim, Examination, Examined, Fault, Item, Place};
use cnimble_rules::objects::bridge;
use cnimble_runtime::{Attach, Entry, PluginError};

use super::item_repair::ItemRepair;
use super::outcome::Reach;
use super::runtime::del_command;
use super::{Doctor, Finding, FindingKind, Subject};

/// The remedy for what only a new pod can get.
pub(super) const REPLACE: &str = "delete the pod and make it anew";

/// The remedy for a failed CHECK of a plugin that is not linked.
const ACT_ON_ERROR: &str =
    "do what its error asks for; if that is a difference, only a new pod is as the network makes it";

/// The remedies for a difference that its plugin has no way to put back, in the pod and outside.
const UNMENDABLE_IN_POD: &str =
    "--repair can't put it back: undo it in the pod, or delete the pod and make it anew";
const UNMENDABLE: &str =
    "--repair can't put it back: follow the hint, if there is one; else only a new pod has it";

/// The age from which on a begun DEL counts as given up by its runtime.
const UNFINISHED: Duration = Duration::from_secs(300);

/// The outcome of a comparison.
#[derive(Debug, Default)]
pub struct Compared {
    pub findings: Vec<Finding>,
    /// What was not compared, with the reasons, as texts.
    pub unchecked: Vec<String>,
}

/// Compares the attachments among `entries` that are of judged caches, live and have a namespace. With [`Reach::Host`]
/// it compares nothing inside the pods.
pub(super) async fn compare<'k>(
    doctor: &Doctor<'_>,
    entries: impl IntoIterator<Item = &'k JudgedEntry>,
    reach: Reach,
) -> Compared {
    let mut findings = Vec::new();
    let mut unchecked: BTreeMap<String, usize> = BTreeMap::new();
    for known in entries.into_iter().filter(|known| lives(known)) {
        let (before, skipped) = (findings.len(), of_attachment(doctor, known, reach, &mut findings).await);
        if findings.len() > before && !is_as_recorded(known) {
            // A DEL or an ADD has come between, so the differences are its work, and no faults.
            findings.truncate(before);
            if begun::is_noted(&known.owner().tag()) {
                findings.push(leaving(doctor, known));
            }
        }
        for why in skipped {
            *unchecked.entry(format!("network {}: {why}", known.entry.network)).or_default() += 1;
        }
    }
    Compared { findings, unchecked: counted(unchecked) }
}

/// Returns whether the record of an attachment is still the one that was read, and no note says that its DEL has begun.
/// Then what was seen of it meanwhile was seen between an ADD and a DEL.
pub(super) fn is_as_recorded(known: &JudgedEntry) -> bool {
    known.is_still_recorded() && !begun::is_noted(&known.owner().tag())
}

/// Returns each reason with the number of attachments that it is about.
fn counted(unchecked: BTreeMap<String, usize>) -> Vec<String> {
    let texts = unchecked.into_iter().map(|(why, count)| match count {
        1 => format!("{why} (1 attachment)"),
        many => format!("{why} ({many} attachments)"),
    });
    texts.collect()
}

/// Returns texts about the attachments that count as living, are not compared at all, and have no finding: those
/// without a cache entry, of a cache that is not judged, or whose namespace is not found by their path.
pub(super) fn not_compared(node: &Node, findings: &[Finding]) -> Vec<String> {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for known in &node.entries {
        let why = match &known.verdict {
            Verdict::Orphan(_) => continue,
            _ if !known.own => format!("the cache {} is not judged", known.cache.display()),
            Verdict::Lives if known.has_namespace() => continue,
            Verdict::Lives => "the recorded path leads to no namespace of a pod".to_owned(),
            Verdict::Doubt(doubt) => doubt.clone(),
        };
        let subject = Subject::from_attachment(&known.entry.network, &known.attachment());
        if !findings.iter().any(|finding| finding.subject == subject) {
            let why = format!("network {}: nothing is checked: {why}", known.entry.network);
            *reasons.entry(why).or_default() += 1;
        }
    }
    let mut texts = counted(reasons);
    match node.unrecorded() {
        0 => {}
        1 => texts
            .push("1 attachment that only a link or a lease shows: no cache entry of it was read".to_owned()),
        many => texts.push(format!(
            "{many} attachments that only links or leases show: no cache entries of them were read"
        )),
    }
    texts
}

/// Returns whether the entry is of a judged cache, and its attachment lives in a namespace.
fn lives(known: &JudgedEntry) -> bool {
    known.own && known.verdict == Verdict::Lives && known.has_namespace()
}

/// Compares one attachment and adds its findings. Returns what was not compared.
async fn of_attachment(
    doctor: &Doctor<'_>,
    known: &JudgedEntry,
    reach: Reach,
    findings: &mut Vec<Finding>,
) -> Vec<String> {
    if begun::is_noted(&known.owner().tag()) {
        findings.push(leaving(doctor, known));
        return Vec::new();
    }
    let list = match known.entry.network_list() {
        Ok(list) => list,
        Err(err) => return vec![format!("nothing is checked: {err}")],
    };
    if known.result().is_none() {
        return vec!["nothing is checked: the cache has no usable result of ADD".to_owned()];
    }
    let mut skipped = doctor.unchecked(&list);
    let in_pod = inside_is_unchecked(&list).is_none() && reach == Reach::Pods;
    for plugin in &list.plugins {
        let compared = doctor.compare(known, &list, plugin, in_pod).await;
        match compared {
            Ok(PluginCompared { faults, ended_by }) => {
                for (fault, action) in faults {
                    let next = finding(known, plugin, &fault, action);
                    // Two steps of a CHECK can report the same object.
                    if findings.last().is_none_or(|last| !last.is_again(&next) || last.why != next.why) {
                        findings.push(next);
                    }
                }
                skipped.extend(
                    ended_by
                        .map(|why| format!("plugin {} is checked only in part: {why}", plugin.plugin_type)),
                );
            }
            Err(why) => skipped.push(format!("plugin {} is not checked: {why}", plugin.plugin_type)),
        }
    }
    skipped
}

/// Returns why at most the host's part of a network's attachments is compared, or `None` if the pods' part is, too. The
/// reason is a version without CHECK, or the key `disableCheck`.
pub(super) fn inside_is_unchecked(list: &NetworkList) -> Option<String> {
    let why = if list.version < Version::V0_4_0 {
        format!("version {} has no CHECK", list.version)
    } else if list.disable_check {
        "disableCheck".to_owned()
    } else {
        return None;
    };
    Some(why)
}

/// The comparison of an attachment with what one plugin wants.
#[derive(Debug, Default)]
struct PluginCompared {
    faults: Vec<(Fault, super::FindingRepair)>,
    /// The difference behind which nothing was compared, if it is not among the faults.
    ended_by: Option<Error>,
}

impl Doctor<'_> {
    /// Returns which parts of a network's attachments are not compared, with the reasons.
    fn unchecked(&self, list: &NetworkList) -> Vec<String> {
        let (linked, others): (Vec<&ListEntry>, Vec<&ListEntry>) =
            list.plugins.iter().partition(|plugin| self.is_linked(plugin));
        if let Some(why) = inside_is_unchecked(list) {
            let names: Vec<&str> = linked.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
            return vec![match (names.as_slice(), others.as_slice()) {
                ([], _) => format!("nothing is checked: {why}"),
                (_, []) => format!("only the host's part is checked: {why}"),
                _ => format!("only the host's part, by plugin {}, is checked: {why}", names.join(", ")),
            }];
        }
        let delegating = linked.into_iter().filter(|plugin| bridge::delegated(plugin).is_some());
        delegating
            .map(|of| format!("only the host's part is checked for plugin {}: it delegates", of.plugin_type))
            .collect()
    }

    /// Returns whether the plugin, or the one to which it delegates, runs in this process.
    fn is_linked(&self, plugin: &ListEntry) -> bool {
        let delegate = bridge::delegated(plugin);
        let name = &delegate.as_ref().unwrap_or(plugin).plugin_type;
        self.plugins.iter().any(|linked| linked.name() == name)
    }

    /// Returns the differences that one plugin finds. A plugin that is not linked is run only if `in_pod` is set. Fails
    /// with the reason why nothing was compared.
    async fn compare(
        &self,
        known: &JudgedEntry,
        list: &NetworkList,
        plugin: &ListEntry,
        in_pod: bool,
    ) -> Result<PluginCompared, String> {
        let delegate = bridge::delegated(plugin);
        let aim = if in_pod && delegate.is_none() { Aim::Note } else { Aim::NoteHost };
        let Some(examined) = self.examine(&known.entry, list, plugin, aim) else {
            return if in_pod {
                self.run_check(known, list, plugin).await
            } else {
                Ok(PluginCompared::default())
            };
        };
        let ended_by = examined.ended_by;
        let mut faults = examined.faults.map_err(|err| err.to_string())?;
        // The configuration of a delegate lacks a part of what its ADD was given, so its pods are not compared.
        faults.retain(|fault| fault.place != Place::Pod || in_pod && delegate.is_none());
        let ended_by = ended_by.filter(|end| faults.iter().all(|fault| fault.error != *end));
        let mut found = Vec::new();
        for fault in faults {
            let (owner, cache) = (known.owner(), known.cache.clone());
            let Fault { place, is_mendable, item, .. } = fault;
            let plugin = plugin.plugin_type.clone();
            let action = ItemRepair { owner, cache, plugin, place, is_mendable, item };
            found.push((fault, super::FindingRepair::Attachment(Box::new(action))));
        }
        Ok(PluginCompared { faults: found, ended_by })
    }

    /// Runs CHECK of a linked plugin, or of the one to which it delegates. It returns `None` if the plugin is not
    /// linked.
    pub(super) fn examine(
        &self,
        entry: &Entry,
        list: &NetworkList,
        plugin: &ListEntry,
        aim: Aim,
    ) -> Option<Examined> {
        let delegate = bridge::delegated(plugin);
        let plugin = delegate.as_ref().unwrap_or(plugin);
        let attach = Attach::from_entry(entry);
        let injection = Injection::attachment(entry.result.as_ref(), &attach.capability_args);
        let args: Vec<String> = attach.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let examination = Examination {
            container_id: &attach.container_id,
            netns: &attach.netns,
            ifname: &attach.ifname,
            args: args.join(";"),
            path: self.invoker.path(),
            config: list.configuration(plugin, &injection).to_string().into_bytes(),
        };
        examination.run(self.plugins, &plugin.plugin_type, aim)
    }

    /// Runs the verb CHECK of a plugin that is not linked. It finds one difference at most, which only the runtime can
    /// repair.
    async fn run_check(
        &self,
        known: &JudgedEntry,
        list: &NetworkList,
        plugin: &ListEntry,
    ) -> Result<PluginCompared, String> {
        match self.invoker.replay(Verb::Check, &known.entry, list, plugin).await {
            Ok(()) => Ok(PluginCompared::default()),
            // By the codes below 100 a plugin says that it could not look (specification, "Error").
            Err(PluginError::Refused { error, .. }) if error.code.0 >= 100 => {
                let (place, item) = (Place::Host, Item::from_caller());
                let fault = Fault { place, error, left_alone: false, is_mendable: false, item };
                Ok(PluginCompared { faults: vec![(fault, super::FindingRepair::Runtime)], ended_by: None })
            }
            Err(err) => Err(err.to_string()),
        }
    }
}

/// Returns the finding about an attachment whose DEL has begun and not ended. It is always in doubt, so it is never
/// repaired. For the first minutes it counts as passing.
pub(super) fn leaving(doctor: &Doctor<'_>, known: &JudgedEntry) -> Finding {
    Finding {
        kind: FindingKind::BegunDel,
        what: "attachment".to_owned(),
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why: "a note says that its DEL has begun, or can't be read".to_owned(),
        doubt: Some(format!(
            "a repair would leave rules behind the DEL; a runtime may repeat it, else `{}`",
            del_command(doctor, known)
        )),
        passing: begun::age(&known.owner().tag()).is_none_or(|age| age < UNFINISHED),
        remedy: "repeat the DEL".into(),
        action: super::FindingRepair::Runtime,
    }
}

/// Returns the finding about a difference.
fn finding(known: &JudgedEntry, plugin: &ListEntry, fault: &Fault, action: super::FindingRepair) -> Finding {
    let name = &plugin.plugin_type;
    let (kind, what) = match fault.place {
        // A plugin that is asked by the verb doesn't tell where the difference is.
        _ if matches!(action, super::FindingRepair::Runtime) => {
            (FindingKind::HostState, format!("by plugin {name}"))
        }
        Place::Rules => (FindingKind::MissingRules, format!("rules of plugin {name}")),
        Place::Host => (FindingKind::HostState, format!("on the host, by plugin {name}")),
        Place::Pod => (FindingKind::PodState, format!("in the pod, by plugin {name}")),
    };
    let remedy = match (&action, fault.place) {
        (super::FindingRepair::Runtime, _) => ACT_ON_ERROR,
        (_, Place::Pod) if !fault.is_mendable => UNMENDABLE_IN_POD,
        _ if !fault.is_mendable => UNMENDABLE,
        (_, Place::Rules) => "put them back",
        (_, Place::Host) => "put it back",
        (_, Place::Pod) => "put it back with --repair --pods, unless the pod wants it so",
    };
    Finding {
        kind,
        what,
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why: match (&action, fault.place) {
            // The codes from 100 on are the plugin's own, so only its words tell what it has found.
            (super::FindingRepair::Runtime, _) => format!("its CHECK failed: {}", fault.error),
            (_, Place::Rules) => format!("they are not as the pod needs them: {}", fault.error),
            _ => fault.error.to_string(),
        },
        doubt: fault.left_alone.then(|| UNPROVEN.to_owned()),
        passing: false,
        remedy: remedy.into(),
        action,
    }
}

const UNPROVEN: &str = "nothing on the host proves that an interface is the pod's";
