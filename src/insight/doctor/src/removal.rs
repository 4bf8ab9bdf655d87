//! Removes a network that no pod is on (`cnimble network rm`).
//!
//! Of all that belongs to the network, its file is removed last. If the command is killed before, another call finds
//! the rest by the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use cnimble_cni::{Error, NetworkList, json};
use cnimble_leases::boot;
use cnimble_leases::cluster::share::SHARE;
use cnimble_leases::config::DATA_DIR;
use cnimble_leases::store::Store;
use cnimble_liveness::named::short_name;
use cnimble_liveness::{Sight, data_dirs};
use cnimble_netlink::link::{self, Filter, Link};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::{IfPresent, Netlink};
use cnimble_rules::objects::bridge;
use cnimble_runtime::Entry;

use super::{Doctor, Finding, Reach, Repair, links, stale_rules};

/// Another network, which may use the same bridge or the same leases.
#[derive(Debug)]
pub struct OtherNetwork {
    /// The network's file, or the attachment whose record has its configuration.
    pub place: String,
    pub list: NetworkList,
}

/// The networks besides the one that is removed.
#[derive(Debug, Default)]
pub struct Others {
    pub networks: Vec<OtherNetwork>,
    /// The files that could not be read. Each may have a network that uses the same bridge or leases.
    pub unread: Vec<String>,
}

/// The objects that were removed, and those that were kept.
#[derive(Debug, Default)]
pub struct Removal {
    pub removed: Vec<String>,
    pub kept: Vec<Kept>,
}

/// An object that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The object, `bridge br-demo` for example.
    pub what: String,
    pub why: String,
}

/// Why the network is still there.
#[derive(Debug)]
pub enum NotRemoved {
    /// These attachments live or may live. Nothing was changed.
    InUse(Vec<String>),
    /// A part could not be removed. The network's file is still there.
    Failed { what: String, error: Error },
    /// The node could not be examined. Nothing was changed.
    Unseen(Error),
}

impl From<Error> for NotRemoved {
    fn from(err: Error) -> Self {
        NotRemoved::Unseen(err)
    }
}

impl Doctor<'_> {
    /// Removes the remains of dead attachments, the network's bridges, its leases and its file, in this order. Then it
    /// removes rules that no network uses any more. Only cnimble's own commands wait for its lock, so each step looks
    /// again for a sign of a new pod. A bridge or leases that others may use are kept, and are no error.
    pub async fn remove_network(
        &self,
        list: &NetworkList,
        file: &Path,
        others: &Others,
    ) -> Result<Removal, NotRemoved> {
        let name = &list.name;
        let mut removal = Removal::default();
        let alone = self.invoker.alone(Some(name)).await.map_err(|err| err.to_spec())?;
        let doctor = Doctor { invoker: alone.invoker(), evidence: self.evidence.clone(), ..*self };
        let remains = doctor.remains_of(name)?;
        let outcomes = doctor.repair(&remains, Reach::Host).await;
        for (finding, outcome) in remains.iter().zip(outcomes) {
            match outcome {
                Repair::Done => removal.removed.push(finding.what.clone()),
                Repair::Failed(error) => {
                    return Err(NotRemoved::Failed { what: finding.what.clone(), error });
                }
                Repair::Doubt { why, .. } => {
                    return Err(NotRemoved::InUse(vec![format!("{}: {why}", finding.what)]));
                }
                Repair::Gone | Repair::NotAsked => {}
            }
        }
        for bridge in bridge::all(list) {
            let what = format!("bridge {bridge}");
            match remove_bridge(&bridge, others) {
                Ok(outcome) => removal.note_outcome(what, outcome),
                Err(error) => return Err(NotRemoved::Failed { what, error }),
            }
        }
        for dir in lease_dirs(list) {
            let what = format!("leases in {}", dir.display());
            match remove_leases(&dir, list, others) {
                Ok(outcome) => removal.note_outcome(what, outcome),
                Err(error) => return Err(NotRemoved::Failed { what, error }),
            }
        }
        let what = file.display().to_string();
        std::fs::remove_file(file).map_err(|err| NotRemoved::Failed {
            what: what.clone(),
            error: Error::io("remove", file, &err),
        })?;
        removal.removed.push(what);
        drop(alone);
        self.remove_idle_rules(&mut removal).await;
        Ok(removal)
    }

    /// Returns what dead attachments of the network have left. Fails with [`NotRemoved::InUse`] if an attachment lives
    /// or may live.
    fn remains_of(&self, network: &str) -> Result<Vec<Finding>, NotRemoved> {
        let sight = Sight::look(&self.evidence)?;
        let mut in_use: Vec<String> = match sight.valid(network) {
            Ok(valid) => {
                let entries: Vec<&Entry> = sight.node.entries.iter().map(|known| &known.entry).collect();
                valid.iter().map(|of| in_words(&of.container_id, &of.ifname, &entries)).collect()
            }
            Err(why) => vec![why],
        };
        let mut remains = self.orphans(&sight)?;
        remains.retain(|finding| finding.network() == Some(network));
        remains.sort_by_key(|finding| finding.kind);
        let doubts = remains.iter().filter_map(|finding| Some((&finding.what, finding.doubt.as_ref()?)));
        in_use.extend(doubts.map(|(what, doubt)| format!("{what}: {doubt}")));
        if in_use.is_empty() { Ok(remains) } else { Err(NotRemoved::InUse(in_use)) }
    }

    /// Removes chains and sets that no pod uses. All networks share them, so they are removed with the last network
    /// that has a pod. A failure is no error, because `cnimble doctor` finds what is left.
    async fn remove_idle_rules(&self, removal: &mut Removal) {
        let is_empty = Sight::look(&self.evidence).is_ok_and(|sight| sight.node.attachments() == 0);
        let Some(idle) = stale_rules::idle(&mut Nft::new()).ok().flatten().filter(|_| is_empty) else {
            return;
        };
        if let [Repair::Done] = self.repair(std::slice::from_ref(&idle), Reach::Host).await.as_slice() {
            removal.removed.push(idle.what);
        }
    }
}

impl Removal {
    fn note_outcome(&mut self, what: String, outcome: RemovalOutcome) {
        match outcome {
            RemovalOutcome::Removed => self.removed.push(what),
            RemovalOutcome::Kept(why) => self.kept.push(Kept { what, why }),
            RemovalOutcome::Absent => {}
        }
    }
}

/// The outcome for one object.
enum RemovalOutcome {
    Removed,
    Kept(String),
    /// There was nothing to remove.
    Absent,
}

/// Returns the text about an attachment, with the pod's name if it is recorded.
fn in_words(container_id: &str, ifname: &str, entries: &[&Entry]) -> String {
    let entry = entries.iter().find(|entry| entry.container_id == container_id && entry.ifname == ifname);
    let name = entry.and_then(|entry| super::tree::kubernetes_name(&entry.args));
    let short = short_name(container_id, entry.and_then(|entry| entry.namespace()));
    format!("{}, interface {ifname}", name.as_deref().unwrap_or(short))
}

fn remove_bridge(name: &str, others: &Others) -> Result<RemovalOutcome, Error> {
    // The lock keeps an ADD from using the bridge meanwhile.
    let _alone = links::lock_bridges()?;
    let mut host = Netlink::open()?;
    let Some(link) = host.find_link(name)? else { return Ok(RemovalOutcome::Absent) };
    if let Some(why) = why_bridge_stays(&mut host, &link, others)? {
        return Ok(RemovalOutcome::Kept(why));
    }
    host.execute(link::del(link.index, &link.name)).if_present()?;
    Ok(RemovalOutcome::Removed)
}

/// Returns why the bridge must be kept, or `None` if it can be removed.
fn why_bridge_stays(host: &mut Netlink, link: &Link, others: &Others) -> Result<Option<String>, Error> {
    if !bridge::is_made_here(link) {
        return Ok(Some("cnimble did not make it, or its alias was changed since".to_owned()));
    }
    if let Some(user) = others.networks.iter().find(|other| uses_link(&other.list, &link.name)) {
        return Ok(Some(format!("network {} uses it, too ({})", user.list.name, user.place)));
    }
    if let Some(unread) = others.unread.first() {
        return Ok(Some(format!("another network may use it: {unread}")));
    }
    let ports = host.links(&Filter { master: Some(link.index), kind: None })?;
    if let Some(port) = ports.first() {
        return Ok(Some(match port.kind.as_str() {
            "veth" => format!("{} is a port of it, and of no pod of this network", port.name),
            _ => format!("{} is a port of it, an uplink", port.name),
        }));
    }
    let all = host.links(&Filter { master: None, kind: None })?;
    let on_top = all
        .iter()
        .find(|other| other.peer == Some(link.index) && other.peer_netnsid.is_none() && other.kind != "veth");
    Ok(on_top.map(|other| format!("{} is made on top of it", other.name)))
}

/// Returns whether a plugin of the network names the link, as its bridge or as the master of its interfaces. A bridge
/// without a name is the default one. Of a delegate the bridge counts, and its master does not.
fn uses_link(list: &NetworkList, name: &str) -> bool {
    let is_master = list
        .plugins
        .iter()
        .any(|plugin| json::get(&plugin.document, "master").and_then(|master| master.as_str()) == Some(name));
    is_master || bridge::all(list).contains(name)
}

/// Returns the existing directories that may have the network's leases.
fn lease_dirs(list: &NetworkList) -> BTreeSet<PathBuf> {
    let has_ipam = list.plugins.iter().any(|plugin| json::get(&plugin.document, "ipam").is_some());
    if !has_ipam {
        return BTreeSet::new();
    }
    let dirs = data_dirs(list).into_iter().chain([PathBuf::from(DATA_DIR)]);
    dirs.filter_map(|dir| dir.join(&list.name).canonicalize().ok()).collect()
}

/// Removes a lease directory, unless other hosts or networks may use it, or something is left in it.
fn remove_leases(dir: &Path, list: &NetworkList, others: &Others) -> Result<RemovalOutcome, Error> {
    let Ok(opened) = File::open(dir) else { return Ok(RemovalOutcome::Absent) };
    if boot::is_shared(&opened) {
        return Ok(RemovalOutcome::Kept("other machines may have this file system, too".to_owned()));
    }
    if let Some(user) = others.networks.iter().find(|other| lease_dirs(&other.list).contains(dir)) {
        return Ok(RemovalOutcome::Kept(if user.list.name == list.name {
            format!("{} has a network of this name, too", user.place)
        } else {
            format!("network {} has its leases there, too ({})", user.list.name, user.place)
        }));
    }
    if let Some(unread) = others.unread.first() {
        return Ok(RemovalOutcome::Kept(format!("another network may have its leases there, too: {unread}")));
    }
    let Some(store) = Store::lock(dir)? else { return Ok(RemovalOutcome::Absent) };
    Ok(match store.remove_directory()? {
        None => RemovalOutcome::Removed,
        Some(name) if name == SHARE => RemovalOutcome::Kept(
            "they have this node's share of a cluster's addresses: see `cnimble ipam release`".to_owned(),
        ),
        Some(name) => RemovalOutcome::Kept(format!("{name} is there")),
    })
}
