//! Compares living attachments with the wanted state that their plugins name. A linked plugin runs its CHECK in this
//! process ([`cnimble_plugin::Examination`]). It can repair the items that it names by `Call::wants`, and only notes
//! those that it names by `Call::expects`. Any other plugin is run with the verb, which reports only the first
//! difference. The cache must know the pod's configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{Code, Error, NetworkList, Owner, Verb, Version};
use cnimble_liveness::cache_entries::{JudgedEntry, failed, owner_of};
use cnimble_liveness::node::Node;
use cnimble_liveness::{Verdict, inside};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_os::files::begun;
use cnimble_plugin::{Aim, Examination, Examined, Fault, Item, Place, Undo};
use cnimble_rules::objects::bridge;
use cnimble_runtime::{Attach, Cache, Entry, Key, Lookup, PluginError};

use super::outcome::{Reach, Repair};
use super::runtime::{PAUSE, del_command};
use super::{Doctor, Finding, FindingKind, Subject};

/// The remedy for what only a new pod can get.
pub(super) const REPLACE: &str = "delete the pod and make it anew";

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
        let skipped = of_attachment(doctor, known, reach, &mut findings).await;
        for why in skipped {
            *unchecked.entry(format!("network {}: {why}", known.entry.network)).or_default() += 1;
        }
    }
    Compared { findings, unchecked: counted(unchecked) }
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
        findings.push(leaving(known));
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

/// Returns why at most the host's part of a network's attachments is compared, or `None` if the pods' part is, too.
fn inside_is_unchecked(list: &NetworkList) -> Option<String> {
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

/// A difference that a linked plugin has found. [`Doctor::repair`] has the plugin put it back. That fails for an item
/// that the plugin can only verify (`Call::expects`).
#[derive(Debug, Clone)]
pub(super) struct ItemRepair {
    owner: Owner,
    cache: PathBuf,
    plugin: String,
    place: Place,
    is_mendable: bool,
    item: Item,
}

/// The repairs of attachments, or why there was none, by the tag of the attachment.
#[derive(Debug, Default)]
pub(super) struct Repaired(BTreeMap<String, Result<RepairedAttachment, Repair>>);

/// What the plugins of one attachment have done.
#[derive(Debug, Default)]
struct RepairedAttachment {
    /// Whether a plugin has put back anything. Otherwise somebody else has mended what was found.
    has_put_back: bool,
    /// The differences that remain, each with its plugin.
    left: Vec<(String, Fault)>,
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
    fn examine(&self, entry: &Entry, list: &NetworkList, plugin: &ListEntry, aim: Aim) -> Option<Examined> {
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

impl ItemRepair {
    /// Returns the item of the wanted state, and the plugin that wants it.
    pub(super) fn item(&self) -> (&str, Item) {
        (&self.plugin, self.item)
    }

    /// Returns whether the plugin has a way to put the item back.
    pub(super) fn is_mendable(&self) -> bool {
        self.is_mendable
    }

    /// Returns whether the repair changes something inside the pod.
    pub(super) fn is_in_pod(&self) -> bool {
        self.place == Place::Pod
    }

    /// Puts back what the attachment lacks now, if it still lives. This happens once for all of its plugins, because
    /// each builds on what the others restore.
    pub(super) fn run(&self, doctor: &Doctor<'_>, reach: Reach, repaired: &mut Repaired) -> Repair {
        let aim = match (self.place, reach) {
            (Place::Pod, Reach::Host) => return self.unasked(),
            (_, Reach::Host) => Aim::RepairHost,
            (_, Reach::Pods) => Aim::RepairAll,
        };
        let attachment = repaired.0.entry(self.owner.tag()).or_insert_with(|| {
            // Without an entry the runtime has deleted the attachment, so nothing is lacking.
            self.entry()?.map_or(Err(Repair::Gone), |entry| repair(doctor, &entry, &self.owner, aim))
        });
        match attachment {
            Err(repair) => repair.clone(),
            Ok(RepairedAttachment { has_put_back, left }) => {
                let is_it =
                    |(plugin, fault): &&(String, Fault)| *plugin == self.plugin && fault.place == self.place;
                // A part that was left alone may have caused any of the plugin's findings.
                match left.iter().filter(is_it).min_by_key(|(_, fault)| fault.left_alone) {
                    Some((_, fault)) if fault.left_alone => {
                        Repair::Doubt { why: fault.error.to_string(), passing: false }
                    }
                    Some((_, fault)) => Repair::Failed(fault.error.clone()),
                    None if *has_put_back => Repair::Done,
                    None => Repair::Gone,
                }
            }
        }
    }

    /// Reads the entry of the attachment. It returns `None` after its DEL.
    fn entry(&self) -> Result<Option<Entry>, Repair> {
        let attachment = &self.owner.attachment;
        let key = Key {
            network: &self.owner.network,
            container_id: &attachment.container_id,
            ifname: &attachment.ifname,
        };
        let found = Cache::new(&self.cache).get(key).map_err(|err| Repair::Failed(failed(&err)))?;
        Ok(found.entry())
    }

    /// Returns the outcome for a difference in a pod that the caller did not ask to repair.
    fn unasked(&self) -> Repair {
        match self.entry() {
            Ok(None) => Repair::Gone,
            Ok(Some(entry)) => doubt(&entry, &self.owner.tag()).unwrap_or(Repair::NotAsked),
            Err(failed) => failed,
        }
    }
}

/// Restores what the attachment lacks. Fails with [`Repair::Doubt`] if the attachment was left alone, and with
/// [`Repair::Failed`] if it could not be examined.
fn repair(doctor: &Doctor<'_>, entry: &Entry, owner: &Owner, aim: Aim) -> Result<RepairedAttachment, Repair> {
    if let Some(doubt) = doubt(entry, &owner.tag()) {
        return Err(doubt);
    }
    let list = entry.network_list().map_err(Repair::Failed)?;
    let (mut undo, mut repaired) = (Vec::new(), RepairedAttachment::default());
    for _ in 0..ATTEMPTS {
        repair_once(doctor, entry, &list, aim, &mut undo, &mut repaired)?;
        if !repaired.left.iter().any(|(_, fault)| is_overtaken(fault)) {
            break;
        }
    }
    Ok(repaired)
}

/// How often a repair is tried. A flush between reading the packet rules and changing them makes the change fail, or
/// undoes it.
const ATTEMPTS: usize = 5;

/// Returns whether another program may have changed the packet rules during the repair.
fn is_overtaken(fault: &Fault) -> bool {
    fault.place == Place::Rules && [Code::CHECK_FAILED, Code::KERNEL].contains(&fault.error.code)
}

/// Puts back once what the attachment lacks, and writes the outcome into `repaired`. `undo` collects the reversals.
/// They run if the attachment's DEL begins meanwhile.
fn repair_once(
    doctor: &Doctor<'_>,
    entry: &Entry,
    list: &NetworkList,
    aim: Aim,
    undo: &mut Vec<Undo>,
    repaired: &mut RepairedAttachment,
) -> Result<(), Repair> {
    repaired.left.clear();
    let in_pod = inside_is_unchecked(list).is_none();
    for plugin in &list.plugins {
        let aim = if in_pod && bridge::delegated(plugin).is_none() { aim } else { Aim::RepairHost };
        let Some(examined) = doctor.examine(entry, list, plugin, aim) else { continue };
        undo.push(examined.undo);
        repaired.has_put_back |= examined.has_put_back;
        if let Some(doubt) = doubt(entry, &owner_of(entry).tag()) {
            let failures = undo.iter().rev().flat_map(Undo::rollback);
            failures.for_each(|failure| log::warn!("{failure}"));
            return Err(doubt);
        }
        let faults = examined.faults.map_err(Repair::Failed)?;
        repaired.left.extend(faults.into_iter().map(|fault| (plugin.plugin_type.clone(), fault)));
    }
    Ok(())
}

/// Returns why the attachment is left alone, or `None` if it surely lives. The note of a DEL is looked for first,
/// because a DEL removes it last. A DEL that begins later finds what was restored.
fn doubt(entry: &Entry, tag: &str) -> Option<Repair> {
    if begun::is_noted(tag) {
        return Some(Repair::Doubt { why: "its DEL has begun".to_owned(), passing: true });
    }
    let why = doubt_inside(entry).unwrap_or_else(|err| Some(err.to_string()))?;
    Some(Repair::Doubt { why, passing: false })
}

/// Returns why the interface at the entry's path may not be the entry's, or `None` if nothing speaks against it.
fn doubt_inside(entry: &Entry) -> Result<Option<String>, Error> {
    let ns = NetNs::open(entry.namespace().unwrap_or_default().as_ref())?;
    inside::doubt(entry, &ns, &mut Netlink::open()?)
}

/// Returns the finding about an attachment whose DEL has begun and not ended. It is always in doubt, so it is never
/// repaired. For the first minutes it counts as passing.
fn leaving(known: &JudgedEntry) -> Finding {
    Finding {
        kind: FindingKind::BegunDel,
        what: "attachment".to_owned(),
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why: "its DEL has begun and is not done".to_owned(),
        doubt: Some(format!(
            "a repair would leave rules behind the DEL; a runtime may repeat it, else `{}`",
            del_command(known)
        )),
        passing: begun::age(&known.owner().tag()).is_none_or(|age| age < UNFINISHED),
        remedy: "repeat the DEL",
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
        (super::FindingRepair::Runtime, _) => REPLACE,
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
        why: match fault.place {
            Place::Rules => format!("they are not as the pod needs them: {}", fault.error),
            _ => fault.error.to_string(),
        },
        doubt: fault.left_alone.then(|| UNPROVEN.to_owned()),
        passing: false,
        remedy,
        action,
    }
}

const UNPROVEN: &str = "nothing on the host proves that an interface is the pod's";

/// Returns findings about pods whose namespace has lost the interface that ADD made. Only a new pod gets one. A DEL
/// that runs looks the same between its last plugin and the removal of the record. So only what is found twice, with a
/// pause of [`PAUSE`], counts.
pub(super) async fn without_interface(node: &Node) -> Vec<Finding> {
    let doubtful =
        node.entries.iter().filter(|known| known.own && matches!(known.verdict, Verdict::Doubt(_)));
    let mut lost: Vec<&JudgedEntry> = doubtful.filter(|known| has_lost(known)).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    tokio::time::sleep(PAUSE).await;
    lost.retain(|known| {
        let now = Cache::new(&known.cache).get(known.entry.key()).ok().and_then(Lookup::entry);
        now.as_ref() == Some(&known.entry) && has_lost(known)
    });
    lost.into_iter()
        .map(|known| if begun::is_noted(&known.owner().tag()) { leaving(known) } else { cut_off(known) })
        .collect()
}

/// Returns whether the interface of an entry is missing in its namespace. It returns false for an unreadable namespace,
/// which is reported elsewhere.
fn has_lost(known: &JudgedEntry) -> bool {
    let netns = NetNs::find(known.entry.namespace().unwrap_or_default().as_ref());
    let lost = netns.ok().flatten().map(|netns| inside::has_lost_interface(&known.entry, &netns));
    matches!(lost, Some(Ok(true)))
}

fn cut_off(known: &JudgedEntry) -> Finding {
    Finding {
        kind: FindingKind::PodState,
        what: "interface of the pod".to_owned(),
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why: inside::lost(&known.entry),
        doubt: None,
        passing: false,
        remedy: REPLACE,
        action: super::FindingRepair::Runtime,
    }
}
