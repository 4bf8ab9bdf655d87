//! Puts back what a living attachment lacks, by the plugins that have found it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cnimble_cni::{Code, Error, NetworkList, Owner};
use cnimble_liveness::cache_entries::{failed, owner_of};
use cnimble_liveness::inside;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_os::files::begun;
use cnimble_plugin::{Aim, Fault, Item, Place, Undo};
use cnimble_rules::objects::bridge;
use cnimble_runtime::{Cache, Entry, Key};

use super::Doctor;
use super::attachments::inside_is_unchecked;
use super::outcome::{Reach, Repair};

/// A difference that a linked plugin has found. [`Doctor::repair`] has the plugin put it back. That fails for an item
/// that the plugin can only verify (`Call::expects`).
#[derive(Debug, Clone)]
pub(super) struct ItemRepair {
    pub(super) owner: Owner,
    pub(super) cache: PathBuf,
    pub(super) plugin: String,
    pub(super) place: Place,
    pub(super) is_mendable: bool,
    pub(super) item: Item,
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
