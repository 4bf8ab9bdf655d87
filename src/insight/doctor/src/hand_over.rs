//! Hands a node over to the Go plugins. Their DEL removes nothing from cnimble's tables, so living pods get rules in
//! their form. The whole node is locked meanwhile. Rules that are unknown or cannot be written prevent any change,
//! except in [`Mode::Possible`].

use std::collections::{BTreeMap, BTreeSet};

use cnimble_cni::{Error, Owner};
use cnimble_leases::holder::Holder;
use cnimble_leases::{INDEX, KEPT};
use cnimble_liveness::node::Node;
use cnimble_liveness::{Sight, Verdict};
use cnimble_netlink::nft::Nft;
use cnimble_os::files::IfPresent;
use cnimble_rules::hand_over::{self, HandOver, Pod};
use cnimble_rules::objects::{configured, pair};
use cnimble_rules::survey::{self, Trace};
use cnimble_runtime::Entry;

use super::lifetimes::{self, Ending};
use super::stale_rules::names;
use super::{Doctor, Subject};

/// How much to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Changes nothing, and takes no lock.
    Look,
    /// Hands everything over, or nothing if something is refused.
    All,
    /// Hands over what can be handed over.
    Possible,
}

/// The pods and rules that are handed over, and those that aren't.
#[derive(Debug, Default)]
pub struct Report {
    /// The pods that are handed over, each with its rules.
    pub pods: Vec<(Subject, Vec<String>)>,
    /// Living pods with DHCP addresses that end with their lease. The addresses become permanent.
    pub addresses: Vec<(Subject, Vec<String>)>,
    /// The policies of bridges that are handed over.
    pub policies: Vec<String>,
    /// The rules of removed pods, which are deleted.
    pub orphans: Vec<String>,
    /// The pods and policies that are not handed over, each with the reason.
    pub refused: Vec<(Subject, String)>,
    /// The parts of cnimble's tables that remain although no pod has rules in them, and living pods' rules that the Go
    /// plugins don't have.
    pub left: Vec<String>,
    /// Whether the node was changed.
    pub done: bool,
}

impl Report {
    /// Returns whether there is nothing to hand over.
    pub fn is_empty(&self) -> bool {
        let rules = self.pods.is_empty() && self.policies.is_empty() && self.orphans.is_empty();
        rules && self.refused.is_empty() && self.addresses.is_empty()
    }
}

/// The result of a look, and the changes that follow.
struct HandOverPlan<'t> {
    over: HandOver,
    orphans: Vec<&'t Trace>,
    endings: Vec<Ending>,
    report: Report,
}

impl Doctor<'_> {
    /// Hands the node over, as far as `mode` says. It may be repeated, also after a kill. After a failed write all of
    /// cnimble's rules are kept. On success it removes the lock files, the index of leases and similar files of
    /// cnimble.
    pub async fn hand_over(&self, mode: Mode) -> Result<Report, Error> {
        let alone = match mode {
            Mode::Look => None,
            _ => Some(self.invoker.alone(None).await.map_err(|err| err.to_spec())?),
        };
        let sight = Sight::look(&self.evidence)?;
        let nft = &mut Nft::new();
        let HandOverPlan { over, orphans, endings, mut report } = plan(nft, &sight)?;
        if mode == Mode::Look || mode == Mode::All && !report.refused.is_empty() {
            return Ok(report);
        }
        endings.iter().try_for_each(Ending::make_permanent)?;
        over.write(nft)?;
        // A concurrent DEL may have removed one of the pods since the look.
        let left = over.departed(nft)?;
        over.take_back(nft, &left)?;
        over.let_go(nft)?;
        for orphan in orphans {
            orphan.remove(nft)?;
        }
        // A concurrent DEL of the Go plugins leaves cnimble's elements in place.
        if !over.pods().is_empty() {
            let sight = Sight::look(&self.evidence)?;
            let surely = surely(&sight.node);
            let gone = over.pods().iter().filter(|pod| !surely.contains(&pod.owner.tag()));
            over.take_back(nft, &gone.collect::<Vec<_>>())?;
        }
        report.left.extend(hand_over::finish(nft)?);
        let stores = sight.node.leases.stores();
        for file in stores.flat_map(|network| [INDEX, KEPT].map(|name| network.path.join(name))) {
            std::fs::remove_file(&file).if_present().map_err(|err| Error::io("remove", &file, &err))?;
        }
        report.done = true;
        if let Some(alone) = alone {
            alone.clear();
        }
        Ok(report)
    }
}

/// Decides what is handed over, and what is refused.
fn plan<'t>(nft: &mut Nft, sight: &'t Sight) -> Result<HandOverPlan<'t>, Error> {
    let mut report = Report::default();
    let (mut living, mut bridges, mut orphans) =
        (BTreeMap::<&str, Vec<&Trace>>::new(), Vec::new(), Vec::new());
    let mut doubts: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    let ours = sight.traces.iter().filter(|trace| trace.is_element() || trace.is_of_published_ports());
    for trace in ours {
        let comment = trace.comment().unwrap_or_default();
        match (sight.judge(trace), survey::tag(comment)) {
            (Verdict::Lives | Verdict::Doubt(_), _) if trace.is_of_published_ports() => {
                report.left.push(format!("{}, which no Go plugin removes", trace.what));
            }
            (Verdict::Lives, _) if trace.is_of_bridge() => bridges.push(trace),
            (Verdict::Lives, Some(tag)) => living.entry(tag).or_default().push(trace),
            // The element belongs to another program.
            (Verdict::Lives, None) => {}
            (Verdict::Orphan(why), _) => {
                report.orphans.push(format!("{}: {why}", trace.what));
                orphans.push(trace);
            }
            (Verdict::Doubt(why), tag) => drop(doubts.insert(tag.unwrap_or(comment), (comment, why))),
        }
    }
    for (comment, why) in doubts.into_values() {
        report.refused.push((names(comment), format!("it isn't known whether it lives: {why}")));
    }
    let (owners, surely) = (owners(&sight.node), surely(&sight.node));
    let mut pods = Vec::new();
    for (tag, traces) in living {
        let comment = traces.first().and_then(|trace| trace.comment()).unwrap_or_default();
        if !surely.contains(tag) {
            let why = "it isn't known whether it lives: it has no interface any more, and its DEL isn't done";
            report.refused.push((names(comment), why.to_owned()));
            continue;
        }
        let Some((owner, entry)) = owners.get(tag) else {
            let why = "its whole name is in no result cache, in no lease and on no link, and the Go plugins' rules are named by it";
            report.refused.push((names(comment), why.to_owned()));
            continue;
        };
        // The settings are those of the configuration that its ADD used.
        let settings =
            entry.and_then(|entry| entry.network_list().ok()).map(|list| configured::settings(&list));
        let settings = settings.unwrap_or_default();
        let pod = Pod::new(owner.clone(), settings, traces);
        let subject = Subject::from_attachment(&owner.network, &owner.attachment);
        match pod.problem(nft)? {
            Some(why) => report.refused.push((subject, why)),
            None => {
                report.pods.push((subject, pod.summary()));
                pods.push(pod);
            }
        }
    }
    let mut over = HandOver::new(nft, pods, bridges.iter().copied())?;
    if let Some(why) = over.problem() {
        report.refused.extend(over.policies().map(|policy| (Subject::default(), format!("{policy}: {why}"))));
        over = over.without_policies();
    }
    report.policies = over.policies().collect();
    let endings = lifetimes::find_endings(&sight.node)?;
    for Ending { subject, nets, .. } in &endings {
        report.addresses.push((subject.clone(), nets.iter().map(ToString::to_string).collect()));
    }
    Ok(HandOverPlan { over, orphans, endings, report })
}

/// Returns the tags of attachments that live without any doubt. The rules of a pod with a concurrent DEL would remain.
fn surely(node: &Node) -> BTreeSet<String> {
    let mut surely = BTreeSet::new();
    let entries = node.entries.iter().filter(|known| known.verdict == Verdict::Lives);
    surely.extend(entries.map(|known| known.owner().tag()));
    let ends = node.links.iter().filter(|link| pair::leads_to_a_pod(link));
    surely.extend(ends.filter_map(|link| survey::tag(&link.alias)).map(str::to_owned));
    for (network, lease) in node.leases.all().filter(|(_, lease)| lease.verdict == Verdict::Lives) {
        if let Some((_, Holder::Attachment(attachment))) = &lease.held {
            let owner = Owner { network: network.name.clone(), attachment: attachment.clone() };
            surely.insert(owner.tag());
        }
    }
    surely
}

/// Returns all owners with their full names and cache entries, by tag.
fn owners(node: &Node) -> BTreeMap<String, (Owner, Option<&Entry>)> {
    let mut owners: BTreeMap<String, (Owner, Option<&Entry>)> = BTreeMap::new();
    let mut put = |owner: Owner, entry| {
        owners.entry(owner.tag()).or_insert((owner, entry));
    };
    for known in &node.entries {
        put(known.owner(), Some(&known.entry));
    }
    for (network, lease) in node.leases.all() {
        if let Some((_, Holder::Attachment(attachment))) = &lease.held {
            put(Owner { network: network.name.clone(), attachment: attachment.clone() }, None);
        }
    }
    // A truncated name has another tag, so no element matches it.
    node.links.iter().filter_map(|link| Owner::named(&link.alias)).for_each(|owner| put(owner, None));
    owners
}
